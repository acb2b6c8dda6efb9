"""How the page looks: light and dark, wide and narrow, on screen and on paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #dfe3e8; --ink: #1b2430; --quiet: #5b6775;
  --good: #1a7f4b; --bad: #c0322b; --open: #9a6700; --mark: #3566c9; --soft: #c9d3e6;
  --good-soft: #e5f4ec; --bad-soft: #fbe9e7; --open-soft: #fdf3dc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2029; --line: #2e3743; --ink: #e7ebf0; --quiet: #9aa6b4;
    --good: #4cc38a; --bad: #ff7b72; --open: #e3b341; --mark: #7aa2f7; --soft: #3a475c;
    --good-soft: #14291f; --bad-soft: #331a1a; --open-soft: #2f2713;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.15rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.25rem; }
h3 { font-size: 1.05rem; margin: 0; }
p { margin: 0.4rem 0; }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1rem 1.15rem; margin: 0.75rem 0; }
.verdict { border-left: 6px solid var(--tone); background: var(--tone-soft);
  padding: 1.25rem 1.4rem; }
.verdict .said { font-size: 1.9rem; font-weight: 700; line-height: 1.2; color: var(--tone);
  margin: 0.3rem 0 0.2rem; }
.clean { --tone: var(--good); --tone-soft: var(--good-soft); }
.faulty, .error { --tone: var(--bad); --tone-soft: var(--bad-soft); }
.undetermined, .warning { --tone: var(--open); --tone-soft: var(--open-soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr));
  gap: 0.6rem 1.2rem; margin: 1rem 0 0; }
.facts div { min-width: 0; }
dt { font-size: 0.8rem; color: var(--quiet); }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14.5rem, 100%), 1fr));
  gap: 0.75rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.7rem 0.8rem 0.5rem; min-width: 0; }
figcaption { font-size: 0.88rem; }
svg.plot { width: 100%; max-width: 26rem; height: auto; display: block; margin: 0 auto; }
.plot text { font: 11.5px system-ui, "DejaVu Sans", sans-serif; fill: var(--quiet); }
.plot text.value { fill: var(--ink); font-size: 11px; }
.plot .grid, .plot .axis { stroke: var(--line); fill: none; }
.plot .axis { stroke: var(--quiet); }
.bar { fill: var(--soft); } .bar.good { fill: var(--mark); } .bar.bad { fill: var(--bad); }
.bar.expected { fill: var(--soft); stroke: var(--mark); stroke-dasharray: 3 2; }
.chance { stroke: var(--quiet); stroke-dasharray: 4 3; fill: none; }
.band { fill: var(--soft); opacity: 0.6; }
.curve { stroke: var(--mark); stroke-width: 2; fill: none; stroke-linejoin: round; }
.strips { margin-top: 0.75rem; }
.strip { margin: 0.45rem 0; font-size: 0.88rem; }
.strip svg { display: block; width: 100%; height: 1.1rem; background: var(--page);
  border: 1px solid var(--line); border-radius: 4px; }
.strip .mark { fill: var(--bad); } .strip .border { fill: var(--line); }
.strip .everywhere { fill: var(--bad); opacity: 0.3; }
.ends { display: flex; justify-content: space-between; color: var(--quiet); font-size: 0.8rem; }
.kind { border-left: 4px solid var(--tone); }
.kind td:first-child { min-width: 11rem; }
.kind td:nth-child(3) { min-width: 13rem; }
.kind header { display: flex; flex-wrap: wrap; gap: 0.2rem 0.8rem; align-items: baseline; }
.tag { color: var(--tone); background: var(--tone-soft); border-radius: 99px;
  padding: 0.05rem 0.6rem; font-size: 0.82rem; font-weight: 600; }
.todo { border-top: 1px solid var(--line); padding-top: 0.6rem; margin-top: 0.7rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.9rem 0.35rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td:first-child { min-width: 6rem; }
td.long { min-width: 18rem; width: 100%; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
tr > :nth-child(2):not(.long) { white-space: nowrap; }
ul { margin: 0.4rem 0; padding-left: 1.2rem; }
li { margin: 0.3rem 0; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 0.2rem 0; }
footer { margin-top: 2.5rem; color: var(--quiet); font-size: 0.85rem; }
@media (max-width: 40rem) { td.long { min-width: 9rem; } .kind td:first-child { min-width: 8rem; } }
@media print { body { background: #fff; } .card, figure { break-inside: avoid; } }
"""
