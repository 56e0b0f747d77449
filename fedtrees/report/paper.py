"""Static figures for a paper: the same data as the web figures, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import StoreError
from fedtrees.report import style
from fedtrees.report.claims import KINDS
from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, Point
from fedtrees.report.frontier_figure import (
    advantage_limits,
    blind_name,
    crowded_above,
    near,
    point_label,
    utility_limits,
)
from fedtrees.report.grid_figure import cell_ink, cell_text
from fedtrees.report.leaks import Grid, limit, matrix
from fedtrees.report.rows import UNDEFENDED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # inches: one column and the full width of a two-column page
RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "legend.fontsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "axes.edgecolor": style.MUTED, "text.color": style.INK, "axes.labelcolor": style.INK,
    "xtick.color": style.INK, "ytick.color": style.INK,
    # TrueType, not Type 3: publishers reject the latter; text in SVG stays text.
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedtrees",
    "axes.unicode_minus": True, "text.parse_math": False,
}  # fmt: skip


def save(figure: Figure, path: Path) -> Path:
    """Write a figure; the same figure gives the same bytes.

    Raises `StoreError`: the file cannot be written.
    """
    import matplotlib

    # Dates would make two runs differ.
    dates: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(RC):
        try:
            figure.savefig(path, dpi=300, metadata=dates.get(path.suffix[1:]), bbox_inches="tight",
                           pad_inches=0.02)  # fmt: skip
        except OSError as error:
            raise StoreError(f"{path.as_posix()!r} cannot be written ({error.strerror})") from error
    return path


def frontier(
    panels: Sequence[Frontier], colours: dict[str, tuple[str, str]] | None = None
) -> Figure:
    """Draw frontiers: one panel in a column's width, more side by side across the page.

    `panels`: Panels of one setting share the advantage axis. `colours`: From `style.palette`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    colours = colours or style.palette(p.family for f in panels for p in f.points)
    columns = 1 if len(panels) == 1 else 2
    lines = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(RC):
        size = (COLUMN if columns == 1 else PAGE, 2.35 * lines + 0.55)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        for ax, data in zip(axes, panels, strict=False):
            beside = [f for f in panels if f.panel.setting == data.panel.setting]
            _panel(ax, data, advantage_limits(beside), colours)
            if len(panels) > 1:
                ax.set_title(_wrapped(str(data.panel)), loc="left", fontsize=7)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        handles = _legend(panels, colours)
        figure.legend(handles=handles, loc="outside lower center", ncols=2 if columns == 1 else 4,
                      frameon=False, handletextpad=0.4, columnspacing=1.2)  # fmt: skip
    return figure


def _wrapped(text: str, width: int = 50) -> str:
    """Break a title between its parts wherever a line gets wider than a panel."""
    lines = [""]
    for part in text.split(" · "):
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(part)
    return "\n".join(lines)


def _panel(
    ax: Axes, data: Frontier, limits: tuple[float, float], colours: dict[str, tuple[str, str]]
) -> None:
    low, high = utility_limits(data)
    lower = data.utility in LOWER_IS_BETTER
    ax.set_xlim(*((high, low) if lower else (low, high)))
    ax.set_ylim(*limits)
    ax.axhspan(limits[0], 0, color="#f1f5f3", zorder=0)
    ax.axhline(0, color=style.MUTED, lw=0.8, ls="--", zorder=1)
    ax.annotate(blind_name(data), (1, 0), xycoords=ax.get_yaxis_transform(), xytext=(-2, -2),
                textcoords="offset points", ha="right", va="top", fontsize=6.5,
                color=style.MUTED)  # fmt: skip
    for name, x in near(data):
        ax.axvline(x, color=style.MUTED, lw=0.7, ls=":", zorder=1)
        if name != "undefended":  # its point says so
            ax.annotate(name, (x, 1), xycoords=ax.get_xaxis_transform(), xytext=(2, -2),
                        textcoords="offset points", va="top", fontsize=6.5, rotation=90,
                        color=style.MUTED)  # fmt: skip
    front = [p for p in map(data.point, data.front) if p]
    ax.plot([p.utility.mean for p in front], [p.advantage.mean for p in front], color="#d5dae1",
            lw=4, zorder=2, solid_capstyle="round", solid_joinstyle="round")  # fmt: skip
    styles = {"solid": "-", "dash": "--", "dot": ":"}
    for line in data.lines:
        kept = [p for p in map(data.point, line) if p]
        colour, dash = colours[kept[0].family]
        ax.plot([p.utility.mean for p in kept], [p.advantage.mean for p in kept], color=colour,
                lw=0.9, ls=styles[dash], alpha=0.8, zorder=3)  # fmt: skip
    for p in data.drawn:
        _point(ax, p, data, colours[p.family][0])
    ax.set_xlabel(style.metric_name(data.utility) + (" (lower is better)" if lower else ""))
    ax.set_ylabel(f"worst-case advantage ({data.metric})")
    ax.spines[["top", "right"]].set_visible(False)


def _point(ax: Axes, p: Point, data: Frontier, colour: str) -> None:
    seeds = [s for s in p.seeds if math.isfinite(s.utility) and math.isfinite(s.advantage)]
    shape = style.SHAPES[p.kind][1]
    ax.scatter([s.utility for s in seeds], [s.advantage for s in seeds], s=5, marker=shape,
               color=colour, alpha=0.28, linewidths=0, zorder=3)  # fmt: skip
    ax.errorbar(p.utility.mean, p.advantage.mean, xerr=_bar(p.utility), yerr=_bar(p.advantage),
                fmt=shape, ms=4.6, mfc="white" if p.hollow else colour, mec=colour, mew=1.0,
                ecolor=colour, elinewidth=0.7, capsize=1.5, capthick=0.7, zorder=4)  # fmt: skip
    text = point_label(p, data)
    if text:
        plain = text == "undefended"
        below = not plain and crowded_above(p, data)
        ax.annotate(text, (p.utility.mean, p.advantage.mean), textcoords="offset points",
                    xytext=(-5 if plain else 0, -5 if below else 5),
                    ha="right" if plain else "center", va="top" if below else "bottom",
                    fontsize=6.5, color=colour)  # fmt: skip


def _bar(e: Any) -> list[list[float]] | None:
    if not math.isfinite(e.low):
        return None
    return [[e.mean - e.low], [e.high - e.mean]]


def _legend(panels: Sequence[Frontier], colours: dict[str, tuple[str, str]]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [p for f in panels for p in f.drawn]
    used = {p.family for p in drawn}
    handles: list[Any] = [
        Patch(color=colour, label="undefended" if name == UNDEFENDED else name)
        for name, (colour, _) in colours.items()
        if name in used
    ]
    look = {"ls": "", "color": style.MUTED, "ms": 4.5}
    for kind, name in KINDS.items():
        if kind in {p.kind for p in drawn}:
            handles.append(Line2D([], [], marker=style.SHAPES[kind][1], label=name, **look))
    if any(p.hollow for p in drawn):
        name = "hollow: an applicable attack is missing"
        handles.append(Line2D([], [], marker="o", mfc="white", label=name, **look))
    handles.append(Line2D([], [], color="#d5dae1", lw=4, label="not dominated"))
    return handles


def heatmap(grids: Sequence[Grid]) -> Figure:
    """Draw grids of advantages below one another on one colour scale."""
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    scale = limit(grids)
    colours = LinearSegmentedColormap.from_list("advantage", list(style.DIVERGING))
    heights = [0.2 * len(g.rows) + 0.25 for g in grids]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(PAGE, sum(heights) + 1.3 * len(grids)), layout="constrained")
        axes = figure.subplots(len(grids), 1, squeeze=False, height_ratios=heights).ravel()
        image = None
        for ax, grid in zip(axes, grids, strict=True):
            image = ax.pcolormesh(matrix(grid), cmap=colours, vmin=-scale, vmax=scale,
                                  edgecolors="white", linewidth=1)  # fmt: skip
            for i, line in enumerate(grid.cells):
                for j, cell in enumerate(line):
                    ax.text(j + 0.5, i + 0.5, cell_text(cell), ha="center", va="center",
                            fontsize=6.5, color=cell_ink(cell, scale))  # fmt: skip
            names = [c.replace("+", "+\n") for c in grid.columns]
            ax.set_xticks([j + 0.5 for j in range(len(names))], names, rotation=40, ha="right",
                          rotation_mode="anchor", fontsize=6.5)  # fmt: skip
            ax.set_yticks([i + 0.5 for i in range(len(grid.rows))], grid.rows)
            ax.invert_yaxis()
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
            ax.set_title(grid.title, loc="left")
        if image is not None:
            bar = figure.colorbar(image, ax=list(axes), label="advantage", shrink=0.6, aspect=30)
            bar.outline.set_visible(False)
    return figure
