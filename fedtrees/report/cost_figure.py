"""Bytes and seconds as an interactive figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedtrees.report import style
from fedtrees.report.tables import Cost
from fedtrees.report.web import Drawing, axis, bars, esc, layout


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
