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
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SIZE = 7.0  # points
_DIRECTIONS = (
    (0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7),
)  # fmt: skip
_DISTANCES = (4.0, 7.0, 11.0, 16.0, 22.0, 30.0)
_LEADER = 12.0  # points from which on a hair line says whose label it is
_HAIR = 12  # points of a hair line that are compared with texts
_ROUNDS = 6  # of placing every label again beside the others; few ever move after two
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

    The labels together take the cheapest places that a search finds; the same figure gives the
    same places. One that would still cover another is left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = ax.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    point = figure.dpi / 72
    frame = np.array(ax.get_window_extent(renderer).extents) / point
    boxes_of = [_boxes(label, _extent(figure, renderer, label) / point, point) for label in labels]
    hairs_of = [_hairs(label, boxes, point) for label, boxes in zip(labels, boxes_of, strict=True)]
    alone = [
        _fixed_cost(boxes, label, frame, ax, drawn, point)
        for boxes, label in zip(boxes_of, labels, strict=True)
    ]
    every = list(zip(boxes_of, hairs_of, strict=True))
    beside = [[_pair_cost(*one, *other) for other in every] for one in every]
    for i, costs in enumerate(beside):
        costs[i][:] = 0  # a label is not in its own way
    kept: list[Floats] = []
    left_out = []
    for label, boxes, k in zip(labels, boxes_of, _arranged(alone, beside), strict=True):
        box = boxes[k : k + 1]
        if _overlap(box, _stacked(kept)).any() or _outside(box, frame)[0] > 0:
            left_out.append(label.text)
            continue
        kept.append(boxes[k])
        _write(ax, label, label.spots[k])
    return tuple(left_out)


def _arranged(alone: Sequence[Floats], beside: Sequence[Sequence[Floats]]) -> list[int]:
    """Return the spot of each label: one in another's way is tried everywhere, the rest give way.

    `alone[i]`: what the spots of label i cost by themselves, shape (spots of i,).
    `beside[i][j]`: what they cost beside those of label j, shape (spots of i, spots of j).
    """
    if not alone:
        return []
    first = np.cumsum([0, *map(len, alone)])
    own, pairs = np.concatenate(alone), np.block([list(line) for line in beside])
    spots = [slice(a, b) for a, b in pairwise(first)]

    def settled(at: Ints, held: int | None = None) -> Ints:
        at, cost = at.copy(), own + pairs[:, at].sum(axis=1)
        for _ in range(_ROUNDS):
            moved = False
            for i, mine in enumerate(spots):
                k = at[i] if i == held else first[i] + cost[mine].argmin()
                if k != at[i]:
                    cost += pairs[:, k] - pairs[:, at[i]]
                    at[i], moved = k, True
            if not moved:
                break
        return at

    def total(at: Ints) -> float:
        return float(own[at].sum() + pairs[np.ix_(at, at)].sum() / 2)

    best = settled(first[:-1] + [cost.argmin() for cost in alone])
    for _ in range(_ROUNDS):
        before = total(best)
        for i, mine in enumerate(spots):
            if pairs[best[i], best].any():  # it is in another's way
                trials = np.tile(best, (len(alone[i]), 1))
                trials[:, i] = np.arange(mine.start, mine.stop)
                best = min([best, *(settled(settled(t, held=i)) for t in trials)], key=total)
        if total(best) >= before:
            break
    return [int(k) for k in best - first[:-1]]


def _pair_cost(boxes: Floats, hairs: Floats, others: Floats, their_hairs: Floats) -> Floats:
    """Return what the spots of two labels cost beside each other, shape (spots, other spots)."""
    return _TEXT * _overlap(boxes, others) + _CROSSING * _crossings(
        boxes, hairs, others, their_hairs
    )


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


def _extent(figure: Any, renderer: Any, label: Label) -> Floats:
    """Return width and height of a text in pixels."""
    text = figure.text(0, 0, label.text, fontsize=SIZE, rotation=label.rotation)
    box = text.get_window_extent(renderer)
    text.remove()
    return np.array([box.width, box.height])


def _boxes(label: Label, size: Floats, point: float) -> Floats:
    """Return the padded box of the label at each spot in points: left, bottom, right, top."""
    anchor = np.array(label.transform.transform(label.xy)) / point
    shift = {"left": 0.0, "bottom": 0.0, "center": 0.5, "right": 1.0, "top": 1.0}
    corner = np.array([
        anchor + np.array([x, y]) - size * (shift[ha], shift[va]) for x, y, ha, va in label.spots
    ])  # fmt: skip
    return np.hstack([corner - _PAD, corner + size + _PAD])


def _fixed_cost(
    boxes: Floats,
    label: Label,
    frame: Floats,
    ax: Axes,
    drawn: Drawn,
    point: float,
) -> Floats:
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
        + _MARKER * _overlap(boxes, _stacked(markers)).sum(axis=1)
        + _LINE * _overlap(boxes, _stacked(dots)).sum(axis=1)
        + _PER_POINT * far
        + order
    )


def _hairs(label: Label, boxes: Floats, point: float) -> Floats:
    """Return points of the hair line of every spot, shape (spots, points, 2); NaN for none."""
    anchor = np.array(label.transform.transform(label.xy)) / point
    ends = (boxes[:, :2] + boxes[:, 2:]) / 2
    hairs = anchor + np.linspace(0.1, 1, _HAIR)[None, :, None] * (ends - anchor)[:, None, :]
    hairs[[not label.has_hair(spot) for spot in label.spots]] = np.nan
    return hairs


def _crossings(boxes: Floats, hairs: Floats, others: Floats, their_hairs: Floats) -> Floats:
    """Count texts on a hair line, and hair lines that cross, shape (spots, other spots)."""
    mine, theirs = hairs[:, None], their_hairs[None]
    count = _within(mine, others[None, :, None]).any(axis=2).astype(float)
    count += _within(theirs, boxes[:, None, None]).any(axis=2)
    a, b, c, d = mine[..., 0, :], mine[..., -1, :], theirs[..., 0, :], theirs[..., -1, :]
    apart = _side(a, b, c) * _side(a, b, d), _side(c, d, a) * _side(c, d, b)
    return count + ((apart[0] < 0) & (apart[1] < 0))  # NaN compares false


def _within(points: Floats, box: Floats) -> NDArray[np.bool_]:
    inside = (points >= box[..., :2]) & (points <= box[..., 2:])
    return inside.all(axis=-1)


def _side(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Return on which side of the line from a to b the point c is, by sign."""
    u, v = b - a, c - a
    return np.sign(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])


def _along(corners: Iterable[Floats], step: float = 1.5) -> Iterable[tuple[float, float]]:
    """Yield points along a line, `step` points apart."""
    for a, b in pairwise(corners):
        if np.isfinite(a).all() and np.isfinite(b).all():
            for t in np.linspace(0, 1, max(2, int(math.dist(a, b) / step))):
                x, y = a + t * (b - a)
                yield float(x), float(y)


def _stacked(boxes: Sequence[Floats]) -> Floats:
    return np.array(boxes).reshape(-1, 4)


def _overlap(boxes: Floats, others: Floats) -> Floats:
    """Return the square points that boxes share with others, shape (boxes, others)."""
    a, b = boxes[:, None, :], others[None, :, :]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.clip(sides, 0, None).prod(axis=2)


def _outside(boxes: Floats, frame: Floats) -> Floats:
    """Return how far each box reaches over the frame, in points, shape (boxes,)."""
    over = np.hstack([frame[:2] - boxes[:, :2], boxes[:, 2:] - frame[2:]])
    return np.clip(over - _PAD, 0, None).sum(axis=1)
