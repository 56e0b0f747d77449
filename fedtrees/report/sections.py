"""The sections of the report that are mostly figures, and the verdict: frontier, leaks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedtrees.core.columns import measure
from fedtrees.report import leaks, style
from fedtrees.report.claims import KINDS
from fedtrees.report.frontier import Frontier
from fedtrees.report.frontier_figure import advantage_limits, draw_frontier
from fedtrees.report.grid_figure import draw_heatmap
from fedtrees.report.markup import Html, esc, join, table, tag
from fedtrees.report.rows import UNDEFENDED, Panel, Setting
from fedtrees.report.sentences import Side
from fedtrees.report.study import Study
from fedtrees.report.table_text import told_of
from fedtrees.report.web import esc as plotly_esc


@dataclass
class Charts:
    """The figures of a page, collected while its sections are written."""

    figures: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, variants: dict[str, str], about: str, columns: int | None = None) -> Html:
        """Keep a figure (variant -> JSON) and return the element it is drawn in.

        A figure with `columns` sets its own height and scrolls where they do not fit.
        """
        name = f"chart-{len(self.figures)}"
        self.figures[name] = variants
        kind, width = "chart", None
        if columns is not None:
            kind, width = "chart free", f"min-width: {9 + 5.4 * columns:g}rem"
        return tag("div", class_=kind, data_chart=name, role="img", aria_label=about, style=width)


def place(setting: Setting, threat: str | None = None) -> str:
    """Return what the filters compare a block with."""
    found = {"dataset": setting.dataset, "partition": setting.partition,
             "protocol": setting.protocol}  # fmt: skip
    return json.dumps(found | ({"threat": threat} if threat is not None else {}))


def lede(study: Study, text: str) -> Html:
    """Return the paragraph that begins a section, its words explained."""
    return tag("p", study.explained(text), class_="lede")


def verdict(study: Study, charts: Charts) -> Html:
    """Say in sentences who reads what, what stops it, what to do, and what is open."""
    said = study.verdict
    if not said.settings:
        return tag("p", "No attack has run yet, so there is nothing to answer.", class_="note")
    blocks = []
    for advice in said.settings:
        seen: set[str] = set()
        sides = join(_side(study, side, seen) for side in advice.sides)
        steps = join(tag("li", study.explained(step, seen)) for step in advice.steps)
        todo = [tag("h4", "What to do, in order"), tag("ol", steps)] if advice.steps else []
        blocks.append(
            tag("article", tag("h3", advice.setting), sides, *todo, class_="answer",
                data_place=place(advice.setting))
        )  # fmt: skip
    boxes = tag("div", join(blocks), class_="answers")
    return join([boxes, tag("p", study.explained(said.note), class_="lede")])


def _side(study: Study, side: Side, seen: set[str]) -> Html:
    """Write what one adversary reads, and in a list what every defense does about it."""
    first, *others = (study.explained(text, seen) for text in side.sentences)
    rest = join(tag("li", text) for text in others)
    where = place(side.panel.setting, side.panel.threat)
    return tag("div", tag("p", tag("strong", first)), tag("ul", rest), data_place=where)


def frontier(study: Study, charts: Charts) -> Html:
    """Draw one panel per threat, panels of one setting side by side on one scale."""
    others = {m: {f.panel: f for f in study.in_metric(m)} for m in study.other_metrics}
    parts = [
        lede(
            study,
            "Right and down is better. Bars: 95% bootstrap intervals over seeds; faint marks: "
            "single seeds; thin lines join the budgets of one defense; the wide grey line joins "
            "the points that are not dominated. A ring about a mark is a defense in its place. Of "
            "hollow points an applicable attack is missing.",
        ),
        _metric_chooser(study),
        _legend(study),
    ]
    shown = (*study.over_budgets, *study.frontiers)
    for setting in dict.fromkeys(f.panel.setting for f in shown):
        mine = [f for f in shown if f.panel.setting == setting]
        body = join(_panel(study, charts, f, mine, others) for f in mine)
        block = join([tag("h3", setting), tag("div", body, class_="grid")])
        parts.append(tag("div", block, data_place=place(setting)))
    return join(parts)


def _panel(
    study: Study,
    charts: Charts,
    data: Frontier,
    beside: Sequence[Frontier],
    others: dict[str, dict[Panel, Frontier]],
) -> Html:
    variants = {data.metric: _frontier_json(study, data, beside)} if data.drawn else {}
    for metric, by_panel in others.items():
        if data.panel in by_panel:
            group = [by_panel[f.panel] for f in beside if f.panel in by_panel]
            variants[metric] = _frontier_json(study, by_panel[data.panel], group)
    notes = [f"{p.defense}: {p.note}" for p in data.points if not p.drawn]
    hollow = [f"{p.defense}: {p.coverage}" for p in data.drawn if p.hollow]
    about = (
        f"{data.panel}: {measure(data.utility).name} against worst-case advantage "
        f"({data.metric}) of {len(data.drawn)} defenses; numbers in the leaderboard"
    )
    title = tag("figcaption", tag("strong", f"Threat: {data.panel.threat}"))
    after = tag("div", _listed("Not drawn", notes), _listed("Hollow", hollow), class_="after")
    empty = tag("p", "No point to draw.", class_="note")
    chart = charts.add(variants, about) if variants else empty
    where = place(data.panel.setting, data.panel.threat)
    return tag("figure", title, chart, after, data_place=where)


def _frontier_json(study: Study, data: Frontier, beside: Sequence[Frontier]) -> str:
    return draw_frontier(data, study.colours, advantage_limits(beside)).json()


def _listed(title: str, lines: Sequence[str]) -> Html:
    if not lines:
        return Html("")
    if len(lines) <= 2:
        return tag("div", f"{title}: {'; '.join(lines)}.")
    inside = tag("ul", join(tag("li", line) for line in lines))
    return tag("details", tag("summary", f"{title}: {len(lines)} points"), inside)


def _metric_chooser(study: Study) -> Html:
    shown = list(dict.fromkeys(f.metric for f in study.frontiers))
    names = [*shown, *study.other_metrics]
    if len(names) < 2:
        return Html("")
    options = join(tag("option", f"{measure(m).name} ({m})", value=m) for m in names)
    label = tag("label", "Leak measured by ", tag("select", options, id="metric"))
    return tag("p", label, class_="filters")


def _legend(study: Study) -> Html:
    drawn = [p for f in (*study.over_budgets, *study.frontiers) for p in f.drawn]
    used = {p.family for p in drawn}
    buttons = [
        tag(
            "button",
            marker("circle", colour),
            "undefended" if name == UNDEFENDED else name,
            type="button",
            aria_pressed="true",
            data_group=plotly_esc(name),
            title="show or hide in every panel",
        )
        for name, (colour, _) in study.colours.items()
        if name in used
    ]
    kinds = {p.kind for p in drawn}
    keys = [
        tag("span", marker(style.SHAPES[k][0], style.MUTED), KINDS[k], class_="key")
        for k in KINDS
        if k in kinds
    ]
    if any(p.hollow for p in drawn):
        hollow = marker("circle", style.MUTED, hollow=True)
        keys.append(tag("span", hollow, "an applicable attack is missing", class_="key"))
    return tag("div", join([*buttons, *keys]), class_="legend")


_PATHS = {
    "circle": '<circle cx="7" cy="7" r="5"/>',
    "square": '<rect x="2.5" y="2.5" width="9" height="9"/>',
    "diamond": '<path d="M7 1 13 7 7 13 1 7z"/>',
    "triangle-up": '<path d="M7 1.5 13 12 1 12z"/>',
    "x": '<path d="M4 1 7 4 10 1 13 4 10 7 13 10 10 13 7 10 4 13 1 10 4 7 1 4z"/>',
    "pentagon": '<path d="M7 1 13 5.4 10.7 12.5 3.3 12.5 1 5.4z"/>',
}


def marker(symbol: str, colour: str, hollow: bool = False) -> Html:
    """Return a marker as an inline image, for legends and tables."""
    fill = "none" if hollow else colour
    return Html(
        f'<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" fill="{esc(fill)}" '
        f'stroke="{esc(colour)}" stroke-width="1.6">{_PATHS[symbol]}</svg>'
    )


def heatmaps(study: Study, charts: Charts) -> Html:
    """Show every attack under every threat against every defense."""
    metrics = {f.panel.setting: [f.metric] for f in reversed(study.frontiers)}
    for f, board in study.boards:
        told, mine = told_of(board), metrics[f.panel.setting]
        if told is not None and told.key not in mine:
            mine.append(told.key)
    grids = {
        s: [leaks.leak_grid(study.rows, s, metric) for metric in metrics[s]]
        for s in study.settings
        if s in metrics
    }
    limit = leaks.limit(grid for several in grids.values() for grid in several)
    parts = [
        lede(
            study,
            "Advantage over blind, mean over seeds: white is blind, orange leaks, blue is worse "
            "than not attacking. A row is a threat and an attack. An asterisk marks a mean over "
            "the seeds that finished; n/a is an attack that does not apply.",
        ),
        _scale(limit),
    ]
    for setting, several in grids.items():
        body = join(_grid(charts, grid, limit, "threat and attack") for grid in several)
        parts.append(tag("div", join([tag("h3", setting), body]), data_place=place(setting)))
    return join(parts)


def features(study: Study, charts: Charts) -> Html:
    """Show which columns leak, worst attack per feature."""
    grids = {f.panel: leaks.feature_grid(study.rows, f.panel, f.metric) for f in study.frontiers}
    grids = {panel: g for panel, g in grids.items() if g.rows}
    if not grids:
        return tag("p", "No attack of this run reports scores per feature.", class_="note")
    limit = leaks.limit(grids.values())
    about = lede(study, "Worst advantage on each column; columns that the undefended run leaks "
                 "most come first.")  # fmt: skip
    blocks = []
    for p, g in grids.items():
        body = join([tag("h3", p), _grid(charts, g, limit, "feature")])
        blocks.append(tag("div", body, data_place=place(p.setting, p.threat)))
    return join([about, _scale(limit), *blocks])


def _grid(charts: Charts, grid: leaks.Grid, limit: float, first: str) -> Html:
    about = f"{grid.title}: advantage ({grid.metric}) per {first} and defense; table below"
    drawn = draw_heatmap(grid, limit).json()
    chart = charts.add({"": drawn}, about, columns=len(grid.columns))
    lines = [
        [row, *map(_grid_cell, cells)] for row, cells in zip(grid.rows, grid.cells, strict=True)
    ]
    caption = f"{grid.title}: advantage ({grid.metric}), 95% interval; score and blind below"
    right = range(1, len(grid.columns) + 1)
    numbers = table(caption, [first, *grid.columns], lines, right)
    title = tag("h4", f"By {measure(grid.metric).name} ({grid.metric})")
    details = tag("details", tag("summary", "The same as a table"), numbers)
    return join([title, tag("div", chart, class_="wide"), details])


def _scale(limit: float) -> Html:
    """Return the colour key that every grid of a section shares."""
    stops = ", ".join(f"{colour} {100 * at:g}%" for at, colour in style.DIVERGING)
    bar = tag("span", class_="bar", style=f"background: linear-gradient(to right, {stops})")
    ends = (style.number(v, 2, signed=True) for v in (-limit, limit))
    low, high = (tag("span", e) for e in ends)
    return tag("div", "advantage ", low, bar, high, class_="scale", aria_hidden="true")


def _grid_cell(cell: leaks.Cell) -> Html:
    if cell.state != "ok":
        return esc(cell.state or "–")
    beside = tag("small", f"{style.number(cell.score)} vs {style.number(cell.blind)}")
    return join([style.interval(cell.advantage, 2, signed=True), beside])
