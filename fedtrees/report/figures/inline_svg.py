"""Draw the frontier of one adversary as static SVG: change in utility against the score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedtrees.report.figures.labels import LabelSpots, choose_spots
from fedtrees.report.leakage import State
from fedtrees.report.wording import number

Box = tuple[float, float, float, float]  # left, top, right, bottom
Segment = tuple[tuple[float, float], tuple[float, float]]

WIDTH, HEIGHT = 372.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 358.0, 16.0, 260.0
_SPARK = (180.0, 104.0)
_MERGE = 4.0  # marks at a smaller distance are joined, with the names of all
_CHARACTER, _LINE = 6.2, 12.5  # size of a character at 11.5 px in the widest font of the page
_RADII = (11.0, 18.0, 28.0, 44.0, 62.0)
_ANGLES = tuple(math.pi * k / 4 for k in range(8))
_STEP, _LEVELS = 15.0, 14  # difference in height between two labels above a row, and their number
_LETTER = 150.0  # cost of writing the letter instead of the names
_WIDEST = 30  # characters in a line of a label


@dataclass(frozen=True)
class Mark:
    """A point: a change in utility, a score, and the intervals of both.

    Attributes
    ----------
    x, y : float
        Change in utility and score, in units of the data or in pixels.
    label : str
        Short name.
    letter : str
        Replacement if there is no space for the label.
    say : str
        Description below the figure, also for screen readers.
    href : str
        Target of the link.
    state : str
        State of the cell.
    x_low, x_high, y_low, y_high : float
        Ends of the intervals, NaN if there are none.
    recipe : bool
        Whether the mark is the recipe.
    on_front : bool
        Whether the mark can be Pareto-optimal. False if the attack failed.
    names : tuple of str
        Labels of the marks that are joined in this one.
    """

    x: float
    y: float
    label: str
    letter: str
    say: str
    href: str
    state: State
    x_low: float = math.nan
    x_high: float = math.nan
    y_low: float = math.nan
    y_high: float = math.nan
    recipe: bool = False
    on_front: bool = True
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed:
    """The lines of a label, their position and alignment, and the line that leads to them."""

    lines: tuple[str, ...]
    x: float
    y: float
    anchor: str
    lead: tuple[float, float, float, float] | None = None
    bold: bool = False

    @property
    def box(self) -> Box:
        """The area of the label in pixels."""
        wide = max(len(t) for t in self.lines) * _CHARACTER
        left = {"start": self.x, "end": self.x - wide, "middle": self.x - wide / 2}[self.anchor]
        return (left, self.y - 10, left + wide, self.y + _LINE * (len(self.lines) - 1) + 3)


@dataclass(frozen=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Up to five round numbers within the scale."""
        # The step is the smallest round number that is at least a quarter of the range.
        rough = (self.high - self.low) / 4
        unit = 10 ** math.floor(math.log10(rough))
        step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(k * step, 12) for k in range(first, last + 1))


@dataclass(frozen=True)
class Drawing:
    """Everything that the template draws, in pixels."""

    marks: tuple[Mark, ...]  # all coordinates in pixels
    labels: tuple[Placed, ...]
    front: tuple[tuple[float, float], ...]
    x_ticks: tuple[tuple[float, float], ...]  # pixel, value
    y_ticks: tuple[tuple[float, float], ...]
    zero: float
    blind: float
    width: float = WIDTH
    height: float = HEIGHT

    @property
    def path(self) -> str:
        """The front as an SVG path, "" for fewer than two points."""
        points = "L".join(f"{x:.1f} {y:.1f}" for x, y in self.front)
        return f"M{points}" if len(self.front) > 1 else ""


@dataclass(frozen=True)
class FrontierFigure:
    """A frontier with its captions, for the template ``figures.html.j2``.

    Attributes
    ----------
    who, what, utility : str
        The adversary, the measure of its success, and the measure of utility.
    d : Drawing
        The layout.
    format_score : callable
        Writes a value of the vertical axis.
    sparks : tuple of (str, Drawing)
        Small frontiers of further measures, with their names.
    """

    who: str
    what: str
    utility: str
    d: Drawing
    format_score: Callable[[float], str]
    sparks: tuple[tuple[str, Drawing], ...] = ()

    @staticmethod
    def format_change(value: float) -> str:
        """Write a change in utility with two decimals, or with three if two are not exact."""
        decimals = 2 if math.isclose(value, round(value, 2)) else 3
        return number(value, decimals, signed=True) if value else "0"


def scales(
    marks: Sequence[Mark], top: float, size: tuple[float, float, float, float]
) -> tuple[Scale, Scale]:
    """Return both scales: the x axis contains all means and 0, the y axis begins at 0.

    Parameters
    ----------
    marks : sequence of Mark
        In units of the data.
    top : float
        The y axis reaches at least this value.
    size : tuple of float
        Left, right, high and low end of the drawing in pixels.
    """
    left, right, high, low = size
    xs = [0.0, *(m.x for m in marks if math.isfinite(m.x))]
    span = max(max(xs) - min(xs), 0.02)
    # A margin, so that marks at the ends do not touch the frame.
    pad = 0.15 * span
    largest = max([top, *(m.y for m in marks if math.isfinite(m.y))]) or 1.0
    return Scale(min(xs) - pad, max(xs) + pad, left, right), Scale(0.0, largest, low, high)


def draw(marks: Sequence[Mark], blind: float, top: float = 0.0) -> Drawing:
    """Compute the layout of a frontier.

    Parameters
    ----------
    marks : sequence of Mark
        In units of the data. Marks without both coordinates are left out.
    blind : float
        Score of the baseline.
    top : float
        The y axis reaches at least this value.
    """
    complete = [m for m in marks if math.isfinite(m.x) and math.isfinite(m.y)]
    across, up = scales(complete, max(top, blind), (LEFT, RIGHT, TOP + 22, BOTTOM))
    merged = _merge_marks([_in_pixels(m, across, up) for m in complete])
    front = _front(complete, across, up)
    lines = [((LEFT, up(blind)), (RIGHT, up(blind))), *pairwise(front)]
    return Drawing(
        tuple(merged),
        tuple(_place_labels(merged, lines)),
        front,
        tuple((across(v), v) for v in across.ticks),
        tuple((up(v), v) for v in up.ticks),
        across(0.0),
        up(blind),
    )


def spark(marks: Sequence[Mark], blind: float) -> Drawing:
    """Compute the layout of a small frontier without labels."""
    complete = [m for m in marks if math.isfinite(m.x) and math.isfinite(m.y)]
    wide, high = _SPARK
    across, up = scales(complete, blind, (6.0, wide - 6, 6.0, high - 8))
    merged = tuple(_merge_marks([_in_pixels(m, across, up) for m in complete]))
    line = _front(complete, across, up)
    return Drawing(merged, (), line, (), (), across(0.0), up(blind), wide, high)


def _in_pixels(mark: Mark, across: Scale, up: Scale) -> Mark:
    """Return a mark in pixels. The ends of intervals are limited to the drawing."""

    def ends(low: float, high: float, scale: Scale) -> tuple[float, float]:
        # Pixels of the y axis grow downwards, so that the ends are sorted first.
        first, last = sorted((scale.begin, scale.end))
        return tuple(min(max(scale(v), first), last) for v in (low, high))  # type: ignore[return-value]

    x_low, x_high = ends(mark.x_low, mark.x_high, across) if mark.x_low == mark.x_low else (
        math.nan, math.nan)  # fmt: skip
    y_low, y_high = ends(mark.y_low, mark.y_high, up) if mark.y_low == mark.y_low else (
        math.nan, math.nan)  # fmt: skip
    return replace(
        mark, x=across(mark.x), y=up(mark.y), x_low=x_low, x_high=x_high, y_low=y_low,
        y_high=y_high, names=(mark.label,),
    )  # fmt: skip


def _merge_marks(marks: Iterable[Mark]) -> list[Mark]:
    """Join marks of the same state that cannot be distinguished.

    The joined mark is the one of the recipe if it is among them, else the first one.
    """
    out: list[Mark] = []
    # The recipe comes first, so that it represents the marks that are joined with it.
    for mark in sorted(marks, key=lambda m: (not m.recipe, m.letter)):
        near = next((i for i, o in enumerate(out) if o.state == mark.state
                     and math.hypot(o.x - mark.x, o.y - mark.y) < _MERGE), None)  # fmt: skip
        if near is None:
            out.append(mark)
            continue
        other = out[near]
        out[near] = replace(
            other,
            names=(*other.names, mark.label),
            say=f"{mark.label} and {other.say}",
        )
    return sorted(out, key=lambda m: (m.x, m.y))


def _front(marks: Sequence[Mark], across: Scale, up: Scale) -> tuple[tuple[float, float], ...]:
    """Return the Pareto-optimal points: no other point is at least as good in both coordinates."""
    # The score of a failed attack is only a lower bound of the leak.
    marks = [m for m in marks if m.on_front]
    optimal = [
        m
        for m in marks
        if not any(
            (o.x >= m.x and o.y <= m.y) and (o.x > m.x or o.y < m.y) for o in marks if o is not m
        )
    ]
    return tuple((across(m.x), up(m.y)) for m in sorted(optimal, key=lambda m: (m.x, m.y)))


def _place_labels(marks: Sequence[Mark], lines: Sequence[Segment] = ()) -> list[Placed]:
    """Place the labels of all marks: the names around or above a mark, or else its letter.

    `lines` are segments between two points that labels should not cover.
    """
    areas = np.array([(m.x - 7, m.y - 7, m.x + 7, m.y + 7) for m in marks]).reshape(-1, 4)
    options = [list(_options(mark)) for mark in marks]
    spots = [
        LabelSpots(
            (mark.x, mark.y),
            np.array([o.box for o, _ in candidates]),
            np.array([o.lead is not None for o, _ in candidates]),
            np.array([cost for _, cost in candidates]),
        )
        for mark, candidates in zip(marks, options, strict=True)
    ]
    frame = np.array([2.0, 1.0, WIDTH - 2, BOTTOM - 2])
    dots = np.array([
        (x - 1.5, y - 1.5, x + 1.5, y + 1.5)
        for start, end in lines
        for x, y in np.linspace(start, end, max(2, int(math.dist(start, end) / 3)))
    ]).reshape(-1, 4)  # fmt: skip
    chosen = choose_spots(spots, frame, areas, dots)
    return [o[k][0] for o, k in zip(options, chosen, strict=True) if k is not None]


def _options(mark: Mark) -> Iterator[tuple[Placed, float]]:
    """Yield the candidate positions of a mark's label with their costs."""
    lines = tuple(line for name in mark.names for line in _break_name(name))
    inward = "start" if mark.x < (LEFT + RIGHT) / 2 else "end"
    for text, penalty in ((lines, 0.0), ((mark.letter,), _LETTER)):
        height = _LINE * (len(text) - 1)
        for radius in _RADII:
            for angle in _ANGLES:
                x, y = mark.x + radius * math.cos(angle), mark.y - radius * math.sin(angle)
                side = math.cos(angle)
                anchor = "start" if side > 0.3 else "end" if side < -0.3 else "middle"
                # `y` is the baseline of the first line, so that a label with several lines is
                # centred at the angle.
                y += 4 - height / 2
                led = radius > 30
                lead = (mark.x, mark.y, x, y - 4) if led else None
                # Labels to the left and to the right are preferred to those above and below.
                cost = radius + 6 * (abs(math.sin(angle)) > 0.3)
                yield Placed(text, x, y, anchor, lead, mark.recipe), penalty + cost
        # In a row of marks, labels fit above the marks at different heights.
        for level in range(2, _LEVELS):
            y = mark.y - 8 - level * _STEP
            lead = (mark.x, mark.y, mark.x, y + 8)
            x = mark.x - 4 if inward == "start" else mark.x + 4
            yield (
                Placed(text, x, y - height, inward, lead, mark.recipe),
                penalty + level * _STEP + 12,
            )


def _break_name(name: str) -> Iterator[str]:
    """Break a long name of a defense into lines, after its plus signs."""
    line = ""
    for part in name.split(" + "):
        joined = f"{line} + {part}" if line else part
        if line and len(joined) > _WIDEST:
            yield f"{line} +"
            joined = part
        line = joined
    yield line
