"""Interactive figures: data of `frontier`, `leaks` and `tables` in, plotly figures out."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedtrees.report import style
from fedtrees.report.claims import KINDS
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.intervals import Estimate
from fedtrees.report.leaks import Grid, matrix
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.tables import Cost

if TYPE_CHECKING:  # plotly is slow to import: only where a figure is made
    import plotly.graph_objects as go

FONT = "Inter, 'Source Sans 3', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"


def frontier(
    data: Frontier,
    colours: dict[str, tuple[str, str]] | None = None,
    limits: tuple[float, float] | None = None,
    legend: bool = True,
) -> go.Figure:
    """Draw utility against worst-case advantage.

    Parameters
    ----------
    data : Frontier
    colours : dict, optional
        From `style.palette`; give it to keep colours equal across panels.
    limits : (float, float), optional
        Range of the advantage axis, to make panels comparable.
    legend : bool
        Whether the figure carries its own legend.
    """
    import plotly.graph_objects as go

    colours = colours or style.palette(p.family for p in data.points)
    fig = go.Figure(layout=_layout())
    low, high = utility_limits(data)
    y_low, y_high = limits or advantage_limits([data])
    notes = [_blind_note(y_low), *_reference_notes(data, low, high)]
    notes += [note for p in data.drawn for note in _label(p, data, colours[p.family][0])]
    _front_line(fig, data)
    for line in data.lines:
        _budget_line(fig, [data.point(d) for d in line], colours)
    for family in dict.fromkeys(p.family for p in data.drawn):
        _family(fig, [p for p in data.drawn if p.family == family], colours[family])
    if legend:
        _legend_of_shapes(fig, data)
    lower = data.utility in LOWER_IS_BETTER
    name = style.metric_name(data.utility) + (" (lower is better; axis reversed)" if lower else "")
    fig.update_xaxes(title_text=name, range=[high, low] if lower else [low, high])
    fig.update_yaxes(title_text=f"worst-case advantage, {data.metric}", range=[y_low, y_high])
    # Written at once: plotly copies the whole list for every shape or annotation added singly.
    fig.update_layout(
        showlegend=legend,
        hovermode="closest",
        shapes=_blind_shapes(y_low) + _reference_shapes(data, low, high),
        annotations=notes,
    )
    return fig


def _layout() -> dict[str, Any]:
    axis = {
        "showgrid": True, "gridcolor": "#eef0f3", "zeroline": False, "linecolor": style.RULE,
        "showline": True, "ticks": "outside", "tickcolor": style.RULE, "ticklen": 4,
        "automargin": True, "title": {"standoff": 8},
    }  # fmt: skip
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": style.INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 56, "r": 16, "t": 26, "b": 48},
        "xaxis": axis,
        "yaxis": axis,
        "legend": {"orientation": "h", "y": -0.22, "x": 0, "font": {"size": 12}},
        "hoverlabel": {"bgcolor": "white", "bordercolor": style.RULE, "align": "left",
                       "font": {"family": FONT, "size": 12, "color": style.INK}},
    }  # fmt: skip


def utility_limits(data: Frontier) -> tuple[float, float]:
    """Return the range of the utility axis; a reference joins it only if it is near."""
    points = data.drawn
    low, high = style.utility_range(
        [(_ends(p.utility), [s.utility for s in p.seeds]) for p in points]
    )
    for _, e in data.references:
        if e.known and low - 0.35 * (high - low) < e.mean < high + 0.35 * (high - low):
            pad = 0.05 * (high - low)
            low, high = min(low, e.mean - pad), max(high, e.mean + pad)
    return low, high


def advantage_limits(panels: Sequence[Frontier]) -> tuple[float, float]:
    """Return one range of the advantage axis for several panels; zero is always inside."""
    points = [p for f in panels for p in f.drawn]
    pairs = [(_ends(p.advantage), [s.advantage for s in p.seeds]) for p in points]
    low, high = style.utility_range([*pairs, ([0.0], [0.05])])
    return low, high


def _ends(e: Estimate) -> list[float]:
    return [e.mean, e.low, e.high]


def _esc(text: str) -> str:
    """Make text harmless to plotly, which reads a subset of HTML in every label."""
    return html.escape(text, quote=False).replace("%{", "% {")


def group_name(family: str) -> str:
    """Return the legend group of a defense, by which a page shows or hides it."""
    return _esc(family)


def _note(text: str, **where: Any) -> dict[str, Any]:
    font = {"size": 11, "color": where.pop("color", style.MUTED)}
    return {"text": text, "showarrow": False, "font": font, **where}


def _line(dash: str, **where: Any) -> dict[str, Any]:
    line = {"color": style.MUTED, "width": 1.3, "dash": dash}
    return {"type": "line", "layer": "below", "line": line, **where}


def _blind_shapes(bottom: float) -> list[dict[str, Any]]:
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": bottom, "y1": 0,
            "layer": "below", "fillcolor": "#f1f5f3", "line": {"width": 0}}  # fmt: skip
    return [band, _line("dash", xref="paper", x0=0, x1=1, y0=0, y1=0)]


def _blind_note(bottom: float) -> dict[str, Any]:
    text = "below the dashed line: no more than blind"
    return _note(text, xref="paper", x=1, y=bottom, xanchor="right", yanchor="bottom")


def _near(data: Frontier, low: float, high: float) -> list[tuple[str, float]]:
    known = [(_esc(name), e.mean) for name, e in data.references if e.known]
    return [(name, mean) for name, mean in known if low <= mean <= high]


def _reference_shapes(data: Frontier, low: float, high: float) -> list[dict[str, Any]]:
    near = _near(data, low, high)
    return [_line("dot", x0=x, x1=x, yref="paper", y0=0, y1=1) for _, x in near]


def _reference_notes(data: Frontier, low: float, high: float) -> list[dict[str, Any]]:
    near = _near(data, low, high)
    top = {"yref": "paper", "y": 1, "yanchor": "bottom"}
    notes = [_note(name, x=x, xanchor="center", **top) for name, x in near]
    far = [
        f"{_esc(name)} {style.number(e.mean)}"
        for name, e in data.references
        if e.known and not low <= e.mean <= high
    ]
    if far:
        text = "off the axis: " + ", ".join(far)
        notes.append(_note(text, xref="paper", x=0, xanchor="left", **top))
    return notes


def _front_line(fig: go.Figure, data: Frontier) -> None:
    points = [p for p in map(data.point, data.front) if p]
    fig.add_scatter(
        x=[p.utility.mean for p in points], y=[p.advantage.mean for p in points], mode="lines",
        line={"color": "#d5dae1", "width": 7}, name="non-dominated", hoverinfo="skip",
        legendgroup="front", legendrank=2000,
    )  # fmt: skip


def _budget_line(
    fig: go.Figure, points: list[Point | None], colours: dict[str, tuple[str, str]]
) -> None:
    kept = [p for p in points if p]
    colour, dash = colours[kept[0].family]
    fig.add_scatter(
        x=[p.utility.mean for p in kept], y=[p.advantage.mean for p in kept], mode="lines",
        line={"color": colour, "width": 1.3, "dash": dash}, opacity=0.7, hoverinfo="skip",
        showlegend=False, legendgroup=_esc(kept[0].family),
    )  # fmt: skip


def _family(fig: go.Figure, points: list[Point], look: tuple[str, str]) -> None:
    """Draw one defense: its seeds faintly, then its means with error bars."""
    colour = look[0]
    seeds = [(p, s) for p in points for s in p.seeds]
    group = _esc(points[0].family)
    fig.add_scatter(
        x=[s.utility for _, s in seeds], y=[s.advantage for _, s in seeds], mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.28,
                "symbol": [style.SHAPES[p.kind][0] for p, _ in seeds]},
        hoverinfo="skip", showlegend=False, legendgroup=group,
    )  # fmt: skip
    fig.add_scatter(
        x=[p.utility.mean for p in points], y=[p.advantage.mean for p in points], mode="markers",
        error_x=_bars([p.utility for p in points], colour),
        error_y=_bars([p.advantage for p in points], colour),
        marker={"color": [("white" if p.hollow else colour) for p in points], "size": 11,
                "symbol": [style.SHAPES[p.kind][0] for p in points],
                "line": {"color": colour, "width": 2}},
        customdata=[_hover(p) for p in points],
        hovertemplate="%{customdata}<extra></extra>",
        name="undefended" if group == UNDEFENDED else group, legendgroup=group,
    )  # fmt: skip


def _bars(estimates: list[Estimate], colour: str) -> dict[str, Any]:
    def gap(a: float, b: float) -> float:
        return a - b if math.isfinite(a - b) else 0.0

    return {
        "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour,
        "array": [gap(e.high, e.mean) for e in estimates],
        "arrayminus": [gap(e.mean, e.low) for e in estimates],
    }  # fmt: skip


def _hover(p: Point) -> str:
    attacks = ", ".join(f"{a} ({n} of {p.advantage.n} seeds)" for a, n in p.attacks)
    lines = [
        f"<b>{_esc(p.defense)}</b>",
        f"utility {style.interval(p.utility)}, {p.utility.n} seeds",
        f"advantage {style.interval(p.advantage, signed=True)}, {p.advantage.n} seeds",
        f"score {style.number(p.score.mean)}, blind {style.number(p.blind.mean)}",
        f"strongest: {_esc(attacks)}",
        f"claim: {_esc(p.claimed) or 'not known'} ({KINDS[p.kind]})",
    ]
    if p.failed:
        lines.append(f"hollow, known only from below: {_esc('; '.join(p.failed))}")
    return "<br>".join(lines)


def _label(p: Point, data: Frontier, colour: str) -> list[dict[str, Any]]:
    """Name the undefended point and the budget at each end of a swept defense."""
    text = point_label(p, data)
    if not text:
        return []
    plain = text == "undefended"
    up = 14 if plain or not crowded_above(p, data) else -14
    side = {"xanchor": "right", "xshift": -6} if plain else {"xanchor": "center"}
    spot = {"x": p.utility.mean, "y": p.advantage.mean, "yshift": up}
    return [_note(_esc(text), **spot, **side, color=colour)]


def point_label(p: Point, data: Frontier) -> str:
    """Return what is written at a point: only the undefended one and the ends of a sweep."""
    if p.defense == UNDEFENDED:
        return "undefended"
    if p.defense in {line[i] for line in data.lines for i in (0, -1)}:
        name = {"epsilon": "ε", "xi": "ξ"}.get(p.budget.name, p.budget.name)
        return f"{name}={p.budget.value:g}"
    return ""


def crowded_above(p: Point, data: Frontier) -> bool:
    """Tell whether another point stands just above, where a label would run into it."""
    low, high = utility_limits(data)
    bottom, top = advantage_limits([data])
    return any(
        abs(o.utility.mean - p.utility.mean) < 0.08 * (high - low)
        and 0 < o.advantage.mean - p.advantage.mean < 0.2 * (top - bottom)
        for o in data.drawn
    )


def _legend_of_shapes(fig: go.Figure, data: Frontier) -> None:
    kinds = dict.fromkeys(p.kind for p in data.drawn)
    entries = [(KINDS[k], style.SHAPES[k][0], style.MUTED) for k in KINDS if k in kinds]
    if any(p.hollow for p in data.drawn):
        entries.append(("hollow: an attack failed here", "circle", "white"))
    for i, (name, symbol, fill) in enumerate(entries):
        fig.add_scatter(x=[None], y=[None], mode="markers", name=name, legendrank=3000 + i,
                        marker={"symbol": symbol, "size": 10, "color": fill,
                                "line": {"color": style.MUTED, "width": 1.5}})  # fmt: skip


def heatmap(grid: Grid, limit: float = 0.0) -> go.Figure:
    """Draw a grid of advantages; white is blind, orange a leak, blue worse than blind."""
    import plotly.graph_objects as go

    values = matrix(grid)
    limit = limit or max([0.1, *(abs(v) for v in values.ravel() if math.isfinite(v))])
    columns = [_esc(c) for c in grid.columns]
    rows = [_esc(r) for r in grid.rows]
    fig = go.Figure(layout=_layout())
    fig.add_heatmap(
        z=[[None if math.isnan(v) else v for v in line] for line in values.tolist()],
        x=list(range(len(columns))), y=list(range(len(rows))), zmin=-limit, zmax=limit,
        colorscale=[list(stop) for stop in style.DIVERGING], xgap=2, ygap=2,
        customdata=[[_cell_hover(r, c, cell) for c, cell in zip(columns, line, strict=True)]
                    for r, line in zip(rows, grid.cells, strict=True)],
        hovertemplate="%{customdata}<extra></extra>", hoverongaps=True,
        colorbar={"title": {"text": "advantage", "side": "right"}, "thickness": 10, "len": 0.9,
                  "outlinewidth": 0, "tickformat": ".2f"},
    )  # fmt: skip
    notes = [
        _note(cell_text(cell), x=j, y=i, color=cell_ink(cell, limit))
        for i, line in enumerate(grid.cells)
        for j, cell in enumerate(line)
    ]
    fig.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, side="top",
                     showgrid=False, showline=False, ticks="", tickangle=-35)  # fmt: skip
    fig.update_yaxes(tickvals=list(range(len(rows))), ticktext=rows, autorange="reversed",
                     showgrid=False, showline=False, ticks="")  # fmt: skip
    fig.update_layout(annotations=notes)
    fig.update_layout(height=150 + 34 * max(1, len(rows)), margin={"t": 120, "b": 16, "r": 60})
    return fig


def cell_text(cell: Any) -> str:
    """Write what stands in a heatmap cell: the number, starred if an attack failed, or a word."""
    if cell.state == "ok":
        star = "*" if "failed" in cell.note or "timeout" in cell.note else ""
        return style.number(cell.advantage.mean, 2) + star
    words = {"skipped": "n/a", "": "", "undefined": "undef."}
    return words.get(cell.state, _esc(cell.state))


def cell_ink(cell: Any, limit: float) -> str:
    """Return the text colour that reads on the cell's fill."""
    mean = cell.advantage.mean
    if math.isnan(mean):
        return style.MUTED
    return "white" if mean / limit > 0.72 or mean / limit < -0.75 else style.INK


def _cell_hover(row: str, column: str, cell: Any) -> str:
    lines = [f"<b>{column}</b>", row]
    if cell.state == "ok":
        lines.append(f"advantage {style.interval(cell.advantage, signed=True)}")
        lines.append(
            f"score {style.number(cell.score.mean)}, blind {style.number(cell.blind.mean)}"
        )
        lines.append(f"{cell.advantage.n} seeds" + (f", {_esc(cell.attack)}" * bool(cell.attack)))
    else:
        lines.append(_esc(cell.state or "not part of the run"))
    return "<br>".join(lines + ([_esc(cell.note)] if cell.note else []))


def cost(costs: Sequence[Cost], title: str = "") -> go.Figure:
    """Draw bytes per direction and seconds of every defense, on log axes."""
    from plotly.subplots import make_subplots

    fig = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    fig.update_layout(_layout())
    names = [_esc(c.defense) for c in costs]
    series = [
        ("bytes up", "triangle-up", style.COLOURS[0], [c.up for c in costs], 1),
        ("bytes down", "triangle-down", style.COLOURS[4], [c.down for c in costs], 1),
        ("wall-clock seconds", "circle", style.INK, [c.seconds for c in costs], 2),
    ]
    for name, symbol, colour, estimates, col in series:
        show = style.bytes_text if col == 1 else style.seconds_text
        fig.add_scatter(
            y=names, x=[e.mean if e.known else None for e in estimates], mode="markers", name=name,
            marker={"symbol": symbol, "size": 10, "color": colour},
            error_x=_bars(estimates, colour), row=1, col=col,
            customdata=[f"<b>{n}</b><br>{name} {show(e.mean)}" for n, e in zip(names, estimates,
                                                                              strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(_layout()["xaxis"] | {"type": "log", "exponentformat": "SI"})
    fig.update_xaxes(title_text="bytes (log)", dtick=1, col=1)
    fig.update_xaxes(title_text="seconds (log)", dtick="D2", col=2)
    fig.update_yaxes(_layout()["yaxis"] | {"autorange": "reversed"}, col=1)
    fig.update_yaxes(_layout()["yaxis"] | {"autorange": "reversed", "showticklabels": False}, col=2)
    fig.update_layout(height=130 + 24 * max(1, len(costs)), title_text=_esc(title),
                      legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
                      margin={"t": 44})  # fmt: skip
    return fig
