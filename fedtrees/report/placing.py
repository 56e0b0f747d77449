"""Where the labels of a paper figure stand: on no other label, and beside what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# An offset from the anchor in points, and which side of the text stands there.
Spot = tuple[float, float, str, str]

SIZE = 7.0  # points
_DIRECTIONS = (
    (0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7),
)  # fmt: skip
_DISTANCES = (4.0, 7.0, 11.0, 16.0, 22.0, 30.0)
_LEADER = 12.0  # points from which on a hair line says whose label it is
_HAIR = 12  # points of a hair line that are compared with texts
_ROUNDS = 6  # of placing every label again beside the others; few labels ever move after two
# Square points of overlap weigh this much: on a label never, on a marker hardly, on a line rather.
_TEXT, _MARKER, _LINE = 1000.0, 20.0, 2.0
_CROSSING = 60.0  # of a hair line with another's, or with a text
_PER_POINT = 2.5  # of distance
_PAD = 0.8  # points around a label


def _around() -> tuple[Spot, ...]:
    words = {-1: ("right", "top"), 0: ("center", "center"), 1: ("left", "bottom")}
    return tuple(
        (d * x, d * y, words[int(np.sign(x))][0], words[int(np.sign(y))][1])
        for d in _DISTANCES
        for x, y in _DIRECTIONS
    )


AROUND = _around()  # the spots of a point's label, the nearest first


@dataclass(frozen=True)
class Label:
    """A text, the place it belongs to, and where it may stand, the best spot first."""

    text: str
    xy: tuple[float, float]
    transform: Any  # from the units of `xy` to pixels
    colour: str
    spots: tuple[Spot, ...] = AROUND
    rotation: float = 0.0

    def has_hair(self, spot: Spot) -> bool:
        """Tell whether a hair line joins the label to its place."""
        return self.spots is AROUND and math.hypot(spot[0], spot[1]) >= _LEADER


@dataclass
class Drawn:
    """What labels should not cover, in units of the data."""

    markers: list[tuple[float, float]] = field(default_factory=list)
    lines: list[Sequence[tuple[float, float]]] = field(default_factory=list)


def place(ax: Axes, labels: Sequence[Label], drawn: Drawn) -> tuple[str, ...]:
    """Write labels into axes whose layout is settled; return those that found no place.

    Every label takes the cheapest of its spots beside the others, again and again until none
    moves; the same figure gives the same places. One that would still cover another is left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = ax.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    point = figure.dpi / 72
    frame = np.array(ax.get_window_extent(renderer).extents) / point
    boxes_of = [_boxes(label, _extent(figure, renderer, label) / point, point) for label in labels]
    hairs_of = [_hairs(label, boxes, point) for label, boxes in zip(labels, boxes_of, strict=True)]
    fixed = [
        _fixed_cost(boxes, label, frame, ax, drawn, point)
        for boxes, label in zip(boxes_of, labels, strict=True)
    ]
    at = [int(cost.argmin()) for cost in fixed]
    for _ in range(_ROUNDS):
        before = list(at)
        for i in range(len(labels)):
            rest = [j for j in range(len(labels)) if j != i]
            others = [boxes_of[j][at[j]] for j in rest]
            hairs = [hairs_of[j][at[j]] for j in rest]
            cost = fixed[i] + _TEXT * _overlap(boxes_of[i], others)
            at[i] = int(
                (cost + _CROSSING * _crossings(boxes_of[i], hairs_of[i], others, hairs)).argmin()
            )
        if at == before:
            break
    kept: list[NDArray[np.float64]] = []
    left_out = []
    for label, boxes, k in zip(labels, boxes_of, at, strict=True):
        if _overlap(boxes[k : k + 1], kept)[0] > 0 or _outside(boxes[k : k + 1], frame)[0] > 0:
            left_out.append(label.text)
            continue
        kept.append(boxes[k])
        _write(ax, label, label.spots[k])
    return tuple(left_out)


def _write(ax: Axes, label: Label, spot: Spot) -> None:
    from fedtrees.report import style

    x, y, ha, va = spot
    leader = {"arrowstyle": "-", "lw": 0.4, "color": style.MUTED, "shrinkA": 0, "shrinkB": 2}
    text = ax.annotate(
        label.text, label.xy, xycoords=label.transform, xytext=(x, y),
        textcoords="offset points", ha=ha, va=va, fontsize=SIZE, color=label.colour,
        rotation=label.rotation, arrowprops=leader if label.has_hair(spot) else None,
        annotation_clip=False,
    )  # fmt: skip
    text.set_in_layout(False)


def _extent(figure: Any, renderer: Any, label: Label) -> NDArray[np.float64]:
    """Return width and height of a text in pixels."""
    text = figure.text(0, 0, label.text, fontsize=SIZE, rotation=label.rotation)
    box = text.get_window_extent(renderer)
    text.remove()
    return np.array([box.width, box.height])


def _boxes(label: Label, size: NDArray[np.float64], point: float) -> NDArray[np.float64]:
    """Return the padded box of the label at each spot in points: left, bottom, right, top."""
    anchor = np.array(label.transform.transform(label.xy)) / point
    shift = {"left": 0.0, "bottom": 0.0, "center": 0.5, "right": 1.0, "top": 1.0}
    corner = np.array([
        anchor + np.array([x, y]) - size * (shift[ha], shift[va]) for x, y, ha, va in label.spots
    ])  # fmt: skip
    return np.hstack([corner - _PAD, corner + size + _PAD])


def _fixed_cost(
    boxes: NDArray[np.float64],
    label: Label,
    frame: NDArray[np.float64],
    ax: Axes,
    drawn: Drawn,
    point: float,
) -> NDArray[np.float64]:
    """Return what each spot costs whatever the other labels do, shape (spots,)."""
    to_points = ax.transData.transform
    half = 2.6
    markers = [
        np.array([x - half, y - half, x + half, y + half])
        for x, y in (to_points(p) / point for p in drawn.markers)
    ]
    dots = [
        np.array([x - 0.6, y - 0.6, x + 0.6, y + 0.6])
        for line in drawn.lines
        for x, y in _along([to_points(p) / point for p in line])
    ]
    far = np.array([math.hypot(x, y) for x, y, _, _ in label.spots])
    order = np.arange(len(label.spots)) * 1e-3  # of two equal spots the first
    return (
        _TEXT * _outside(boxes, frame)
        + _MARKER * _overlap(boxes, markers)
        + _LINE * _overlap(boxes, dots)
        + _PER_POINT * far
        + order
    )


def _hairs(label: Label, boxes: NDArray[np.float64], point: float) -> NDArray[np.float64]:
    """Return points of the hair line of every spot, shape (spots, points, 2); NaN for none."""
    anchor = np.array(label.transform.transform(label.xy)) / point
    ends = (boxes[:, :2] + boxes[:, 2:]) / 2
    hairs = anchor + np.linspace(0.1, 1, _HAIR)[None, :, None] * (ends - anchor)[:, None, :]
    hairs[[not label.has_hair(spot) for spot in label.spots]] = np.nan
    return hairs


def _crossings(
    boxes: NDArray[np.float64],
    hairs: NDArray[np.float64],
    others: Sequence[NDArray[np.float64]],
    their_hairs: Sequence[NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Count, per spot, texts on its hair line, and hair lines that meet its text or its own."""
    count = np.zeros(len(boxes))
    for box, theirs in zip(others, their_hairs, strict=True):
        count += _within(hairs, box[None, None, :]).any(axis=1)
        count += _within(theirs[None, :, :], boxes[:, None, :]).any(axis=1)
        a, b, c, d = hairs[:, 0], hairs[:, -1], theirs[0], theirs[-1]
        apart = _side(a, b, c) * _side(a, b, d), _side(c, d, a) * _side(c, d, b)
        count += (apart[0] < 0) & (apart[1] < 0)  # NaN compares false
    return count


def _within(points: NDArray[np.float64], box: NDArray[np.float64]) -> NDArray[np.bool_]:
    inside = (points >= box[..., :2]) & (points <= box[..., 2:])
    return inside.all(axis=-1)


def _side(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Return on which side of the line from a to b the point c is, by sign."""
    u, v = b - a, c - a
    return np.sign(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])


def _along(
    corners: Iterable[NDArray[np.float64]], step: float = 1.5
) -> Iterable[tuple[float, float]]:
    """Yield points along a line, `step` points apart."""
    for a, b in pairwise(corners):
        if np.isfinite(a).all() and np.isfinite(b).all():
            for t in np.linspace(0, 1, max(2, int(math.dist(a, b) / step))):
                x, y = a + t * (b - a)
                yield float(x), float(y)


def _overlap(
    boxes: NDArray[np.float64], others: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the area that each box shares with the others in square points, shape (boxes,)."""
    if not len(others):
        return np.zeros(len(boxes))
    a, b = boxes[:, None, :], np.asarray(others)[None, :, :]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.clip(sides, 0, None).prod(axis=2).sum(axis=1)


def _outside(boxes: NDArray[np.float64], frame: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each box reaches over the frame, in points, shape (boxes,)."""
    over = np.hstack([frame[:2] - boxes[:, :2], boxes[:, 2:] - frame[2:]])
    return np.clip(over - _PAD, 0, None).sum(axis=1)
