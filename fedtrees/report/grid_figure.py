"""Grids of advantages, and bytes and seconds, as interactive figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedtrees.core.counts import many
from fedtrees.report import style
from fedtrees.report.leaks import Cell, Grid, matrix
from fedtrees.report.tables import Cost, Protection
from fedtrees.report.web import Drawing, axis, bars, esc, layout, note

_ROW = 30  # pixels: a line of text and room for the eye
_THREATS = ("circle", "square", "diamond", "triangle-up", "x")


def draw_heatmap(grid: Grid, limit: float) -> Drawing:
    """Draw a grid of advantages; white is blind, orange a leak, blue worse than blind.

    `limit`: Advantage at the ends of the colour scale, which the page shows.
    """
    columns = [esc(c) for c in grid.columns]
    rows = [esc(r) for r in grid.rows]
    fig = Drawing(layout=layout())
    fig.data.append({
        "type": "heatmap", "z": matrix(grid).tolist(), "x": list(range(len(columns))),
        "y": list(range(len(rows))), "zmin": -limit, "zmax": limit, "xgap": 2, "ygap": 2,
        "colorscale": [list(stop) for stop in style.DIVERGING],
        "customdata": [[_cell_hover(r, c, cell) for c, cell in zip(columns, line, strict=True)]
                       for r, line in zip(rows, grid.cells, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>", "hoverongaps": True, "showscale": False,
    })  # fmt: skip
    names = [esc(_wrapped(c)).replace("\n", "<br>") for c in grid.columns]
    bare = {"showgrid": False, "showline": False, "ticks": ""}
    top = 16 + 15 * max([n.count("<br>") + 1 for n in names], default=1)
    fig.layout |= {
        "xaxis": axis(tickvals=list(range(len(names))), ticktext=names, side="top", tickangle=0,
                      tickfont={"size": 11}, **bare),
        "yaxis": axis(tickvals=list(range(len(rows))), ticktext=rows, autorange="reversed",
                      **bare),
        "annotations": [
            note(cell_text(cell), x=j, y=i, color=cell_ink(cell, limit))
            for i, line in enumerate(grid.cells)
            for j, cell in enumerate(line)
        ],
        "height": top + 24 + max(_ROW * len(rows), _ROW),
        "margin": {"l": 56, "t": top, "b": 16, "r": 24},
    }  # fmt: skip
    return fig


def _wrapped(spec: str) -> str:
    """Break a defense between its parts and before its parameters, to fit over a column."""
    return spec.replace("+", "+\n").replace("[", "\n[")


def cell_text(cell: Cell) -> str:
    """Write what stands in a heatmap cell: the number, starred if an attack failed, or a word."""
    if cell.state == "ok":
        return style.number(cell.advantage.mean, 2) + "*" * cell.partial
    words = {"skipped": "n/a", "": "", "undefined": "undef."}
    return words.get(cell.state, esc(cell.state))


def cell_ink(cell: Cell, limit: float) -> str:
    """Return the text colour that reads on the cell's fill."""
    mean = cell.advantage.mean
    if math.isnan(mean):
        return style.MUTED
    return "white" if mean / limit > 0.72 or mean / limit < -0.75 else style.INK


def _cell_hover(row: str, column: str, cell: Cell) -> str:
    lines = [f"<b>{column}</b>", row]
    if cell.state == "ok":
        lines.append(f"advantage {style.interval(cell.advantage, signed=True)}")
        lines.append(f"score {style.number(cell.score)}, blind {style.number(cell.blind)}")
        lines.append(many(cell.advantage.n, "seed") + (f", {esc(cell.attack)}" * bool(cell.attack)))
    else:
        lines.append(esc(cell.state or "not part of the run"))
    return "<br>".join(lines + ([esc(cell.note)] if cell.note else []))


def draw_cost(costs: Sequence[Cost]) -> Drawing:
    """Draw bytes per direction and seconds of every defense, on log axes."""
    fig = Drawing(layout=layout())
    names = [esc(c.defense) for c in costs]
    series = [
        ("bytes up", "triangle-up", style.COLOURS[0], [c.up for c in costs], "x"),
        ("bytes down", "triangle-down", style.COLOURS[4], [c.down for c in costs], "x"),
        ("wall-clock seconds", "circle", style.INK, [c.seconds for c in costs], "x2"),
    ]
    for name, symbol, colour, estimates, xaxis in series:
        show = style.bytes_text if xaxis == "x" else style.seconds_text
        hovers = [
            f"<b>{n}</b><br>{name} {show(e.mean)}" for n, e in zip(names, estimates, strict=True)
        ]
        fig.scatter(
            x=[e.mean for e in estimates], y=names, xaxis=xaxis, mode="markers", name=name,
            marker={"symbol": symbol, "size": 10, "color": colour},
            error_x=bars(estimates, colour), customdata=hovers,
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    sizes = [e.mean for c in costs for e in (c.up, c.down)]
    times = [c.seconds.mean for c in costs]
    fig.layout |= {
        "xaxis": axis("bytes (log)", **_log(sizes, style.bytes_text), domain=[0, 0.48]),
        "xaxis2": axis("time (log)", **_log(times, style.seconds_text), domain=[0.53, 1]),
        "yaxis": axis(autorange="reversed", type="category"),
        "height": 130 + 24 * max(1, len(costs)),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
    }
    return fig


def draw_protection(entries: Sequence[Protection]) -> Drawing:
    """Draw what every defense costs, on log axes, beside what still leaks under each threat."""
    fig = Drawing(layout=layout())
    names = [esc(e.cost.defense) for e in entries]
    panels = [
        ("bytes", style.bytes_text, [e.cost.up.mean + e.cost.down.mean for e in entries]),
        ("processor time", style.seconds_text, [e.cost.cpu_seconds.mean for e in entries]),
        ("ciphertexts", _count_text, [e.cost.ciphertexts.mean for e in entries]),
    ]
    width, gap = 0.2, 0.04
    for k, (title, show, values) in enumerate(panels):
        at = "x" if k == 0 else f"x{k + 1}"
        drawn = [v if v > 0 else math.nan for v in values]
        fig.scatter(
            x=drawn, y=names, xaxis=at, mode="markers", showlegend=False,
            marker={"symbol": "circle", "size": 10, "color": style.INK},
            customdata=[f"<b>{n}</b><br>{title} {show(v)}"
                        for n, v in zip(names, values, strict=True)],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
        begin = k * (width + gap)
        fig.layout[at.replace("x", "xaxis")] = axis(
            f"{title} (log)", **_log(drawn, show), domain=[begin, begin + width]
        )
        fig.layout.setdefault("annotations", []).extend(
            note("none", xref=f"{at} domain", x=0.02, y=n, xanchor="left")
            for n, v in zip(names, values, strict=True)
            if not v > 0
        )
    threats = [threat for threat, _ in entries[0].reads]
    for i, threat in enumerate(threats):
        points = [dict(e.reads)[threat] for e in entries]
        known = [(n, p) for n, p in zip(names, points, strict=True) if p and p.advantage.known]
        colour = style.COLOURS[i % len(style.COLOURS)]
        symbol = _THREATS[i % len(_THREATS)]  # later ones are smaller: equal points stay apart
        fig.scatter(
            x=[p.advantage.mean for _, p in known], y=[n for n, _ in known], xaxis="x4",
            mode="markers", name=esc(threat),
            marker={"symbol": symbol, "size": max(14 - 2 * i, 6), "color": colour},
            error_x=bars([p.advantage for _, p in known], colour),
            customdata=[f"<b>{n}</b><br>{esc(threat)}: {style.interval(p.advantage, signed=True)}"
                        for n, p in known],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    fig.layout |= {
        "xaxis4": axis("worst advantage", domain=[3 * (width + gap), 1], zeroline=True,
                       zerolinecolor=style.MUTED, rangemode="tozero"),
        "yaxis": axis(autorange="reversed", type="category", categoryarray=names,
                      categoryorder="array"),
        "height": 130 + 26 * max(1, len(entries)),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
        "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
    }  # fmt: skip
    return fig


def _count_text(value: float) -> str:
    """Write a count, thousands as k."""
    if not math.isfinite(value):
        return "–"
    return f"{value / 1000:,.3g}k" if value >= 1000 else f"{value:,.3g}"


def _log(values: Iterable[float], show: Callable[[float], str]) -> dict[str, Any]:
    """Return a logarithmic axis that ends on ticks, so that even a narrow one has two."""
    known = [v for v in values if math.isfinite(v) and v > 0] or [1.0]
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    steps = (1, 2, 5) if last - first < 3 else (1,)
    ticks = [s * 10.0**k for k in range(first - 1, last + 1) for s in steps]
    low = max(t for t in ticks if t <= min(known) * 1.0000001)
    high = min([t for t in [*ticks, 10.0**last] if t >= max(known)] or [max(known)])
    if low == high:
        low, high = low / 2, high * 2
    shown = [t for t in ticks if low <= t <= high * 1.0000001]
    pad = 0.04 * math.log10(high / low)
    return {
        "type": "log", "tickvals": shown, "ticktext": [show(t) for t in shown],
        "range": [math.log10(low) - pad, math.log10(high) + pad],
    }  # fmt: skip
