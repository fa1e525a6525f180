"""The style sheet of REPORT.html: one column, light and dark, phone and print, nothing from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --paper: #ffffff; --line: #d0d7de; --soft: #f3f5f8;
  --good: #0b6b2e; --bad: #a40e26; --link: #0550ae; --bar: #2f6fb5; --bar2: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #a0aab5; --paper: #0f141a; --line: #39424c;
  --soft: #182029; --good: #5fd38a; --bad: #ff9492; --link: #79b8ff; --bar: #6cb0f5; --bar2: #e0b15a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .35rem; }
p { margin: .5rem 0; } a { color: var(--link); }
.dim { color: var(--dim); } code { font-size: .9em; }
.verdict { font-size: 1.15rem; font-weight: 650; padding: .5rem .75rem; border: 2px solid; border-radius: .4rem; }
.pass { color: var(--good); } .fail { color: var(--bad); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .3rem; margin: .5rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .4rem .5rem; color: var(--dim); }
th, td { padding: .3rem .5rem; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-top: 0; background: var(--soft); white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.heat { color: #14181d; text-align: center; }
td.hash { font-family: ui-monospace, monospace; font-size: .75rem; min-width: 20rem; word-break: break-all; }
figure { margin: .75rem 0; } figcaption { color: var(--dim); font-size: .875rem; }
svg { display: block; width: 100%; height: auto; max-width: 34rem; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .b { fill: var(--bar); } svg .b2 { fill: var(--bar2); } svg .axis { stroke: var(--line); }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .75rem 0; list-style: none; }
ul.findings { padding-left: 1.1rem; }
@media (max-width: 40rem) { body { padding: .75rem; font-size: 15px; } }
@media print { :root { color-scheme: light; --ink: #000; --dim: #444; --paper: #fff; --line: #bbb; --soft: #eee;
  --good: #064d20; --bad: #8a0019; --link: #000; --bar: #2f6fb5; --bar2: #8a5a00; }
  body { max-width: none; font-size: 11px; } nav, .download { display: none; } .scroll { overflow: visible; border: 0; }
  tr, figure { break-inside: avoid; } td.hash { min-width: 0; }
  td.heat { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
""".strip()
