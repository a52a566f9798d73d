"""Style sheet of a page: one column on a phone, two on a desktop, two sheets of paper in print."""

from plimsoll.report.page.palette import DARK, LIGHT, SERIES, variables

_SERIES = "\n".join(
    f".curve.{name} {{ stroke: var(--{name}); }} .dot.{name}, .bar.{name} {{ fill: var(--{name}); }}" for name in SERIES
)

STYLE = f"""
:root {{ color-scheme: light dark; {variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
main, header, footer {{ max-width: 1060px; margin: 0 auto; padding: 0 16px; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: 28px 0 4px; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.2rem; margin: 36px 0 10px; border-top: 2px solid var(--rule); padding-top: 14px; }}
h3 {{ font-size: 1rem; margin: 0 0 4px; }}
p {{ margin: 6px 0 10px; max-width: 75ch; overflow-wrap: anywhere; }}
a {{ color: var(--one); }}
:focus-visible {{ outline: 3px solid var(--two); outline-offset: 2px; }}
.quiet, figcaption, caption, summary, .legend {{ color: var(--quiet); }}
.verdict {{ font-size: 1.1rem; }}
.over {{ color: var(--line); font-weight: 600; }}
.skip {{ position: absolute; left: -999px; }}
.skip:focus {{ left: 8px; top: 8px; background: var(--page); padding: 6px; }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; margin: 16px 0; }}
.facts div {{ background: var(--panel); border-radius: 6px; padding: 8px 12px; }}
.facts dt {{ color: var(--quiet); font-size: .85rem; }}
.facts dd {{ margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 20px 28px; }}
.pair > * {{ min-width: 0; }}
figure {{ margin: 0; }}
figure svg[role] {{ width: 100%; height: auto; display: block; }}
figcaption {{ font-size: .9rem; margin-top: 4px; }}
svg text {{ font: 12.5px system-ui, sans-serif; fill: var(--quiet); font-variant-numeric: tabular-nums; }}
svg text.label {{ font-size: 12.5px; fill: var(--ink); }}
svg text.on.line {{ fill: var(--line); font-weight: 600; }}
.grid {{ stroke: var(--rule); fill: none; }}
.curve {{ fill: none; stroke-width: 1.6; stroke-linejoin: round; }}
.level.line {{ fill: none; stroke: var(--line); stroke-width: 2.2; }}
.fill {{ fill: var(--faint); opacity: .55; }}
{_SERIES}
.legend {{ list-style: none; margin: 0 0 4px; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 16px; }}
.legend {{ font-size: .85rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
caption {{ text-align: left; font-size: .85rem; padding-bottom: 4px; }}
th, td {{ padding: 3px 12px 3px 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }}
th {{ font-weight: 600; }} thead th {{ color: var(--quiet); font-weight: 400; vertical-align: bottom; }}
tbody th {{ font-weight: 400; }}
th:first-child, td.words, th.words {{ text-align: left; }}
td {{ white-space: nowrap; }}
td.words {{ white-space: normal; overflow-wrap: anywhere; min-width: 11ch; }}
tr.sum th, tr.sum td {{ font-weight: 600; }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
.bars {{ display: block; width: 100%; min-width: 70px; height: 18px; }}
.bar {{ fill: var(--one); }} .bar.room {{ fill: var(--rule); }}
.bar.predicted {{ fill: none; stroke: var(--ink); stroke-width: 1.4; }}
dl.levers {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 8px 0; }}
dl.levers dt {{ color: var(--quiet); }} dl.levers dd {{ margin: 0; overflow-wrap: anywhere; }}
pre {{ background: var(--panel); border-radius: 6px; padding: 10px 12px; overflow-x: auto; margin: 6px 0 12px; }}
pre {{ font-size: .85rem; }}
pre.wrapped {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
pre.sample {{ max-height: 20em; overflow: auto; }}
.grids {{ display: flex; flex-wrap: wrap; align-items: start; gap: 16px 36px; }}
.whole {{ grid-column: 1 / -1; }}
h4 {{ font-size: .9rem; margin: 4px 0; font-weight: 400; }}
.grids pre {{ display: inline-block; margin: 4px 10px 4px 0; line-height: 1.25; }}
summary {{ cursor: pointer; font-size: .85rem; padding: 3px 0; }}
footer {{ margin-top: 40px; padding-bottom: 30px; font-size: .85rem; color: var(--quiet); }}
@media (max-width: 560px) {{
  body {{ font-size: 15px; }}
  dl.levers {{ grid-template-columns: minmax(0, 8.5em) 1fr; gap: 2px 10px; font-size: .9rem; }}
  dl.levers dt {{ overflow-wrap: anywhere; }}
  .facts {{ grid-template-columns: 1fr 1fr; }}
  table {{ font-size: .84rem; }} th, td {{ padding-right: 7px; }} td:has(> .bars) {{ display: none; }}
  svg text, svg text.label {{ font-size: 15px; }}
}}
@media print {{
  :root {{ {variables(LIGHT)} }}
  @page {{ size: A4; margin: 11mm; }}
  body {{ font-size: 8.6px; line-height: 1.35; }}
  main, header, footer {{ max-width: none; padding: 0; }}
  h1 {{ font-size: 15px; margin: 0; }}
  h2 {{ font-size: 10.5px; margin: 8px 0 3px; padding-top: 3px; border-width: 1px; }}
  h3 {{ font-size: 9px; }} p {{ margin: 2px 0 3px; max-width: none; }}
  .verdict, .facts dd {{ font-size: 9.5px; }}
  .facts {{ grid-template-columns: repeat(6, 1fr); gap: 4px; margin: 5px 0; }} .facts div {{ padding: 2px 5px; }}
  .facts dt, figcaption, caption, table, pre, .legend, footer {{ font-size: 8px; }}
  .pair {{ grid-template-columns: repeat(3, 1fr); gap: 6px 10px; }} .pair.wide {{ grid-template-columns: 1fr 1.3fr; }}
  th, td {{ padding: 0 6px 0 0; }} .bars {{ height: 9px; min-width: 50px; }}
  pre {{ padding: 3px 5px; margin: 2px 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
  figure, .facts div, pre, tr, .grids > *, dl.levers, .beside {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
  details, .skip {{ display: none; }} .scroll {{ overflow: visible; }}
  pre.sample {{ max-height: 12em; overflow: hidden; }}
  .grids {{ gap: 4px 14px; }} footer {{ margin-top: 6px; padding: 0; }}
  * {{ -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
}}
"""
