"""How pages look: light and dark as the reader's system is, narrow and wide, and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2024; --faint: #5b6470; --rule: #d5dae0; --stripe: #f4f6f8;
  --series-0: #12703f; --series-1: #005a9c; --series-2: #94246d; --series-3: #9a4a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e9ec; --faint: #a0a9b4; --rule: #343b43; --stripe: #1c2126;
    --series-0: #4fd38f; --series-1: #62b6f5; --series-2: #ec92cc; --series-3: #f2a654;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif;
}
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .2rem 0; color: var(--faint); overflow-wrap: anywhere; max-width: 60rem; }
figure { margin: 1rem 0 0; break-inside: avoid; }
svg { display: block; width: 100%; max-width: 60rem; height: auto; }
svg text { font-size: 13px; fill: var(--ink); }
svg .tick, svg .limit { fill: var(--faint); }
svg .letter {
  font-weight: 700; text-anchor: middle; dominant-baseline: central;
  paint-order: stroke; stroke: var(--paper); stroke-width: 3px;
}
svg .limit { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--faint); stroke-width: 1.2; }
svg .curve { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .achieved, svg .estimated { stroke: var(--faint); stroke-dasharray: 6 5; }
svg .mark { fill-opacity: .45; stroke-width: 1.5; }
.series-0 { fill: var(--series-0); stroke: var(--series-0); color: var(--series-0); }
.series-1 { fill: var(--series-1); stroke: var(--series-1); color: var(--series-1); }
.series-2 { fill: var(--series-2); stroke: var(--series-2); color: var(--series-2); }
.series-3 { fill: var(--series-3); stroke: var(--series-3); color: var(--series-3); }
svg .curve[class*="series"] { fill: none; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: .5rem 0; padding: 0; }
.key { list-style: none; font-size: .9rem; }
.key svg { display: inline-block; width: 1.6rem; height: .9rem; vertical-align: -.1rem; }
.wide { overflow-x: auto; margin: .3rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem .22rem 0; text-align: left; white-space: nowrap; }
th:not(:first-child), td:not(:first-child) { padding-left: .2rem; }
th { color: var(--faint); font-weight: 500; border-bottom: 1px solid var(--rule); }
td { max-width: 24rem; overflow: hidden; text-overflow: ellipsis; }
tbody tr:nth-child(even) { background: var(--stripe); }
th a { color: inherit; text-decoration: underline dotted; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; max-width: 60rem; }
dt { font-weight: 600; }
dd { margin: 0; color: var(--faint); }
tfoot td { font-weight: 700; border-top: 1px solid var(--rule); }
.number { text-align: right; }
.code { font-family: ui-monospace, monospace; font-size: .95em; white-space: pre; }
@media (max-width: 40rem) {
  body { padding: 1rem .8rem 2rem; font-size: 15px; }
  svg text { font-size: 20px; }
  table { font-size: .8rem; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --ink: #000000; --faint: #444444; --rule: #bbbbbb; --stripe: #ffffff;
    --series-0: #12703f; --series-1: #005a9c; --series-2: #94246d; --series-3: #9a4a00;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide { overflow: visible; }
  th, td { white-space: normal; overflow-wrap: anywhere; }
  tr { break-inside: avoid; }
}
"""
