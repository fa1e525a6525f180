"""REPORT.html: all reports of a folder on one page that needs nothing else. The verdict comes first.

There is no script in it and nothing is fetched: charts are inline SVG or coloured tables, downloads are data links.
A strict content security policy says so to the browser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convertkit import __version__
from convertkit.release.card import PROOFS, VERDICTS
from convertkit.release.page_charts import fidelity_section, size_section
from convertkit.release.page_compare import compare_section
from convertkit.release.page_parts import Cell, download, facts, number, table, text
from convertkit.release.page_style import STYLE
from convertkit.release.summary import EXPANSION, View, verdict_of
from convertkit.release.words import size_text

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_ROWS = 400
"""Rows of one table; the reports hold them all."""

Section = Callable[[View], Iterator[str]]


def render_page(view: View, other: View | None = None) -> bytes:
    """The bytes of the page; with ``other`` a section that shows both side by side."""
    sections: list[tuple[str, str, Section]] = [
        ("findings", "Findings", _findings),
        ("engines", "Engines", _engines),
        ("variants", "Folders", _variants),
        ("fidelity", "Error by layer and module", fidelity_section),
        ("exactness", "Differing elements", _exactness),
        ("sizes", "Size by module", size_section),
        ("references", "Compared with", _references),
        ("drafter", "The drafter and its target", _drafter),
        ("files", "Files", _files),
    ]
    if other is not None:
        sections.insert(1, ("compare", f"{view.title} and {other.title}", lambda view: compare_section(view, other)))
    made = [(key, title, list(section(view))) for key, title, section in sections]
    return ("\n".join(_page(view, [item for item in made if item[2]])) + "\n").encode()


def _page(view: View, sections: list[tuple[str, str, list[str]]]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{text(view.title)}: report</title><style>{STYLE}</style></head><body>"
    yield f"<header><h1>{text(view.title)}</h1>"
    yield from _verdict(view)
    yield '<nav aria-label="Sections"><ul>'
    yield from (f'<li><a href="#{key}">{text(title)}</a></li>' for key, title, _ in sections)
    yield "</ul></nav></header><main>"
    for key, title, lines in sections:
        yield f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{text(title)}</h2>'
        yield from lines
        yield "</section>"
    yield "</main>"
    yield f'<footer><p class="dim">Made by convertkit {text(__version__)} from the reports of this folder.</p></footer>'
    yield "</body></html>"


def _verdict(view: View) -> Iterator[str]:
    verdict = verdict_of(view)
    said = "Every check passed." if verdict == "pass" else "A check failed."
    yield f'<p class="verdict {verdict}">{said}</p>'
    names = [
        f"{text(name)} {'passed' if report['verdict'] == 'pass' else 'FAILED'}"
        for folder, part in view.parts.items()
        for name, report in ((f"{folder}/{name}" if folder else name, report) for name, report in part.items())
    ]
    yield f'<p class="dim">{"; ".join(names)}.</p>'


def _findings(view: View) -> Iterator[str]:
    seen: dict[tuple[str, str], Mapping[str, Any]] = {}
    reports = [report for part in view.parts.values() for report in part.values()]
    for report in (*reports, *(() if view.release is None else (view.release,))):
        for item in report["findings"]:
            if item["severity"] != "note":
                seen.setdefault((item["code"], item["message"]), item)
    if not seen:
        yield "<p>No errors and no warnings.</p>"
        return
    yield '<ul class="findings">'
    for item in sorted(seen.values(), key=lambda item: item["severity"] != "error"):
        where = item["where"].get("tensor") or item["where"].get("file") or ""
        place = f" <code>{text(where)}</code>" if where else ""
        cure = f" <span class=dim>{text(item['fix'])}</span>" if item["fix"] else ""
        kind = "fail" if item["severity"] == "error" else ""
        yield f'<li><span class="{kind}">{text(item["severity"])}</span> <code>{text(item["code"])}</code>: '
        yield f"{text(item['message'])}{place}{cure}</li>"
    yield "</ul>"


def _engines(view: View) -> Iterator[str]:
    if not view.engines:
        return
    rows = [
        (
            Cell(f"{item['title']} {item['version']}"),
            Cell(item["variant"]),
            Cell(VERDICTS[item["verdict"]], kind={"loads": "pass", "unknown": ""}.get(item["verdict"], "fail")),
            Cell(PROOFS[item["proof"]]),
            Cell("; ".join(item["reasons"][:3])),
            Cell(", ".join(f"{one['name']} {one['value']}" for one in item["settings"])),
        )
        for item in view.engines
    ]
    yield from table("Which engine loads which folder", ("engine", "folder", "answer", "how it is known", "why",
                     "settings"), rows)  # fmt: skip
    yield download("engines", list(view.engines))


def _variants(view: View) -> Iterator[str]:
    if not view.variants:
        return
    rows = [
        (Cell(row["folder"]), Cell(row["format"]), Cell(row["made_from"]), number(row["tensors"]),
         number(row["size_bytes"]), Cell(size_text(row["size_bytes"]), number=True))
        for row in view.variants
    ]  # fmt: skip
    yield from table("Folders of this release", ("folder", "format", "made from", "tensors", "bytes", "size"), rows)
    yield download("folders", list(view.variants))


def _exactness(view: View) -> Iterator[str]:
    for folder, part in view.parts.items():
        report = part.get(EXPANSION)
        if report is None:
            continue
        summary = report["summary"]
        yield (f"<p><strong>{summary['differing']:,} of {summary['elements']:,} elements differ</strong> in "
               f"{text(folder + '/' if folder else 'the root')} from the exact value rounded once; "
               f"{summary['unrecovered']:,} codes cannot be found again.</p>")  # fmt: skip
        rows = [row for row in report.get("rows", ()) if row["promise"] in ("exact", "planes")]
        rows.sort(key=lambda row: (-row["differing"], row["name"]))
        cells = [
            (Cell(row["name"]), number(row["elements"]), number(row["differing"]), number(row.get("negative_zeros")),
             number(row.get("flushed_blocks")), number(row.get("unrecovered")))
            for row in rows[:MAX_ROWS]
        ]  # fmt: skip
        title = f"Expanded weights of {folder or 'the root'}" + (
            f" (the first {MAX_ROWS} of {len(rows):,})" if len(rows) > MAX_ROWS else ""
        )
        names = ("weight", "elements", "differing elements", "negative zeros", "flushed blocks", "codes lost")
        yield from table(title, names, cells)
        yield download(f"exactness{'-' + folder if folder else ''}", {"summary": summary, "rows": rows[:MAX_ROWS]})


def _references(view: View) -> Iterator[str]:
    found = () if view.release is None else view.release["summary"]["references"]
    if not found:
        return
    rows = [
        (Cell(item["name"]), Cell(item["variant"]), number(item["whole"].get("rel_rms"), ".4f"),
         number(item["whole"].get("sqnr_db"), ".2f"), number(item["whole"].get("cosine"), ".5f"),
         number(item["whole"].get("changed")))
        for item in found
    ]  # fmt: skip
    names = ("checkpoint", "folder", "relative RMS", "SQNR dB", "cosine", "changed elements")
    yield from table("Other checkpoints", names, rows)
    yield download("references", list(found))


def _drafter(view: View) -> Iterator[str]:
    summary = {} if view.release is None else view.release["summary"]
    if not summary.get("drafter"):
        return
    if summary["target_id"]:
        yield f"<p>It drafts for <strong>{text(summary['target_id'])}</strong>.</p>"
    yield from facts("What the config means", summary["drafter"])


def _files(view: View) -> Iterator[str]:
    rows = [
        (Cell(item.path), number(item.size_bytes), Cell(item.sha256 or "not taken", kind="hash"))
        for item in view.files[:MAX_ROWS]
    ]
    yield from table("Files when this page was made; SHA256SUMS lists them all", ("file", "bytes", "sha256"), rows)
    listed = [{"path": item.path, "size_bytes": item.size_bytes, "sha256": item.sha256} for item in view.files]
    yield download("files", listed)
