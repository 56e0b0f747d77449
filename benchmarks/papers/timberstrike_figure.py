"""Draw published figures of TimberStrike next to ours and to the blind baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedtrees.benchmarks.papers.timberstrike_comparison import Compared
from fedtrees.report import static_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Lines in percent: name, function of a cell, colour, line style, marker.
_LINES: tuple[tuple[str, Callable[[Compared], float], str, str, str], ...] = (
    ("published RA", lambda c: c.theirs("full"), style.COLOURS[1], "-", "o"),
    ("their attack, rebuilt", lambda c: _mean(c.rebuilt["value"]), style.COLOURS[4], "-", "s"),
    ("blind, scored as theirs", lambda c: _mean(c.rebuilt["blind"]), style.COLOURS[1], "--", ""),
    ("published F-TP (random leaves)", lambda c: c.theirs("ftp"), style.MUTED, ":", "v"),
    ("timberstrike, victims only", lambda c: _mean(c.default["value"]), style.COLOURS[0], "-", "D"),
    ("blind, victims only", lambda c: _mean(c.default["blind"]), style.COLOURS[0], "--", ""),
)


def _mean(values: Iterable[float]) -> float:
    return 100 * fmean(values)


def draw(cells: Sequence[Compared]) -> Figure:
    """Draw RA over depth on one scale, with one panel per protocol and setting.

    Where the published line is below the dashed one, a guess without the model is better.
    """
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(map(_title, cells)))
    columns = min(5, len(panels))
    lines = -(-len(panels) // columns)
    with matplotlib.rc_context(static_figure.RC):
        figure = Figure(figsize=(static_figure.PAGE, 1.75 * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, sharey=True, sharex=True, squeeze=False).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            _panel(ax, [c for c in cells if _title(c) == panel])
            ax.set_title(panel, loc="left", fontsize=6.5)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        for ax in axes[::columns]:
            ax.set_ylabel("RA, percent")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _title(cell: Compared) -> str:
    """Return the title of the panel of a cell."""
    return "\n".join(filter(None, (cell.protocol, cell.setting.replace("[", "\n["))))


def _panel(ax: Axes, cells: Sequence[Compared]) -> None:
    """Draw all lines of one panel."""
    depths = [c.depth for c in cells]
    for name, value, colour, dash, marker in _LINES:
        heights = [value(c) for c in cells]
        ax.plot(depths, heights, color=colour, ls=dash, marker=marker, ms=2.6, lw=0.9, label=name)
    ax.set_xticks(depths)
    ax.set_xlabel("depth")
    ax.spines[["top", "right"]].set_visible(False)
