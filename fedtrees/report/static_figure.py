"""Draw static figures for a paper with matplotlib, from the same data as the web figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedtrees.core.errors import StoreError
from fedtrees.core.results import measure
from fedtrees.report import style
from fedtrees.report.frontier import Frontier, Point
from fedtrees.report.guarantees import Kind
from fedtrees.report.interactive_figure import (
    RING,
    advantage_limits,
    blind_name,
    near,
    point_label,
    ringed,
    together,
    utility_limits,
)
from fedtrees.report.label_placement import Drawn, Label, place
from fedtrees.report.results import UNDEFENDED, Panel
from fedtrees.report.wording import Names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 7.0  # width in inches of one column and of a page with two columns
Width = Literal["column", "page"]
WIDTHS: dict[Width, float] = {"column": COLUMN, "page": PAGE}
# Short versions of `claims.KINDS` that fit in a column.
_KINDS: dict[Kind, str] = {
    "proved": "bound claimed",
    "void": "bound void",
    "computational": "computational",
    "structural": "structural",
    "none": "no claim",
    "unknown": "claim not known",
}
# Opacity of the marks of single seeds: visible in print, and weaker than the means.
_FAINT = 0.45
_WIDEST = 30  # characters in a line of a label
RC = {
    # matplotlib contains the first font, so that a figure is the same on every machine. The
    # following fonts, none of which is wider, are used if an SVG is opened without it.
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.edgecolor": style.MUTED, "text.color": style.INK, "axes.labelcolor": style.INK,
    "xtick.color": style.INK, "ytick.color": style.INK,
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
    panels: Sequence[Frontier],
    colours: dict[str, tuple[str, str]] | None = None,
    width: Width | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Draw frontiers below one another in one column, or side by side across the page.

    Parameters
    ----------
    panels : sequence of Frontier
        The frontiers. Panels of one setting share the advantage axis. Titles contain the parts in
        which panels differ.
    colours : dict of str to (str, str), optional
        Result of `style.palette`.
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

    colours = colours or style.palette(p.family for f in panels for p in f.points)
    names = Names(labels)
    inches = WIDTHS[width or ("column" if len(panels) == 1 else "page")]
    columns = 1 if inches == COLUMN else _columns(panels)
    lines = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(RC):
        height = (1.9 if lines > 1 else 2.2) * lines + 0.15
        figure = Figure(figsize=(inches, height), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        written = []
        for i, (ax, data) in enumerate(zip(axes, panels, strict=False)):
            written.append(_panel(ax, data, _limits(data, panels), colours, names))
            _axis_names(ax, panels, i, columns, names)
            title = _differing(data.panel, [f.panel for f in panels], names)
            if title:
                ax.set_title(
                    _break_title(title, round(13 * inches / columns)), loc="left", fontsize=8
                )
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        # The legend needs additional height, because it is below the panels.
        legend = _place_legend(figure, _legend(panels, colours, names))
        figure.set_size_inches(inches, height + legend)
        names.check(further_names=[part for f in panels for part in _parts(f.panel)])
        figure.draw_without_rendering()
        # Labels are placed after the layout is fixed.
        figure.set_layout_engine("none")
        for ax, (panel_labels, drawn) in zip(axes, written, strict=False):
            place(ax, panel_labels, drawn)
    return figure


def _limits(data: Frontier, panels: Sequence[Frontier]) -> tuple[float, float]:
    """Return the range of a panel's advantage axis, equal for all panels of its setting."""
    return advantage_limits([f for f in panels if f.panel.setting == data.panel.setting])


def _columns(panels: Sequence[Frontier]) -> int:
    """Return the number of panels side by side on a page.

    It is the number of threats if there are two or three of them.
    """
    threats = len({f.panel.threat for f in panels})
    if threats in (2, 3) and len(panels) % threats == 0:
        return threats
    return min(len(panels), 3 if len(panels) % 3 == 0 else 2)


def _axis_names(ax: Axes, panels: Sequence[Frontier], i: int, columns: int, names: Names) -> None:
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


def _panel(
    ax: Axes,
    data: Frontier,
    limits: tuple[float, float],
    colours: dict[str, tuple[str, str]],
    names: Names,
) -> tuple[list[Label], Drawn]:
    """Draw a panel. Return its labels, and the lines and markers that they must not cover."""
    low, high = utility_limits(data)
    lower = measure(data.utility).better == "lower"
    ax.set_xlim(*((high, low) if lower else (low, high)))
    ax.set_ylim(*limits)
    ax.locator_params(nbins=5)
    ax.axhspan(limits[0], 0, color="#f1f5f3", zorder=0)
    ax.axhline(0, color=style.MUTED, lw=0.8, ls="--", zorder=1)
    drawn = Drawn(lines=[((low, 0), (high, 0))])
    labels = [_blind_label(ax, data, names)]
    for name, x in near(data):
        ax.axvline(x, color=style.MUTED, lw=0.7, ls=":", zorder=1)
        drawn.lines.append(((x, limits[0]), (x, limits[1])))
        if name != "undefended":  # the undefended point has a label
            labels.append(_upright(ax, names(name), x))
    front = [p for p in map(data.point, data.front) if p]
    ax.plot([p.utility.mean for p in front], [p.advantage.mean for p in front], color="#d5dae1",
            lw=4, zorder=2, solid_capstyle="round", solid_joinstyle="round")  # fmt: skip
    styles = {"solid": "-", "dash": "--", "dot": ":"}
    for line in data.lines:
        shown = [p for p in map(data.point, line) if p]
        colour, dash = colours[shown[0].family]
        ax.plot([p.utility.mean for p in shown], [p.advantage.mean for p in shown], color=colour,
                lw=0.9, ls=styles[dash], alpha=0.8, zorder=3)  # fmt: skip
        drawn.lines.append([(p.utility.mean, p.advantage.mean) for p in shown])
    for group in together(data, limits):
        for p, k in ringed(group):
            _point(ax, p, colours[p.family][0], drawn, ring=k)
        text = _group_label(group, data, names)
        if text:
            xy = group[0].utility.mean, group[0].advantage.mean
            several = len({p.family for p in group}) > 1
            colour = style.INK if several else colours[group[0].family][0]
            labels.append(Label(text, xy, ax.transData, colour))
    ax.spines[["top", "right"]].set_visible(False)
    return labels, drawn


def _group_label(group: Sequence[Point], data: Frontier, names: Names) -> str:
    """Return the text at points that lie at one place.

    It names every defense if there are several.
    """
    ends = [point_label(p, data) for p in group]
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


def _blind_label(ax: Axes, data: Frontier, names: Names) -> Label:
    """Return the label of the line at advantage zero, with spots below and above it."""
    spots = tuple(
        (-2.0 - end, 2.0 * up, "right", "bottom" if up > 0 else "top")
        for up in (-1, 1)
        for end in range(0, 110, 10)
    )
    return Label(names(blind_name(data)), (1, 0), ax.get_yaxis_transform(), style.MUTED, spots)


def _upright(ax: Axes, text: str, x: float) -> Label:
    """Return the label of a vertical line, written along it on either side."""
    spots = tuple(
        (2.0 * side, -2.0 - down, "left" if side > 0 else "right", "top")
        for down in (0, 15, 30, 45, 60)
        for side in (1, -1)
    )
    where = ax.get_xaxis_transform()
    return Label(text, (x, 1), where, style.MUTED, spots, rotation=90)


def _point(ax: Axes, p: Point, colour: str, drawn: Drawn, ring: int = 0) -> None:
    """Draw a defense: its seeds, its intervals, and its marker, or a ring around other markers."""
    shape = style.SHAPES[p.kind][1]
    ax.scatter([u for u, _ in p.seeds], [a for _, a in p.seeds], s=6, marker=shape,
               color=colour, alpha=_FAINT, linewidths=0, zorder=3)  # fmt: skip
    x, y = p.utility.mean, p.advantage.mean
    # A white marker shows that the advantage is only a lower bound of the leak.
    fill = "none" if ring else "white" if p.incomplete or p.attack_failed else colour
    ax.errorbar(x, y, xerr=_bar(p.utility), yerr=_bar(p.advantage),
                fmt=shape, ms=4.6 * (1 + RING * ring), mfc=fill, mec=colour, mew=1.0,
                ecolor=colour, elinewidth=0.7, capsize=1.5, capthick=0.7,
                zorder=4 - 0.01 * ring)  # fmt: skip
    drawn.markers.append((x, y))
    drawn.lines += [((p.utility.low, y), (p.utility.high, y)),
                    ((x, p.advantage.low), (x, p.advantage.high))]  # fmt: skip


def _bar(e: Any) -> list[list[float]] | None:
    """Return the lengths of an error bar in the format of matplotlib, None without an interval."""
    if not math.isfinite(e.low):
        return None
    return [[e.mean - e.low], [e.high - e.mean]]


def _legend(
    panels: Sequence[Frontier], colours: dict[str, tuple[str, str]], names: Names
) -> list[Any]:
    """Return the entries of the legend for everything that occurs in the panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [p for f in panels for p in f.drawn]
    used = {p.family for p in drawn}
    handles: list[Any] = [
        Patch(color=colour, label=names("undefended" if name == UNDEFENDED else name))
        for name, (colour, _) in colours.items()
        if name in used
    ]
    look = {"ls": "", "color": style.MUTED, "ms": 4.5}
    for kind, name in _KINDS.items():
        if kind in {p.kind for p in drawn}:
            label = names(name)
            handles.append(Line2D([], [], marker=style.SHAPES[kind][1], label=label, **look))
    for label in (
        *[names("incomplete: attack missing")] * any(p.incomplete for p in drawn),
        *[names("attack did worse than blind")] * any(p.attack_failed for p in drawn),
    ):
        handles.append(Line2D([], [], marker="o", mfc="white", label=label, **look))
    if any(len(group) > 1 for f in panels for group in together(f, _limits(f, panels))):
        ring = {"marker": "o", "ms": 6.5, "mfc": "none"}
        handles.append(Line2D([], [], label=names("ring: in one place"), **look | ring))
    if any(len(p.seeds) > 1 for p in drawn):
        faint = {"marker": "o", "ms": 2.8, "alpha": _FAINT, "mew": 0}
        handles.append(Line2D([], [], label=names("one seed"), **look | faint))
    front = {"color": "#d5dae1", "lw": 4, "solid_capstyle": "butt"}
    handles.append(Line2D([], [], label=names("Pareto-optimal"), **front))
    dashes = {"color": style.MUTED, "lw": 0.8, "ls": "--"}
    handles.append(Line2D([], [], label=names("blind: without looking"), **dashes))
    return handles


def _place_legend(figure: Figure, handles: list[Any]) -> float:
    """Place the legend below the panels in as many columns as fit.

    The result is its height in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    room = figure.bbox.width
    for columns in (4, 3, 2, 1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns,
                               frameon=False, handletextpad=0.4, columnspacing=1.0,
                               handlelength=1.4)  # fmt: skip
        box = legend.get_window_extent(FigureCanvasAgg(figure).get_renderer())
        if box.width <= room or columns == 1:
            break
        legend.remove()
    return float(box.height / figure.dpi)
