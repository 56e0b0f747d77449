"""Bytes and seconds as an interactive figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtrees.report import style
from fedtrees.report.tables import Cost
from fedtrees.report.web import Drawing, axis, bars, esc, layout

if TYPE_CHECKING:
    import plotly.graph_objects as go


def cost(costs: Sequence[Cost]) -> go.Figure:
    """Draw bytes per direction and seconds of every defense, on log axes."""
    return draw_cost(costs).figure()


def draw_cost(costs: Sequence[Cost]) -> Drawing:
    """Return what `cost` draws, for a page."""
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
    log = {"type": "log", "exponentformat": "SI"}
    fig.layout |= {
        "xaxis": axis("bytes (log)", **log, dtick=1, domain=[0, 0.48]),
        "xaxis2": axis("seconds (log)", **log, dtick="D2", domain=[0.53, 1]),
        "yaxis": axis(autorange="reversed", type="category"),
        "height": 130 + 24 * max(1, len(costs)),
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
    }
    return fig
