"""How a report looks: one style sheet, light or dark as the reader's system is.

Okabe and Ito's colours, told apart by the colour-blind, without yellow; brighter ones in the dark.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f7f8fa; --ink: #1c2330; --soft: #5a6475; --rule: #dfe3ea;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b8578f; --c4: #c98500; --c5: #3b9bd6;
  --c6: #444444;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --card: #1c2027; --ink: #e7eaf0; --soft: #a3adbd; --rule: #353c48;
    --c0: #5ab4ee; --c1: #ff8f57; --c2: #35cf9f; --c3: #ee9fca; --c4: #f3bb45; --c5: #97d3f8;
    --c6: #cccccc;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 0 0 .35rem; }
p { margin: .4rem 0 .9rem; max-width: 50rem; }
.soft, caption, figcaption { color: var(--soft); font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.card {
  background: var(--card); border: 1px solid var(--rule); border-radius: .7rem;
  padding: 1rem 1.2rem; margin: 0 0 1.1rem;
}
.card ul { margin: 0; padding-left: 1.2rem; } .card li { margin: .35rem 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr));
  gap: 1.1rem; margin: 0 0 1.4rem; }
figure.card { max-width: 46rem; } .grid .card { margin: 0; max-width: none; }
.scroll { overflow-x: auto; margin: 0 0 1.1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; padding: 0 0 .45rem; }
th, td { padding: .38rem .8rem; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
thead th { font-weight: 600; font-size: .88rem; color: var(--soft); vertical-align: bottom; }
tbody th { font-weight: 600; white-space: nowrap; }
.n { text-align: right; white-space: nowrap; } thead .n { white-space: normal; }
td.best { font-weight: 700; }
tr:last-child > * { border-bottom: 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .name { font-size: 12px; } svg .who { font-size: 13px; fill: var(--ink); font-weight: 600; }
svg .value { font-size: 12.5px; fill: var(--ink); }
line.grid { stroke: var(--rule); stroke-width: 1; }
line.axis { stroke: var(--soft); stroke-width: 1; }
line.border { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dot { stroke: var(--card); stroke-width: 1; } .faint { opacity: .45; } .band { opacity: .16; }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: 0 0 .5rem; font-size: .88rem; }
.key span { display: inline-flex; align-items: center; gap: .35rem; }
.key svg, th svg { width: 14px; height: 14px; flex: none; display: inline-block;
  vertical-align: -2px; margin-right: .3rem; }
.key svg { margin: 0; }
.given { color: var(--soft); } .text { white-space: pre-wrap; overflow-wrap: anywhere; }
.samples th { width: 11rem; } .samples td { min-width: 14rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
@media (max-width: 34rem) {
  figure.card { overflow-x: auto; } svg[role] { min-width: 26rem; }
  .samples th, .samples td { display: block; width: auto; min-width: 0; }
  .samples th { border-bottom: 0; padding-bottom: 0; }
}
@media print {
  body { max-width: none; padding: 0; } .card { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""

COLOURED = "".join(
    f".c{i}.dot, .c{i}.faint, .c{i}.band {{ fill: var(--c{i}); }} "
    f".c{i}.line {{ stroke: var(--c{i}); }}\n"
    for i in range(7)
)
