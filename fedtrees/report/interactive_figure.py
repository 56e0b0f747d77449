"""Draw a frontier as an interactive plotly figure.

The layout functions, for example `utility_limits` and `together`, are shared with the static
figures of `fedtrees.report.static_figure`.

The module also defines the common parts of all web figures: fonts, axes, error bars, and escaping
of text.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtrees.core.errors import listed, many
from fedtrees.core.results import measure
from fedtrees.report import style
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.guarantees import KINDS
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate

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


LEVEL = 14  # line height of small notes in pixels
RING = 0.62  # difference in size between two rings around a marker, as a share of the marker
# As a share of an axis. It is about half a marker in the smallest figure.
_ONE_PLACE = 0.018


def draw_frontier(
    data: Frontier, colours: dict[str, tuple[str, str]], limits: tuple[float, float]
) -> Drawing:
    """Draw utility against worst-case advantage. The page contains the legend.

    Parameters
    ----------
    data : Frontier
        The frontier.
    colours : dict of str to (str, str)
        Result of `style.palette`, so that colours are equal in all panels.
    limits : tuple of float
        Range of the advantage axis, equal in panels that are compared.

    Returns
    -------
    drawing : Drawing
        The figure as plotly JSON.
    """
    fig = Drawing(layout=layout())
    low, high = utility_limits(data)
    y_low, y_high = limits
    below = note(f"below the dashed line: no more than {esc(blind_name(data))}", xref="paper", x=1,
                 y=y_low, xanchor="right", yanchor="bottom")  # fmt: skip
    above, levels = _reference_notes(data, low, high)
    notes = [below, *above]
    notes += [n for p in data.drawn for n in _label(p, data, colours[p.family][0])]
    _join(fig, list(map(data.point, data.front)), {"color": "#d5dae1", "width": 7},
          name="non-dominated", legendgroup="front", legendrank=2000)  # fmt: skip
    for line in data.lines:
        joined = [p for p in map(data.point, line) if p]
        colour, dash = colours[joined[0].family]
        _join(fig, joined, {"color": colour, "width": 1.3, "dash": dash},
              opacity=0.7, showlegend=False, legendgroup=esc(joined[0].family))  # fmt: skip
    rings = {p.defense: k for g in together(data, limits) for p, k in ringed(g)}
    outer: dict[str, int] = {}
    for p in data.drawn:
        outer[p.family] = max(outer.get(p.family, 0), rings[p.defense])
    # Outer rings are drawn first, so that the pointer reaches the inner markers.
    for family in sorted(outer, key=lambda f: -outer[f]):
        members = [p for p in data.drawn if p.family == family]
        _family(fig, members, colours[family], [rings[p.defense] for p in members])
    utility = measure(data.utility)
    lower = utility.better == "lower"
    name = esc(utility.name) + (" (lower is better; axis reversed)" if lower else "")
    fig.layout["margin"] = {**fig.layout["margin"], "t": 26 + LEVEL * max(levels - 1, 0)}
    fig.layout |= {
        "xaxis": axis(name, range=[high, low] if lower else [low, high]),
        "yaxis": axis(
            f"worst-case advantage, {esc(measure(data.metric).name)}", range=[y_low, y_high]
        ),
        "showlegend": False,
        "hovermode": "closest",
        "shapes": _blind_shapes(y_low)
        + [_line("dot", x0=x, x1=x, yref="paper", y0=0, y1=1) for _, x in near(data)],
        "annotations": notes,
    }
    return fig


def utility_limits(data: Frontier) -> tuple[float, float]:
    """Return the range of the utility axis.

    A reference is included if it is near, or always if `Frontier.every_reference` is set.
    """
    low, high = style.padded(_values(data.drawn, "utility"))
    for _, e in data.references:
        reached = low - 0.35 * (high - low) < e.mean < high + 0.35 * (high - low)
        if e.known and (reached or data.every_reference):
            pad = 0.05 * (high - low)
            low, high = min(low, e.mean - pad), max(high, e.mean + pad)
    # On such a wide axis, points at the upper end need additional space.
    if data.every_reference:
        high += 0.05 * (high - low)
    return low, high


def advantage_limits(panels: Sequence[Frontier]) -> tuple[float, float]:
    """Return one range of the advantage axis for several panels. Zero is always inside."""
    points = [p for f in panels for p in f.drawn]
    return style.padded([*_values(points, "advantage"), 0.0, 0.05])


def _values(points: Sequence[Point], name: str) -> list[float]:
    """Return the means, the ends of the intervals and the single seeds of one coordinate."""
    estimates = [getattr(p, name) for p in points]
    seeds = [
        v
        for p in points
        for v in (p.utilities.values() if name == "utility" else p.leakage.advantages)
    ]
    return [v for e in estimates for v in (e.mean, e.low, e.high)] + seeds


def _line(dash: str, **where: Any) -> dict[str, Any]:
    """Return a straight line in the background."""
    line = {"color": style.MUTED, "width": 1.3, "dash": dash}
    return {"type": "line", "layer": "below", "line": line, **where}


def _blind_shapes(bottom: float) -> list[dict[str, Any]]:
    """Return the dashed line at advantage zero and the shaded area below it."""
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": bottom, "y1": 0,
            "layer": "below", "fillcolor": "#f1f5f3", "line": {"width": 0}}  # fmt: skip
    return [band, _line("dash", xref="paper", x0=0, x1=1, y0=0, y1=0)]


def blind_name(data: Frontier) -> str:
    """Return the name of the line at advantage zero.

    It is the blind baseline, with the name of the guess if there is only one. If the adversary has
    no local rows, it is the better of both baselines.
    """
    if any(p.population.known for p in data.points):
        return "blind or population, the better"
    return f"blind ({data.blind[0]})" if len(data.blind) == 1 else "blind"


def near(data: Frontier) -> list[tuple[str, float]]:
    """Return the vertical lines by name, from left to right: references and the undefended run."""
    low, high = utility_limits(data)
    visible = [(name, e.mean) for name, e in data.references if e.known and low <= e.mean <= high]
    base = [("undefended", data.undefended.mean)] if data.undefended.known else []
    return sorted([*visible, *base], key=lambda line: line[1])


def _reference_notes(data: Frontier, low: float, high: float) -> tuple[list[dict[str, Any]], int]:
    """Return the notes above the vertical lines, and on how many levels they are placed.

    Neighbouring notes are on different levels. References beyond the axis are listed in one note.
    """
    top = {"yref": "paper", "y": 1, "yanchor": "bottom"}
    notes, last, level = [], -math.inf, 0
    for name, x in near(data):
        # Neighbouring lines have their names on different levels.
        level = level + 1 if x - last < 0.25 * (high - low) else 0
        last, where = x, (x - low) / (high - low)
        side = "left" if where < 0.1 else "right" if where > 0.9 else "center"
        notes.append(note(esc(name), x=x, xanchor=side, yshift=LEVEL * level, **top))
    levels = max((n["yshift"] // LEVEL + 1 for n in notes), default=0)
    far = [
        f"{esc(name)} {style.number(e.mean)}"
        for name, e in data.references
        if e.known and not low <= e.mean <= high
    ]
    if far:
        text = "off the axis: " + ", ".join(far)
        place = {"xref": "paper", "x": 0, "xanchor": "left", "yshift": LEVEL * levels}
        notes.append(note(text, **place, **top))
        levels += 1
    return notes, levels


def _join(fig: Drawing, points: Sequence[Point | None], line: dict[str, Any], **more: Any) -> None:
    """Draw a line through the means of some points."""
    present = [p for p in points if p]
    x, y = [p.utility.mean for p in present], [p.advantage.mean for p in present]
    fig.scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", **more)


def _family(fig: Drawing, points: list[Point], look: tuple[str, str], rings: Sequence[int]) -> None:
    """Draw one family of defenses: the seeds faintly, then the means with error bars.

    `rings` contains the ring of each point around other points at the same place, 0 for a marker.
    """
    colour = look[0]
    seeds = [(p, s) for p in points for s in p.seeds]
    group = esc(points[0].family)
    fig.scatter(
        x=[s[0] for _, s in seeds], y=[s[1] for _, s in seeds], mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.45,
                "symbol": [style.SHAPES[p.kind][0] for p, _ in seeds]},
        hoverinfo="skip", showlegend=False, legendgroup=group,
    )  # fmt: skip
    fig.scatter(
        x=[p.utility.mean for p in points], y=[p.advantage.mean for p in points], mode="markers",
        error_x=bars([p.utility for p in points], colour),
        error_y=bars([p.advantage for p in points], colour),
        marker={"color": ["rgba(0,0,0,0)" if k else _fill(p, colour)
                          for p, k in zip(points, rings, strict=True)],
                "size": [11 * (1 + RING * k) for k in rings],
                "symbol": [style.SHAPES[p.kind][0] for p in points],
                "line": {"color": colour, "width": 2}},
        customdata=[_hover(p) for p in points],
        hovertemplate="%{customdata}<extra></extra>",
        name="undefended" if group == UNDEFENDED else group, legendgroup=group,
    )  # fmt: skip


def _fill(p: Point, colour: str) -> str:
    """Return the fill of a point: white if its advantage is only a lower bound of the leak."""
    return "white" if p.incomplete or p.attack_failed else colour


def _hover(p: Point) -> str:
    """Return the text that appears at a point under the pointer."""
    attacks = ", ".join(f"{a} ({n} of {many(p.advantage.n, 'seed')})" for a, n in p.attacks)
    lines = [
        f"<b>{esc(p.defense)}</b>",
        f"utility {style.interval(p.utility)}, {many(p.utility.n, 'seed')}",
        f"advantage {style.interval(p.advantage, signed=True)}, {many(p.advantage.n, 'seed')}",
        style.scored(p.score.mean, p.blind.mean, p.population.mean),
        f"strongest: {esc(attacks)}",
        f"claim: {esc(p.guarantees.claim) or 'not known'} ({KINDS[p.kind]})",
    ]
    if p.measured:
        lines.append(f"measured {esc(p.measured)}")
    if p.incomplete:
        lines.append(f"incomplete, known only from below: {esc(str(p.coverage))}")
    if p.attack_failed:
        lines.append("the attack scored worse than a blind guess, which shows nothing")
    if p.coverage.early:
        lines.append(esc(f"{listed(p.coverage.early)} stopped early"))
    return "<br>".join(lines)


def _label(p: Point, data: Frontier, colour: str) -> list[dict[str, Any]]:
    """Return a note with the budget at each end of a swept defense.

    The undefended point needs no note, because the vertical line through it has one.
    """
    text = point_label(p, data)
    if not text or p.defense == UNDEFENDED:
        return []
    up = -14 if crowded_above(p, data) else 14
    spot = {"x": p.utility.mean, "y": p.advantage.mean, "yshift": up}
    return [note(esc(text), **spot, xanchor="center", color=colour)]


def point_label(p: Point, data: Frontier) -> str:
    """Return the text at a point: only the undefended point and the ends of a sweep have one."""
    if p.defense == UNDEFENDED:
        return "undefended"
    if p.defense in {line[i] for line in data.lines for i in (0, -1)}:
        name = {"epsilon": "ε", "xi": "ξ"}.get(p.budget.name, p.budget.name)
        return f"{name}={p.budget.value:g}"
    return ""


def together(data: Frontier, limits: tuple[float, float]) -> list[list[Point]]:
    """Group the points that lie at one place, within half a marker.

    Without the groups, the uppermost point would hide the remaining ones. `limits` is the range of
    the advantage axis.
    """
    low, high = utility_limits(data)
    groups: list[list[Point]] = []
    for p in data.drawn:
        for group in groups:
            dx = abs(group[0].utility.mean - p.utility.mean) / (high - low)
            dy = abs(group[0].advantage.mean - p.advantage.mean) / (limits[1] - limits[0])
            if dx < _ONE_PLACE and dy < _ONE_PLACE:
                group.append(p)
                break
        else:
            groups.append([p])
    return groups


def ringed(group: Sequence[Point]) -> list[tuple[Point, int]]:
    """Return points at one place with the numbers of their rings, one ring per family.

    Ring 0 is a marker.
    """
    families = [*dict.fromkeys(p.family for p in group)]
    return [(p, families.index(p.family)) for p in group]


def crowded_above(p: Point, data: Frontier) -> bool:
    """Return whether another point lies just above, where it would overlap with a label."""
    low, high = utility_limits(data)
    bottom, top = advantage_limits([data])
    return any(
        abs(o.utility.mean - p.utility.mean) < 0.08 * (high - low)
        and 0 < o.advantage.mean - p.advantage.mean < 0.2 * (top - bottom)
        for o in data.drawn
    )
