"""The shell of a self-contained page: typography, the script that draws, and no network at all."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedtrees.report.markup import Html, esc

CSS = """
:root { color-scheme: light; --ink: #1b1f24; --muted: #5b6470; --rule: #d9dde3; --faint: #f5f7f9;
  --accent: #0b5cad; --warn: #8a3b00; }
* { box-sizing: border-box; }
html { scroll-padding-top: 4rem; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 Inter, "Source Sans 3",
  "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; }
main, header.top, footer { max-width: 80rem; margin: 0 auto; padding: 0 1.5rem; }
header.top { padding-top: 2.75rem; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .35rem; }
h2 { font-size: 1.4rem; line-height: 1.25; letter-spacing: -.01em; margin: 3.25rem 0 .5rem;
  padding-top: 1.25rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 1.9rem 0 .5rem; }
h4 { font-size: .95rem; margin: 0 0 .2rem; font-weight: 600; }
h1, h2, h3, h4, caption, figcaption, .facts, .note { overflow-wrap: anywhere; }
p, ul { max-width: 46rem; margin: .5rem 0 .8rem; }
p.lede { color: var(--muted); }
a { color: var(--accent); }
a:focus-visible, select:focus-visible, button:focus-visible, summary:focus-visible,
.scroll:focus-visible { outline: 3px solid #7db8f0; outline-offset: 2px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 1rem; top: 1rem; background: #fff; padding: .5rem; z-index: 10; }
.facts { color: var(--muted); margin: 0 0 1rem; max-width: none; }
nav.bar { position: sticky; top: 0; background: rgba(255,255,255,.97); z-index: 5;
  border-bottom: 1px solid var(--rule); }
nav.bar > div { max-width: 80rem; margin: 0 auto; padding: .5rem 1.5rem; display: flex;
  flex-wrap: wrap; gap: .3rem 1rem; align-items: center; font-size: .875rem; }
nav.bar a { text-decoration: none; color: var(--ink); white-space: nowrap; }
nav.bar a:hover { color: var(--accent); text-decoration: underline; }
.filters { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; font-size: .875rem;
  margin: .8rem 0 0; }
select { font: inherit; padding: .15rem .3rem; border: 1px solid var(--rule); border-radius: 4px;
  background: #fff; color: var(--ink); max-width: 16rem; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr));
  gap: 1rem; }
.answer { background: var(--faint); border-left: 4px solid var(--ink); padding: .9rem 1.1rem; }
.answer h3 { margin: 0 0 .3rem; font-size: .9rem; color: var(--muted); font-weight: 600;
  overflow-wrap: anywhere; }
.answer h4 { margin: 1rem 0 .2rem; }
.answer > div + div { margin-top: 1rem; }
.answer p { margin: 0 0 .7rem; font-size: .95rem; overflow-wrap: anywhere; }
.answer p > strong:first-child { font-size: 1.05rem; line-height: 1.45; }
.answer ol, .answer ul { margin: .3rem 0 .2rem; padding-left: 1.3rem; font-size: .95rem;
  max-width: 46rem; }
.answer p.leak { font-size: 1.05rem; line-height: 1.45; font-weight: 600; }
abbr { text-decoration: underline dotted #8a94a1; text-underline-offset: .2em; cursor: help; }
a.term { color: inherit; text-decoration: none; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr));
  gap: 1.25rem 1.75rem; }
.scale { display: flex; gap: .5rem; align-items: center; font-size: .84rem; color: var(--muted); }
.scale .bar { width: 12rem; height: .7rem; border: 1px solid var(--rule); }
figure { margin: 0 0 .5rem; min-width: 0; }
figcaption { font-size: .875rem; color: var(--muted); max-width: 46rem; }
figcaption strong { color: var(--ink); font-size: .95rem; display: block; }
figure .after { font-size: .84rem; color: var(--muted); }
.chart { width: 100%; min-height: 23rem; }
.chart.free { min-height: 0; }
.wide { overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .5rem; margin: .6rem 0 1rem; font-size: .84rem;
  align-items: center; }
.legend button, .legend span.key { font: inherit; color: var(--ink); background: #fff;
  border: 1px solid var(--rule); border-radius: 999px; padding: .1rem .6rem; display: inline-flex;
  gap: .4rem; align-items: center; }
.legend button { cursor: pointer; }
.legend button[aria-pressed="false"] { opacity: .4; text-decoration: line-through; }
.legend span.key { border-color: transparent; padding-left: .1rem; color: var(--muted); }
.scroll { overflow-x: auto; margin: .4rem 0 1.5rem; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.35; min-width: 100%; }
caption { text-align: left; font-weight: 600; font-size: .92rem; padding: .3rem 0 .4rem; }
th, td { padding: .38rem .6rem .38rem 0; border-bottom: 1px solid #e8ebef; vertical-align: top;
  text-align: left; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; font-weight: 600; }
tbody th { font-weight: 600; white-space: nowrap; } tbody th.parts { white-space: normal; }
thead th.n { white-space: normal; }
td.free { min-width: 8rem; } td.prose { min-width: 17rem; } .nb { white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.front { background: #f1f6fb; } tr.base { background: var(--faint); }
small { color: var(--muted); font-size: .92em; } td small, th small { display: block;
  font-weight: 400; font-size: .88em; }
.warn, .note { border-left: 3px solid #d9822b; background: #fff8ef; padding: .5rem .8rem;
  max-width: 46rem; margin: .6rem 0; font-size: .92rem; color: #4d2a00; }
td.bad, .badtext { color: var(--warn); }
.chip { display: inline-block; border: 1px solid var(--rule); border-radius: 3px; padding: 0 .35rem;
  margin: 0 .2rem .1rem 0; font-size: .8rem; white-space: nowrap; }
.chip.hot { background: #fdebd8; border-color: #efc79c; }
pre { background: var(--faint); padding: .8rem 1rem; overflow-x: auto; font-size: .82rem;
  line-height: 1.45; }
code, pre { font-family: "JetBrains Mono", "Source Code Pro", Menlo, Consolas, "Liberation Mono",
  monospace; }
details { margin: .5rem 0; } summary { cursor: pointer; font-size: .9rem; }
dl { max-width: 50rem; } dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0 0 0 1.2rem; }
footer { color: var(--muted); font-size: .85rem; padding: 2.5rem 1.5rem 3rem; }
[hidden] { display: none !important; }
@media (max-width: 44rem) { body { font-size: 15px; } h1 { font-size: 1.6rem; }
  main, header.top, footer, nav.bar > div { padding-left: 1rem; padding-right: 1rem; }
  nav.bar { position: static; } .scale .bar { width: 7rem; flex-shrink: 1; }
  /* A wide table is a card per line: what a cell is stands beside it, and nothing is cut. */
  .scroll table, .scroll caption, .scroll tbody, .scroll tr { display: block; }
  .scroll thead { display: none; } .scroll tr { padding: .5rem .4rem; }
  .scroll tr + tr { border-top: 1.5px solid var(--rule); }
  .scroll tbody th, .scroll td { display: flow-root; padding: .15rem 0; border: 0; min-width: 0;
    white-space: normal; overflow-wrap: anywhere; text-align: left; }
  .scroll td { text-align: right; } .scroll td:empty { display: none; }
  .scroll .nb { white-space: normal; }
  .scroll td::before { content: attr(data-head); color: var(--muted); float: left;
    max-width: 50%; margin-right: 1rem; text-align: left; }
  .scroll td.prose, .scroll td.free { text-align: left; } .scroll td.prose::before { float: none;
    display: block; max-width: none; } }
@media print { body { font-size: 10.5pt; } nav.bar, .filters, .skip { display: none; }
  main, header.top, footer { max-width: none; padding: 0; } h2 { break-after: avoid; }
  figure, .answer, tr { break-inside: avoid; } .scroll, .wide { overflow: visible; }
  .grid { grid-template-columns: 1fr 1fr; gap: .5rem; } .wide .chart { min-width: 0 !important; }
  table { font-size: 7.5pt; } a { color: inherit; text-decoration: none; } }
"""

SCRIPT = """
"use strict";
(() => {
  const root = document.documentElement;
  const failed = [];
  const fail = (what) => { failed.push(String(what)); root.dataset.errors = failed.join(" | "); };
  window.addEventListener("error", (e) => fail(e.message));
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = { displayModeBar: false, responsive: true, displaylogo: false };
  const boxes = [...document.querySelectorAll(".chart")];
  const hiddenGroups = new Set();
  let metric = null;

  function figureOf(box) {
    const variants = charts[box.dataset.chart];
    return variants[metric] || variants[Object.keys(variants)[0]];
  }
  function draw(box) {
    try {
      const figure = structuredClone(figureOf(box));
      for (const trace of figure.data)
        if (hiddenGroups.has(trace.legendgroup)) trace.visible = false;
      return Plotly.react(box, figure.data, figure.layout, config);
    } catch (error) {
      fail(error);
      box.className = "note";
      box.textContent = "This figure could not be drawn (" + error + "); see the tables.";
    }
  }
  const waiting = boxes.slice();
  function next() {
    const box = waiting.shift();
    if (!box) { root.dataset.drawn = "yes"; return; }
    draw(box);
    setTimeout(next, 0);
  }

  const chooser = document.getElementById("metric");
  if (chooser) chooser.addEventListener("change", () => {
    metric = chooser.value;
    document.querySelectorAll("#frontier .chart").forEach(draw);
  });
  document.querySelectorAll(".legend button").forEach((button) => {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      const group = button.dataset.group;
      if (on) hiddenGroups.delete(group); else hiddenGroups.add(group);
      document.querySelectorAll("#frontier .chart").forEach(draw);
    });
  });
  const filters = [...document.querySelectorAll("select[data-filter]")];
  function filter() {
    document.querySelectorAll("[data-place]").forEach((block) => {
      const place = JSON.parse(block.dataset.place);
      block.hidden = filters.some((f) => f.value !== "" && f.dataset.filter in place
        && place[f.dataset.filter] !== f.value);
    });
    boxes.forEach((box) => { if (box.offsetParent && box.data) Plotly.Plots.resize(box); });
  }
  filters.forEach((f) => { f.value = ""; f.addEventListener("change", filter); });
  if (chooser) chooser.selectedIndex = 0;
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
    boxes.forEach((box) => { if (box.data) Plotly.Plots.resize(box); });
  });
  document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", () => {
    d.querySelectorAll(".chart").forEach((box) => { if (box.data) Plotly.Plots.resize(box); });
  }));
  next();
})();
"""


def page(title: str, body: Html, charts: Mapping[str, Mapping[str, str]]) -> str:
    """Return one HTML document that loads nothing from anywhere.

    `charts`: Chart id -> variant -> plotly figure as JSON text; ``<div class="chart"
    data-chart="id">`` is where it is drawn.
    """
    from plotly.offline import get_plotlyjs

    scripts = [get_plotlyjs(), SCRIPT] if charts else []
    allowed = " ".join(f"'sha256-{_sha256(s)}'" for s in scripts) or "'none'"
    # Even a name that slipped through escaping can neither run nor fetch anything.
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{esc(title)}</title>",
        f"<style>{CSS}</style>\n</head>\n<body>",
        body,
    ]
    if charts:
        parts.append(f'<script type="application/json" id="charts">{_data(charts)}</script>')
        parts += [f"<script>{s}</script>" for s in scripts]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _sha256(script: str) -> str:
    # A browser hashes the text after turning CRLF into LF.
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(charts: Mapping[str, Mapping[str, str]]) -> str:
    loaded: dict[str, dict[str, Any]] = {
        name: {variant: json.loads(text) for variant, text in variants.items()}
        for name, variants in charts.items()
    }
    text = json.dumps(loaded, separators=(",", ":"))
    # Nothing inside may end the script element.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
