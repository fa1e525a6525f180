// Opens a page in headless Chromium, light and dark, as a phone and as a desktop: node check.mjs RELEASE OUT
// It must make no request, log no error, fit the screen, pass axe, be reachable by keyboard, and show the reports' numbers.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [folder, out, page_ = "REPORT.html"] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const address = pathToFileURL(resolve(folder, page_)).href;
const SCREENS = { phone: { width: 390, height: 844 }, desktop: { width: 1280, height: 900 } };
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
mkdirSync(out, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
try {
  for (const [name, viewport] of Object.entries(SCREENS)) {
    for (const colorScheme of ["light", "dark"]) await look(name, viewport, colorScheme);
  }
  await print();
} finally {
  await browser.close();
}

async function open(viewport, colorScheme) {
  const context = await browser.newContext({ viewport, colorScheme });
  const page = await context.newPage();
  const seen = { requests: [], errors: [] };
  page.on("request", (request) => seen.requests.push(request.url()));
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  await page.goto(address);
  return { context, page, seen };
}

async function look(name, viewport, colorScheme) {
  const { context, page, seen } = await open(viewport, colorScheme);
  const where = `${name}, ${colorScheme}`;
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document));
  const grave = found.violations.filter((item) => ["serious", "critical"].includes(item.impact));
  assert.deepEqual(grave.map((item) => `${item.id}: ${item.nodes[0].html}`), [], where);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(wide, 0, `${where}: the page is wider than the screen`);
  await page.screenshot({ path: join(out, `${name}-${colorScheme}.png`), fullPage: true });
  const verdict = await page.evaluate(() => document.querySelector(".verdict").getBoundingClientRect().bottom);
  assert.ok(verdict < viewport.height, `${where}: the verdict is not on the first screen`);
  await keyboard(page, where);
  if (page_ === "REPORT.html") await numbers(page);
  assert.deepEqual(seen.requests.filter((url) => url !== address && !url.startsWith("data:")), [], where);
  assert.deepEqual(seen.errors, [], where);
  console.log(`${where}: ${found.passes.length} axe rules passed, ${found.violations.length} not serious, `
    + `${seen.requests.length} request`);
  await context.close();
}

async function keyboard(page, where) {
  const wanted = await page.evaluate(() => document.querySelectorAll("a[href], .scroll, summary").length);
  const reached = new Set();
  for (let turn = 0; turn < wanted + 5; turn += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => {
      const all = [...document.querySelectorAll("a[href], .scroll, summary")];
      return all.indexOf(document.activeElement);
    }));
  }
  reached.delete(-1);
  assert.equal(reached.size, wanted, `${where}: not everything can be reached with the keyboard`);
}

async function numbers(page) {
  const tables = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("table")].map((table) =>
    [table.caption.textContent, [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))])));
  const saved = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll("a[download]")].map((link) =>
    [link.download, JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(link.href.split(",")[1]),
      (letter) => letter.codePointAt(0))))])));
  const gate = JSON.parse(readFileSync(join(folder, "FIDELITY_GATE.json"), "utf8"));
  const weights = gate.rows.filter((row) => row.scope === "tensor" && !row.metrics.exact);
  assert.ok(weights.length > 0);
  const heat = tables["SQNR in dB, higher is better"].flatMap((row) => row.slice(1)).filter((cell) => cell !== "exact");
  const stated = weights.map((row) => row.metrics.sqnr_db.toFixed(1));
  assert.deepEqual([...heat].sort(), [...stated].sort());
  assert.equal(Object.values(saved["sqnr_db.json"]).length, weights.length);
  const scales = tables["Block scales by power of two; sub: subnormal"].map((row) => Number(row[1].replaceAll(",", "")));
  assert.deepEqual(scales, gate.summary.whole.block_scales.exponents);
  const release = JSON.parse(readFileSync(join(folder, "RELEASE_REPORT.json"), "utf8"));
  assert.deepEqual(tables["Folders of this release"].map((row) => [row[0], Number(row[4].replaceAll(",", ""))]),
    release.rows.map((row) => [row.folder, row.size_bytes]));
  assert.deepEqual(saved["engines.json"], release.summary.engines);
  const codes = tables["Codes by value"].reduce((sum, row) => sum + Number(row[1].replaceAll(",", "")), 0);
  assert.equal(codes, release.rows[0].codes.reduce((sum, count) => sum + count, 0));
  const charts = await page.evaluate(() => [...document.querySelectorAll("figure")].filter((figure) => {
    const section = figure.closest("section");
    return section.querySelector("table") === null || section.querySelector("a[download]") === null;
  }).length);
  assert.equal(charts, 0, "a chart stands without its numbers");
}

async function print() {
  const { context, page } = await open(SCREENS.desktop, "light");
  const pdf = await page.pdf({ path: join(out, "print.pdf"), format: "A4" });
  assert.ok(pdf.length > 10_000);
  await context.close();
}
