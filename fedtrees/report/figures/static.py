"""Draw the frontiers of a run with matplotlib, for a paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedtrees.core.errors import StoreError
from fedtrees.core.results import measure
from fedtrees.report.figures.labels import Floats, LabelSpots, choose_spots
from fedtrees.report.figures.model import (
    BELOW_BLIND,
    FRONT,
    INK,
    MUTED,
    RING,
    SHAPES,
    FigurePanel,
    panels_of,
)
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.guarantees import Kind
from fedtrees.report.results import UNDEFENDED, Panel
from fedtrees.report.statistics import Estimate
from fedtrees.report.wording import Names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 7.0  # width in inches of one column and of a page with two columns
Width = Literal["column", "page"]
WIDTHS: dict[Width, float] = {"column": COLUMN, "page": PAGE}
# Short versions of `fedtrees.report.guarantees.KINDS` that fit in a column.
_KINDS: dict[Kind, str] = {
    "proved": "bound guaranteed",
    "void": "guarantee void",
    "computational": "encryption or masks",
    "structural": "no bound, sends less",
    "none": "no guarantee",
    "unknown": "guarantee not known",
}
# Opacity of the marks of single seeds: visible in print, and weaker than the means.
_FAINT = 0.45
# Horizontal and vertical offset from the anchor in points, and horizontal and vertical alignment of
# the text.
Spot = tuple[float, float, str, str]
_LABEL_SIZE = 7.0  # points
_DIRECTIONS = (
    (0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7),
)  # fmt: skip
_DISTANCES = (4.0, 7.0, 11.0, 16.0, 22.0, 30.0)
_LEADER = 12.0  # from this distance in points, a line connects a label with its anchor
_PER_POINT = 2.5  # cost per point of distance between label and anchor
_PAD = 0.8  # margin around a label in points
_WIDEST = 30  # characters in a line of a label
RC: dict[Any, Any] = {
    # matplotlib contains the first font, so that a figure is the same on every machine. The
    # following fonts, none of which is wider, are used if an SVG is opened without it.
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.edgecolor": MUTED, "text.color": INK, "axes.labelcolor": INK,
    "xtick.color": INK, "ytick.color": INK,
    # Publishers reject fonts of Type 3, so that PDF uses TrueType. Text in SVG remains text.
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedtrees",
    "axes.unicode_minus": True, "text.parse_math": False,
}  # fmt: skip


def save(figure: Figure, path: Path) -> Path:
    """Write a figure to a file. The same figure gives the same bytes.

    Raises `StoreError` if the file cannot be written.
    """
    import matplotlib

    # Without this, the date of creation would make two identical figures differ.
    dates: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(RC):
        try:
            figure.savefig(path, dpi=300, metadata=dates.get(path.suffix[1:]))
        except OSError as error:
            raise StoreError(f"{path.as_posix()!r} cannot be written ({error.strerror})") from error
    return path


def frontier(
    frontiers: Sequence[Frontier],
    colours: Mapping[str, tuple[str, str]] | None = None,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Draw frontiers below one another in one column, or side by side across the page.

    Parameters
    ----------
    frontiers : sequence of Frontier
        The frontiers. Panels of one setting share the advantage axis. Titles contain the parts in
        which panels differ.
    colours : mapping of str to (str, str), optional
        Result of `fedtrees.report.figures.model.palette`.
    width : {"column", "page"}, optional
        Default: a column for one panel, else the page.
    labels : mapping of str to str, optional
        Labels of datasets, protocols, threats, defenses, references and metrics by name.

    Returns
    -------
    figure : matplotlib.figure.Figure
        The figure.

    Raises
    ------
    UsageError
        If a label belongs to a name that does not occur in the figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    panels, names = panels_of(frontiers, colours), Names(labels)
    inches = WIDTHS[width or ("column" if len(panels) == 1 else "page")]
    columns = 1 if inches == COLUMN else _columns(frontiers)
    lines = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(RC):
        height = (1.9 if lines > 1 else 2.2) * lines + 0.15
        figure = Figure(figsize=(inches, height), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        written: list[tuple[list[Label], Drawn]] = []
        for i, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
            written.append(_draw_panel(ax, panel, names))
            _name_axes(ax, frontiers, i, columns, names)
            title = _differing(panel.frontier.panel, [f.panel for f in frontiers], names)
            if title:
                ax.set_title(
                    _break_title(title, round(13 * inches / columns)), loc="left", fontsize=8
                )
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        # The legend needs additional height, because it is below the panels.
        legend = _place_legend(figure, _legend(panels, names))
        figure.set_size_inches(inches, height + legend)
        names.check(further_names=[part for f in frontiers for part in _parts(f.panel)])
        figure.draw_without_rendering()
        # Labels are placed after the layout is fixed.
        figure.set_layout_engine("none")
        for ax, (panel_labels, drawn) in zip(axes, written, strict=False):
            _write_labels(ax, panel_labels, drawn)
    return figure


def _columns(panels: Sequence[Frontier]) -> int:
    """Return the number of panels side by side on a page.

    It is the number of threats if there are two or three of them.
    """
    threats = len({f.panel.threat for f in panels})
    if threats in (2, 3) and len(panels) % threats == 0:
        return threats
    return min(len(panels), 3 if len(panels) % 3 == 0 else 2)


def _name_axes(ax: Axes, panels: Sequence[Frontier], i: int, columns: int, names: Names) -> None:
    """Name the axes, except next to a panel with the same axis."""
    data = panels[i]
    lower = " (lower is better)" if measure(data.utility).better == "lower" else ""
    utility, metric = (_metric_label(key, names) for key in (data.utility, data.metric))
    advantage = f"worst-case advantage\n({metric})"
    under = panels[i + columns] if i + columns < len(panels) else None
    if under is None or under.utility != data.utility:
        ax.set_xlabel(utility + lower)
    if i % columns == 0 or panels[i - 1].metric != data.metric:
        ax.set_ylabel(advantage)


def _metric_label(metric: str, names: Names) -> str:
    """Return the label of a metric, or its short name, because the height of a panel is limited."""
    label = names(metric)
    return measure(metric).short if label == metric else label


def _parts(p: Panel) -> tuple[str, ...]:
    """Return the parts of a panel's name."""
    return p.setting.dataset, p.setting.partition, p.setting.protocol, p.threat


def _differing(panel: Panel, panels: Sequence[Panel], names: Names) -> str:
    """Return the parts of a panel's name in which the panels differ."""

    columns = zip(_parts(panel), zip(*map(_parts, panels), strict=True), strict=True)
    return " · ".join(names(part) for part, values in columns if len(set(values)) > 1)


def _break_title(text: str, width: int) -> str:
    """Break a title that is too wide between its parts, or between parameters."""
    lines = [""]
    for part in text.split(" · "):
        join = " · " if lines[-1] else ""
        for piece in [part] if len(part) <= width else re.split("(?<=,)", part):
            if lines[-1] and len(lines[-1] + join + piece) > width:
                lines.append(piece)
            else:
                lines[-1] += join + piece
            join = ""
    return "\n".join(lines)


@dataclass(frozen=True)
class Label:
    """A text, the point that it describes, and its candidate spots.

    Attributes
    ----------
    text : str
        The text.
    xy : tuple of float
        Coordinates of the point.
    transform : matplotlib transform
        From the units of `xy` to pixels.
    colour : str
        Colour of the text.
    spots : tuple of Spot
        Candidate spots, the best one first.
    led : bool
        Whether a line connects the text with the point if they are `_LEADER` or more apart.
    rotation : float
        Rotation in degrees.
    """

    text: str
    xy: tuple[float, float]
    transform: Any
    colour: str
    spots: tuple[Spot, ...]
    led: bool = False
    rotation: float = 0.0

    def has_leader(self, spot: Spot) -> bool:
        """Return whether a line connects the label at a spot with its point."""
        return self.led and math.hypot(spot[0], spot[1]) >= _LEADER


@dataclass
class Drawn:
    """Markers and lines that labels should not cover, in units of the data."""

    markers: list[tuple[float, float]] = field(default_factory=list)
    lines: list[Sequence[tuple[float, float]]] = field(default_factory=list)


def _draw_panel(ax: Axes, panel: FigurePanel, names: Names) -> tuple[list[Label], Drawn]:
    """Draw a panel. Return its labels, and the lines and markers that they must not cover."""
    data, (low, high), limits = panel.frontier, panel.utilities, panel.advantages
    lower = measure(data.utility).better == "lower"
    ax.set_xlim(*((high, low) if lower else (low, high)))
    ax.set_ylim(*limits)
    ax.locator_params(nbins=5)
    ax.axhspan(limits[0], 0, color=BELOW_BLIND, zorder=0)
    ax.axhline(0, color=MUTED, lw=0.8, ls="--", zorder=1)
    drawn = Drawn(lines=[((low, 0), (high, 0))])
    labels = [_blind_label(ax, names(panel.blind))]
    for name, x in panel.vertical_lines:
        ax.axvline(x, color=MUTED, lw=0.7, ls=":", zorder=1)
        drawn.lines.append(((x, limits[0]), (x, limits[1])))
        if name != "undefended":  # the undefended point has a label
            labels.append(_upright(ax, names(name), x))
    ax.plot([p.utility.mean for p in panel.front], [p.advantage.mean for p in panel.front],
            color=FRONT, lw=4, zorder=2, solid_capstyle="round",
            solid_joinstyle="round")  # fmt: skip
    styles = {"solid": "-", "dash": "--", "dot": ":"}
    for points in panel.lines:
        colour, dash = panel.colours[points[0].family]
        line = [(p.utility.mean, p.advantage.mean) for p in points]
        ax.plot(*zip(*line, strict=True), color=colour, lw=0.9, ls=styles[dash], alpha=0.8,
                zorder=3)  # fmt: skip
        drawn.lines.append(line)
    for group in panel.groups:
        for p in group:
            _draw_point(ax, panel, p, drawn)
        text = _group_label(group, panel, names)
        if text:
            xy = group[0].utility.mean, group[0].advantage.mean
            several = len({p.family for p in group}) > 1
            colour = INK if several else panel.colours[group[0].family][0]
            labels.append(Label(text, xy, ax.transData, colour, _AROUND, led=True))
    ax.spines[["top", "right"]].set_visible(False)
    return labels, drawn


def _group_label(group: Sequence[Point], panel: FigurePanel, names: Names) -> str:
    """Return the text at points that lie at one place.

    It names every defense if there are several.
    """
    ends = [panel.label(p) for p in group]
    if len({p.family for p in group}) == 1:
        texts = [names(t) if t == "undefended" else t for t in ends if t]
        return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
    ends_of: dict[str, list[str]] = {}
    for p, end in zip(group, ends, strict=True):
        family_ends = ends_of.setdefault("undefended" if p.family == UNDEFENDED else p.family, [])
        family_ends += [end] if end and end != "undefended" else []
    texts = [" ".join([names(family), *family_ends]) for family, family_ends in ends_of.items()]
    lines = [texts[0]]
    for text in texts[1:]:
        # Names are added to the last line while they fit.
        joined = f"{lines[-1]}, {text}"
        lines[-1:] = [joined] if len(joined) <= _WIDEST else [f"{lines[-1]},", text]
    return "\n".join(lines)


def _blind_label(ax: Axes, text: str) -> Label:
    """Return the label of the line at advantage zero, with spots below and above it."""
    spots = tuple(
        (-2.0 - end, 2.0 * up, "right", "bottom" if up > 0 else "top")
        for up in (-1, 1)
        for end in range(0, 110, 10)
    )
    return Label(text, (1, 0), ax.get_yaxis_transform(), MUTED, spots)


def _upright(ax: Axes, text: str, x: float) -> Label:
    """Return the label of a vertical line, written along it on either side."""
    spots = tuple(
        (2.0 * side, -2.0 - down, "left" if side > 0 else "right", "top")
        for down in (0, 15, 30, 45, 60)
        for side in (1, -1)
    )
    where = ax.get_xaxis_transform()
    return Label(text, (x, 1), where, MUTED, spots, rotation=90)


def _spots_around() -> tuple[Spot, ...]:
    """Return the candidate spots around a point, the nearest first."""
    words = {-1: ("right", "top"), 0: ("center", "center"), 1: ("left", "bottom")}
    return tuple(
        (d * x, d * y, words[int(np.sign(x))][0], words[int(np.sign(y))][1])
        for d in _DISTANCES
        for x, y in _DIRECTIONS
    )


_AROUND = _spots_around()


def _draw_point(ax: Axes, panel: FigurePanel, p: Point, drawn: Drawn) -> None:
    """Draw a defense: its seeds, its intervals, and its marker, or a ring around other markers."""
    shape, ring = SHAPES[p.kind][1], panel.rings[p.defense]
    colour = panel.colours[p.family][0]
    ax.scatter([u for u, _ in p.seeds], [a for _, a in p.seeds], s=6, marker=shape,
               color=colour, alpha=_FAINT, linewidths=0, zorder=3)  # fmt: skip
    x, y = p.utility.mean, p.advantage.mean
    fill = "none" if ring else panel.fill(p)
    ax.errorbar(x, y, xerr=_bar(p.utility), yerr=_bar(p.advantage),
                fmt=shape, ms=4.6 * (1 + RING * ring), mfc=fill, mec=colour, mew=1.0,
                ecolor=colour, elinewidth=0.7, capsize=1.5, capthick=0.7,
                zorder=4 - 0.01 * ring)  # fmt: skip
    drawn.markers.append((x, y))
    drawn.lines += [((p.utility.low, y), (p.utility.high, y)),
                    ((x, p.advantage.low), (x, p.advantage.high))]  # fmt: skip


def _bar(e: Estimate) -> list[list[float]] | None:
    """Return the lengths of an error bar in the format of matplotlib, None without an interval."""
    if not math.isfinite(e.low):
        return None
    return [[e.mean - e.low], [e.high - e.mean]]


def _legend(panels: Sequence[FigurePanel], names: Names) -> list[Any]:
    """Return the entries of the legend for everything that occurs in the panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [p for panel in panels for p in panel.frontier.drawn]
    used = {p.family for p in drawn}
    handles: list[Any] = [
        Patch(color=colour, label=names("undefended" if name == UNDEFENDED else name))
        for name, (colour, _) in panels[0].colours.items()
        if name in used
    ]
    look: dict[str, Any] = {"ls": "", "color": MUTED, "ms": 4.5}
    for kind, name in _KINDS.items():
        if kind in {p.kind for p in drawn}:
            label = names(name)
            handles.append(Line2D([], [], marker=SHAPES[kind][1], label=label, **look))
    for label in (
        *[names("an attack is missing")] * any(p.incomplete for p in drawn),
        *[names("attack below blind guess")] * any(p.attack_failed for p in drawn),
    ):
        handles.append(Line2D([], [], marker="o", mfc="white", label=label, **look))
    if any(len(group) > 1 for panel in panels for group in panel.groups):
        ring: dict[str, Any] = {"marker": "o", "ms": 6.5, "mfc": "none"}
        handles.append(Line2D([], [], label=names("rings: same position"), **look | ring))
    if any(len(p.seeds) > 1 for p in drawn):
        faint: dict[str, Any] = {"marker": "o", "ms": 2.8, "alpha": _FAINT, "mew": 0}
        handles.append(Line2D([], [], label=names("value of one seed"), **look | faint))
    front: dict[str, Any] = {"color": FRONT, "lw": 4, "solid_capstyle": "butt"}
    handles.append(Line2D([], [], label=names("Pareto-optimal"), **front))
    dashes: dict[str, Any] = {"color": MUTED, "lw": 0.8, "ls": "--"}
    handles.append(Line2D([], [], label=names("guess without messages"), **dashes))
    return handles


def _place_legend(figure: Figure, handles: list[Any]) -> float:
    """Place the legend below the panels in as many columns as fit.

    The result is its height in inches.
    """
    room = figure.bbox.width
    for columns in (4, 3, 2, 1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns,
                               frameon=False, handletextpad=0.4, columnspacing=1.0,
                               handlelength=1.4)  # fmt: skip
        box = legend.get_window_extent(_renderer(figure))
        if box.width <= room or columns == 1:
            break
        legend.remove()
    return float(box.height / figure.dpi)


def _renderer(figure: Figure) -> Any:
    """Return the renderer that measures the texts of a figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]


def _write_labels(ax: Axes, labels: Sequence[Label], drawn: Drawn) -> None:
    """Write the labels into axes whose layout is fixed, at the spots that `choose_spots` selects.

    A label that would cover another one, or leave the axes, is omitted.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    renderer = _renderer(figure)
    point = figure.dpi / 72
    frame = np.array(ax.get_window_extent(renderer).extents) / point + (-_PAD, -_PAD, _PAD, _PAD)

    def in_points(xy: tuple[float, float]) -> Floats:
        return np.asarray(ax.transData.transform(xy), dtype=float) / point

    half = np.array([-2.6, -2.6, 2.6, 2.6])
    markers = [np.tile(in_points(p), 2) + half for p in drawn.markers]
    dots = [
        np.array([x - 0.6, y - 0.6, x + 0.6, y + 0.6])
        for line in drawn.lines
        for x, y in _along([in_points(p) for p in line])
    ]
    candidates = [
        _candidate_spots(label, _extent(figure, renderer, label), point) for label in labels
    ]
    boxes = (np.array(areas).reshape(-1, 4) for areas in (markers, dots))
    for label, k in zip(labels, choose_spots(candidates, frame, *boxes), strict=True):
        if k is not None:
            _write(ax, label, label.spots[k])


def _candidate_spots(label: Label, size: Floats, point: float) -> LabelSpots:
    """Return the spots of a label in points. `size` is its width and height in pixels."""
    anchor = np.array(label.transform.transform(label.xy)) / point
    shift = {"left": 0.0, "bottom": 0.0, "center": 0.5, "right": 1.0, "top": 1.0}
    size = size / point
    corner = np.array(
        [anchor + np.array([x, y]) - size * (shift[ha], shift[va]) for x, y, ha, va in label.spots]
    )
    return LabelSpots(
        (float(anchor[0]), float(anchor[1])),
        np.hstack([corner - _PAD, corner + size + _PAD]),
        np.array([label.has_leader(spot) for spot in label.spots]),
        np.array([_PER_POINT * math.hypot(x, y) for x, y, _, _ in label.spots]),
    )


def _extent(figure: Any, renderer: Any, label: Label) -> Floats:
    """Return width and height of a text in pixels."""
    text = figure.text(0, 0, label.text, fontsize=_LABEL_SIZE, rotation=label.rotation)
    box = text.get_window_extent(renderer)
    text.remove()
    return np.array([box.width, box.height])


def _write(ax: Axes, label: Label, spot: Spot) -> None:
    """Write a label at one of its spots."""
    x, y, ha, va = spot
    leader = {"arrowstyle": "-", "lw": 0.4, "color": MUTED, "shrinkA": 0, "shrinkB": 2}
    text = ax.annotate(
        label.text, label.xy, xycoords=label.transform, xytext=(x, y),
        textcoords="offset points", ha=ha, va=va, fontsize=_LABEL_SIZE, color=label.colour,
        rotation=label.rotation, arrowprops=leader if label.has_leader(spot) else None,
        annotation_clip=False,
    )  # fmt: skip
    # The layout is fixed, and labels must not change it.
    text.set_in_layout(False)


def _along(corners: Sequence[Floats], step: float = 1.5) -> Iterator[tuple[float, float]]:
    """Yield points along a line at a distance of `step` points."""
    for a, b in pairwise(corners):
        if np.isfinite(a).all() and np.isfinite(b).all():
            for t in np.linspace(0, 1, max(2, int(math.dist(a, b) / step))):
                x, y = a + t * (b - a)
                yield float(x), float(y)
