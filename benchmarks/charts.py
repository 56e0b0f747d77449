"""Draw bar charts and line charts for pages, in the style of the figures of a run.

Fonts, colours and the output format are those of `fedtrees.report.figures`. The module
`fedtrees.benchmarks.readme_figure` draws the results of a run with them, and
`fedtrees.benchmarks.papers.study_figures` the tables of the studies.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrees.report.figures import static
from fedtrees.report.figures.model import COLOURS, INK, MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.4  # inches. A page of 390 pixels shrinks it by a third, so that text stays readable.
_TEXT = 9.0  # points
_RC: dict[Any, Any] = {
    **static.RC,
    **dict.fromkeys(
        ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize",
         "legend.fontsize"), _TEXT,
    ),
}  # fmt: skip
_BAR_HEIGHT = 0.62  # share of the distance between two bars
_LINE_HEIGHT = 0.16  # inches of a line of a label
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")


@dataclass(frozen=True)
class BarPanel:
    """One panel of a bar chart: a value for each label.

    Attributes
    ----------
    title : str
        Meaning of the values, with their unit or total.
    values : sequence of float
        Lengths of the bars. NaN for a value that was not measured.
    limits : tuple of float
        Range of the axis. Bars start at its lower end.
    blind : sequence of float
        Score of the blind baseline, drawn as a mark. Empty if there is none.
    intervals : sequence of (float, float)
        Ends of the 95% interval of each value. Empty if there are none.
    texts : sequence of str
        The values as text, next to the bars.
    colour : str
        Colour of the bars.
    log : bool
        Whether the axis is logarithmic.
    """

    title: str
    values: Sequence[float]
    limits: tuple[float, float]
    texts: Sequence[str]
    blind: Sequence[float] = ()
    intervals: Sequence[tuple[float, float]] = ()
    colour: str = COLOURS[1]
    log: bool = False


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars: one line per label, and panels side by side that share the labels."""

    labels: Sequence[str]
    panels: Sequence[BarPanel]
    note: str = ""
    label_width: int = 26

    def draw(self) -> Figure:
        """Return the chart."""
        import matplotlib
        from matplotlib.figure import Figure

        names = [_wrap(text, self.label_width) for text in self.labels]
        lines = sum(max(1.6, 0.6 + name.count("\n") + 1) for name in names)
        room = (WIDTH - 0.075 * self.label_width) / len(self.panels)
        titles = [_wrap(panel.title, round(9.5 * room)) for panel in self.panels]
        heads = 1 + max(title.count("\n") for title in titles)
        with matplotlib.rc_context(_RC):
            height = _LINE_HEIGHT * (lines + heads + 2.5) + (0.25 if self.note else 0)
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            axes = figure.subplots(1, len(self.panels), sharey=True, squeeze=False)[0]
            for ax, panel, title in zip(axes, self.panels, titles, strict=True):
                _draw_bars(ax, panel)
                ax.set_title(title, loc="left", fontweight="bold", fontsize=_TEXT)
            axes[0].set_yticks(range(len(names)), names)
            axes[0].invert_yaxis()
            if self.note:
                figure.supxlabel(self.note, x=0.01, ha="left", fontsize=_TEXT - 1, color=MUTED)
        return figure


def _wrap(text: str, width: int) -> str:
    """Break a text at spaces only."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines)


def _draw_bars(ax: Axes, panel: BarPanel) -> None:
    """Draw the bars of a panel, the marks of the blind baseline, the intervals and the values."""
    low, high = panel.limits
    ax.set_xlim(low, high)
    if panel.log:
        ax.set_xscale("log")
    at = range(len(panel.values))
    ax.barh(at, [v - low for v in panel.values], left=low, height=_BAR_HEIGHT, color=panel.colour)
    for y, text in enumerate(panel.texts):
        if panel.intervals and math.isfinite(panel.intervals[y][0]):
            ends = [min(max(end, low), high) for end in panel.intervals[y]]
            ax.plot(ends, [y, y], color=INK, lw=0.8)
        if panel.blind and math.isfinite(panel.blind[y]):
            half = _BAR_HEIGHT / 2
            ax.plot([panel.blind[y]] * 2, [y - half, y + half], color=INK, lw=1.4)
        # The values stand in a column at the right of the panel, where no bar reaches.
        ax.annotate(text, (1.03, y), xycoords=("axes fraction", "data"), va="center")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if panel.log:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        ax.set_xticks([10.0**k for k in powers], [f"{10.0**k:g}" for k in powers])
        ax.minorticks_off()
    else:
        ax.locator_params(axis="x", nbins=3)
    ax.grid(axis="x", color=RULE, lw=0.4)
    ax.set_axisbelow(True)


@dataclass(frozen=True)
class Series:
    """A line: its name, its points, and whether it is a baseline or one of many similar lines."""

    name: str
    points: Sequence[tuple[float, float]]
    baseline: bool = False
    faint: bool = False


@dataclass(frozen=True)
class LinePanel:
    """One panel of a line chart.

    Attributes
    ----------
    title : str
        What distinguishes the panel from the others, "" for a single one.
    series : sequence of Series
        The lines. Series of one name have the same colour in every panel.
    """

    title: str
    series: Sequence[Series]


@dataclass(frozen=True)
class LineChart:
    """Lines over a common horizontal axis, in panels side by side that share both axes."""

    panels: Sequence[LinePanel]
    x: str
    y: str
    ticks: Sequence[float]
    tick_labels: Sequence[str] = ()
    limits: tuple[float, float] | None = None
    height: float = 2.6

    def draw(self) -> Figure:
        """Return the chart."""
        import matplotlib
        from matplotlib.figure import Figure

        named = [s.name for p in self.panels for s in p.series if not (s.baseline or s.faint)]
        looks = {name: (COLOURS[i], _MARKERS[i]) for i, name in enumerate(dict.fromkeys(named))}
        with matplotlib.rc_context(_RC):
            figure = Figure(figsize=(WIDTH, self.height), layout="constrained")
            axes = figure.subplots(1, len(self.panels), sharey=True, sharex=True, squeeze=False)[0]
            for ax, panel in zip(axes, self.panels, strict=True):
                self._draw_panel(ax, panel, looks)
            axes[0].set_ylabel(self.y)
            figure.supxlabel(self.x, fontsize=_TEXT)
            handles: dict[str, Any] = {}
            for ax in axes:
                for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
                    handles.setdefault(name, handle)
            figure.legend(
                [*handles.values()], [*handles], loc="outside upper center", frameon=False,
                ncols=1 if max(map(len, handles)) > 34 else 2, handlelength=2.2,
            )  # fmt: skip
        return figure

    def _draw_panel(self, ax: Axes, panel: LinePanel, looks: dict[str, tuple[str, str]]) -> None:
        """Draw the lines of one panel. Its baselines have different dashes."""
        dashes = cycle(("--", ":"))
        for line in panel.series:
            points = [p for p in line.points if math.isfinite(p[1])]
            if line.baseline:
                style: dict[str, Any] = {"color": MUTED, "lw": 1.0, "ls": next(dashes), "zorder": 1}
            elif line.faint:
                style = {"color": RULE, "lw": 1.0, "zorder": 1}
            else:
                colour, marker = looks[line.name]
                style = {"color": colour, "lw": 1.4, "marker": marker, "ms": 4.5, "zorder": 3}
            ax.plot(*zip(*points, strict=True), label=line.name, **style)
        ax.set_xticks(self.ticks, [*self.tick_labels] or [f"{t:g}" for t in self.ticks])
        ax.minorticks_off()
        if self.limits:
            ax.set_ylim(*self.limits)
        if panel.title:
            ax.set_title(panel.title, loc="left", fontweight="bold", fontsize=_TEXT)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color=RULE, lw=0.4)
        ax.set_axisbelow(True)


def save(chart: BarChart | LineChart, path: Path) -> Path:
    """Draw a chart and write it to a file. The same chart gives the same bytes."""
    return static.save(chart.draw(), path)
