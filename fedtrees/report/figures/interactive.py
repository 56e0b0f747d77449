"""Draw the frontiers of a run as interactive plotly figures in one self-contained HTML document."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import listed, many
from fedtrees.core.results import measure
from fedtrees.report.figures.model import (
    BELOW_BLIND,
    FRONT,
    INK,
    MUTED,
    RING,
    RULE,
    SHAPES,
    FigurePanel,
    advantage_limits,
    palette,
)
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.guarantees import KINDS
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate
from fedtrees.report.web_page import inline_scripts, security_policy
from fedtrees.report.wording import failed, mean_and_interval, number, scored

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FONT = "Inter, 'Source Sans 3', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
_LEVEL = 14  # line height of small notes in pixels


def render_html(frontiers: Sequence[Frontier]) -> str:
    """Return an HTML document with one interactive figure per frontier.

    Its content security policy allows only the scripts that plotly generated, by their hashes.
    """
    import plotly.io

    limits = advantage_limits(frontiers)
    colours = palette(p.family for f in frontiers for p in f.points)
    parts, scripts = [], []
    for at, data in enumerate(frontiers):
        text = plotly.io.to_html(
            draw_panel(FigurePanel(data, colours, limits)),
            full_html=False, include_plotlyjs=at == 0, div_id=f"figure-{at}",
        )  # fmt: skip
        parts.append(f"<h2>{html.escape(str(data.panel))}</h2>{text}")
        scripts += inline_scripts(text)
    body = "\n".join(parts)
    # To save a figure as an image, plotly creates a blob.
    allowed = security_policy(scripts, images="data: blob:")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
    head = f"<meta charset='utf-8'>{policy}<title>fedtrees</title>"
    return f"<!doctype html>{head}<body>{body}</body>\n"


def draw_panel(panel: FigurePanel) -> Figure:
    """Draw utility against worst-case advantage. Hovering over a point shows its numbers."""
    from plotly.graph_objects import Figure

    data, (y_low, y_high) = panel.frontier, panel.advantages
    figure = Figure()
    line = {"color": FRONT, "width": 7}
    figure.add_scatter(**_line(panel.front), line=line, name="non-dominated", legendrank=2000)
    for points in panel.lines:
        colour, dash = panel.colours[points[0].family]
        line = {"color": colour, "width": 1.3, "dash": dash}
        figure.add_scatter(**_line(points), line=line, opacity=0.7, showlegend=False)
    outer: dict[str, int] = {}
    for p in data.drawn:
        outer[p.family] = max(outer.get(p.family, 0), panel.rings[p.defense])
    # Outer rings are drawn first, so that the pointer reaches the inner markers.
    for family in sorted(outer, key=lambda f: -outer[f]):
        _draw_family(figure, panel, [p for p in data.drawn if p.family == family])
    dashed = {"color": MUTED, "width": 1.3, "dash": "dash"}
    figure.add_hrect(y0=y_low, y1=0, fillcolor=BELOW_BLIND, line_width=0, layer="below")
    figure.add_hline(y=0, line=dashed, layer="below")
    for _, x in panel.vertical_lines:
        figure.add_vline(x=x, line={**dashed, "dash": "dot"}, layer="below")
    _add_note(
        figure, f"below the dashed line: no more than {_escape(panel.blind)}", xref="paper", x=1,
        y=y_low, xanchor="right", yanchor="bottom",
    )  # fmt: skip
    levels = _add_reference_notes(figure, panel)
    for p in data.drawn:
        # The undefended point needs no note, because the vertical line through it has one.
        if (text := panel.label(p)) and p.defense != UNDEFENDED:
            up = -14 if panel.is_crowded_above(p) else 14
            _add_note(figure, _escape(text), color=panel.colours[p.family][0], yshift=up,
                      x=p.utility.mean, y=p.advantage.mean, xanchor="center")  # fmt: skip
    utility = measure(data.utility)
    lower = utility.better == "lower"
    name = _escape(utility.name) + (" (lower is better; axis reversed)" if lower else "")
    low, high = panel.utilities
    axis = {"gridcolor": "#eef0f3", "zeroline": False, "linecolor": RULE, "showline": True,
            "ticks": "outside", "tickcolor": RULE, "ticklen": 4, "automargin": True}  # fmt: skip
    title = f"worst-case advantage, {_escape(measure(data.metric).name)}"
    figure.update_layout(
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="white", plot_bgcolor="white", showlegend=False, hovermode="closest",
        margin={"l": 56, "r": 16, "t": 26 + _LEVEL * max(levels - 1, 0), "b": 48},
        hoverlabel={"bgcolor": "white", "bordercolor": RULE, "align": "left",
                    "font": {"family": FONT, "size": 12, "color": INK}},
        xaxis={**axis, "title": {"text": name, "standoff": 8},
               "range": [high, low] if lower else [low, high]},
        yaxis={**axis, "title": {"text": title, "standoff": 8}, "range": [y_low, y_high]},
    )  # fmt: skip
    return figure


def _escape(text: str) -> str:
    """Escape a text for plotly, which interprets a subset of HTML in every label."""
    return html.escape(text, quote=False).replace("%{", "% {")


def _add_note(figure: Figure, text: str, color: str = MUTED, **where: Any) -> None:
    """Add a small annotation without an arrow."""
    figure.add_annotation(text=text, showarrow=False, font={"size": 11, "color": color}, **where)


def _add_reference_notes(figure: Figure, panel: FigurePanel) -> int:
    """Name the vertical lines above the figure, and return the number of levels of the names.

    Neighbouring names are on different levels. References beyond the axis are listed in one note.
    """
    low, high = panel.utilities
    top: dict[str, Any] = {"yref": "paper", "y": 1, "yanchor": "bottom"}
    last, level, levels = -math.inf, 0, 0
    for name, x in panel.vertical_lines:
        level = level + 1 if x - last < 0.25 * (high - low) else 0
        last, where, levels = x, (x - low) / (high - low), max(levels, level + 1)
        side = "left" if where < 0.1 else "right" if where > 0.9 else "center"
        _add_note(figure, _escape(name), x=x, xanchor=side, yshift=_LEVEL * level, **top)
    if not panel.off_axis:
        return levels
    far = ", ".join(f"{_escape(name)} {number(mean)}" for name, mean in panel.off_axis)
    _add_note(figure, f"off the axis: {far}", xref="paper", x=0, xanchor="left",
              yshift=_LEVEL * levels, **top)  # fmt: skip
    return levels + 1


def _line(points: Sequence[Point]) -> dict[str, Any]:
    """Return a line through the means of some points."""
    x, y = [p.utility.mean for p in points], [p.advantage.mean for p in points]
    return {"x": x, "y": y, "mode": "lines", "hoverinfo": "skip"}


def _draw_family(figure: Figure, panel: FigurePanel, points: list[Point]) -> None:
    """Draw one family of defenses: the seeds faintly, then the means with error bars."""
    colour, rings = panel.colours[points[0].family][0], [panel.rings[p.defense] for p in points]
    seeds = [(p, s) for p in points for s in p.seeds]
    figure.add_scatter(
        x=[s[0] for _, s in seeds], y=[s[1] for _, s in seeds], mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.45,
                "symbol": [SHAPES[p.kind][0] for p, _ in seeds]},
        hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    fills = [
        "rgba(0,0,0,0)" if ring else panel.fill(p) for p, ring in zip(points, rings, strict=True)
    ]
    figure.add_scatter(
        x=[p.utility.mean for p in points], y=[p.advantage.mean for p in points], mode="markers",
        error_x=_error_bars([p.utility for p in points], colour),
        error_y=_error_bars([p.advantage for p in points], colour),
        marker={"color": fills, "size": [11 * (1 + RING * ring) for ring in rings],
                "symbol": [SHAPES[p.kind][0] for p in points],
                "line": {"color": colour, "width": 2}},
        customdata=[_describe(p) for p in points], hovertemplate="%{customdata}<extra></extra>",
        name=_escape(points[0].family),
    )  # fmt: skip


def _error_bars(estimates: list[Estimate], colour: str) -> dict[str, Any]:
    """Return error bars for the intervals, of length zero if there is no interval."""

    def gap(a: float, b: float) -> float:
        return a - b if math.isfinite(a - b) else 0.0

    return {
        "type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour,
        "array": [gap(e.high, e.mean) for e in estimates],
        "arrayminus": [gap(e.mean, e.low) for e in estimates],
    }  # fmt: skip


def _describe(p: Point) -> str:
    """Return the text that appears at a point under the pointer."""
    attacks = ", ".join(f"{a} ({n} of {many(p.advantage.n, 'seed')})" for a, n in p.attacks)
    lines = [
        f"<b>{_escape(p.defense)}</b>",
        f"utility {mean_and_interval(p.utility)}, {many(p.utility.n, 'seed')}",
        f"advantage {mean_and_interval(p.advantage, signed=True)}, {many(p.advantage.n, 'seed')}",
        scored(p.score.mean, p.blind.mean, p.population.mean),
        f"strongest: {_escape(attacks)}",
        f"claim: {_escape(p.guarantees.claim) or 'not known'} ({KINDS[p.kind]})",
    ]
    if p.measured:
        lines.append(f"measured {_escape(p.measured)}")
    if p.incomplete:
        lines.append(f"incomplete, known only from below: {_escape(str(p.coverage))}")
    if p.attack_failed:
        lines.append(failed(p.leakage))
    if p.coverage.early:
        lines.append(_escape(f"{listed(p.coverage.early)} stopped early"))
    return "<br>".join(lines)
