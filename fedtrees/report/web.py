"""Define the common parts of all web figures: fonts, axes, error bars, and escaping of text."""

import html
import json
import math
from dataclasses import dataclass, field
from typing import Any

from fedtrees.report import style
from fedtrees.report.intervals import Estimate

FONT = "Inter, 'Source Sans 3', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclass
class Drawing:
    """A figure in the JSON format of plotly, which can be built without importing plotly."""

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def scatter(self, **trace: Any) -> None:
        """Add a trace of points or lines."""
        self.data.append({"type": "scatter", **trace})

    def json(self) -> str:
        """Return the figure as JSON for a browser. Numbers that are not finite become null."""
        return json.dumps({"data": _finite(self.data), "layout": _finite(self.layout)})


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, in nested lists and dicts."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis. The title must already be escaped (`esc`)."""
    return {
        "showgrid": True, "gridcolor": "#eef0f3", "zeroline": False, "linecolor": style.RULE,
        "showline": True, "ticks": "outside", "tickcolor": style.RULE, "ticklen": 4,
        "automargin": True, "title": {"text": title, "standoff": 8, "font": {"size": 13}}, **more,
    }  # fmt: skip


def layout() -> dict[str, Any]:
    """Return the layout from which every figure starts."""
    return {
        "font": {"family": FONT, "size": 13, "color": style.INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 56, "r": 16, "t": 26, "b": 48},
        "xaxis": axis(),
        "yaxis": axis(),
        "legend": {"orientation": "h", "y": -0.22, "x": 0, "font": {"size": 12}},
        "hoverlabel": {"bgcolor": "white", "bordercolor": style.RULE, "align": "left",
                       "font": {"family": FONT, "size": 12, "color": style.INK}},
    }  # fmt: skip


def esc(text: str) -> str:
    """Escape a text for plotly, which interprets a subset of HTML in every label."""
    return html.escape(text, quote=False).replace("%{", "% {")


def bars(estimates: list[Estimate], colour: str) -> dict[str, Any]:
    """Return error bars for the intervals, of length zero if there is no interval."""

    def gap(a: float, b: float) -> float:
        return a - b if math.isfinite(a - b) else 0.0

    return {
        "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour,
        "array": [gap(e.high, e.mean) for e in estimates],
        "arrayminus": [gap(e.mean, e.low) for e in estimates],
    }  # fmt: skip


def note(text: str, **where: Any) -> dict[str, Any]:
    """Return a small annotation without an arrow."""
    font = {"size": 11, "color": where.pop("color", style.MUTED)}
    return {"text": text, "showarrow": False, "font": font, **where}
