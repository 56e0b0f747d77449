"""Place the labels of a paper figure so that they cover neither one another nor the data.

Every label has a list of candidate spots. Each spot has a fixed cost, which penalises distance and
overlap with data, and each pair of spots has a cost of overlap and crossing lines. A local search
minimises the total cost.
"""

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

# Horizontal and vertical offset from the anchor in points, and horizontal and vertical alignment of
# the text.
Spot = tuple[float, float, str, str]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SIZE = 7.0  # points
_DIRECTIONS = (
    (0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7),
)  # fmt: skip
_DISTANCES = (4.0, 7.0, 11.0, 16.0, 22.0, 30.0)
_LEADER = 12.0  # from this distance in points, a hair line connects a label with its anchor
_HAIR = 12  # number of points on a hair line that are compared with texts
_ROUNDS = 6  # rounds in which every label is moved; few labels move after the second one
# Cost per square point of overlap with a label (never acceptable), a marker (hardly) and a line
# (rather acceptable).
_TEXT, _MARKER, _LINE = 1000.0, 20.0, 2.0
_CROSSING = 60.0  # cost of a hair line that crosses another one or a text
_PER_POINT = 2.5  # cost per point of distance between label and anchor
_PAD = 0.8  # margin around a label in points


def _around() -> tuple[Spot, ...]:
    """Return the candidate spots around a point, the nearest first."""
    words = {-1: ("right", "top"), 0: ("center", "center"), 1: ("left", "bottom")}
    return tuple(
        (d * x, d * y, words[int(np.sign(x))][0], words[int(np.sign(y))][1])
        for d in _DISTANCES
        for x, y in _DIRECTIONS
    )


AROUND = _around()  # candidate spots for the label of a point, the nearest first


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
    rotation : float
        Rotation in degrees.
    """

    text: str
    xy: tuple[float, float]
    transform: Any
    colour: str
    spots: tuple[Spot, ...] = AROUND
    rotation: float = 0.0

    def has_hair(self, spot: Spot) -> bool:
        """Return whether a hair line connects the label with its point."""
        return self.spots is AROUND and math.hypot(spot[0], spot[1]) >= _LEADER


@dataclass
class Drawn:
    """Markers and lines that labels should not cover, in units of the data."""

    markers: list[tuple[float, float]] = field(default_factory=list)
    lines: list[Sequence[tuple[float, float]]] = field(default_factory=list)


def place(ax: Axes, labels: Sequence[Label], drawn: Drawn) -> tuple[str, ...]:
    """Write labels into axes whose layout is fixed, and return the texts of omitted labels.

    A search minimises the total cost of all labels. It is deterministic. A label that would still
    cover another one, or leave the axes, is omitted.

    Parameters
    ----------
    ax : Axes
        The axes.
    labels : sequence of Label
        The labels.
    drawn : Drawn
        Markers and lines in the axes.

    Returns
    -------
    omitted : tuple of str
        Texts of the labels that were not written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = ax.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    point = figure.dpi / 72
    frame = np.array(ax.get_window_extent(renderer).extents) / point
    boxes_of = [_boxes(label, _extent(figure, renderer, label) / point, point) for label in labels]
    hairs_of = [_hairs(label, boxes, point) for label, boxes in zip(labels, boxes_of, strict=True)]
    fixed_costs = [
        _fixed_cost(boxes, label, frame, ax, drawn, point)
        for boxes, label in zip(boxes_of, labels, strict=True)
    ]
    every = list(zip(boxes_of, hairs_of, strict=True))
    pair_costs = [[_pair_cost(*one, *other) for other in every] for one in every]
    for i, costs in enumerate(pair_costs):
        # A label does not overlap with itself.
        costs[i][:] = 0
    placed: list[Floats] = []
    left_out = []
    for label, boxes, k in zip(
        labels, boxes_of, _minimise_cost(fixed_costs, pair_costs), strict=True
    ):
        box = boxes[k : k + 1]
        if _overlap(box, _stack(placed)).any() or _outside(box, frame)[0] > 0:
            left_out.append(label.text)
            continue
        placed.append(boxes[k])
        _write(ax, label, label.spots[k])
    return tuple(left_out)


def _minimise_cost(
    fixed_costs: Sequence[Floats], pair_costs: Sequence[Sequence[Floats]]
) -> list[int]:
    """Return the index of the best spot of each label by a local search.

    In each round, every label that overlaps with another one is tried in each of its spots, and the
    remaining labels adapt. The first argument contains the fixed costs of the spots of each label,
    shape (spots of i,). The second one contains the costs of all pairs of spots of two labels,
    shape (spots of i, spots of j).
    """
    if not fixed_costs:
        return []
    first = np.cumsum([0, *map(len, fixed_costs)])
    # All spots are numbered consecutively. `first[i]` is the number of the first spot of label i.
    fixed, pairs = np.concatenate(fixed_costs), np.block([list(line) for line in pair_costs])
    spots = [slice(a, b) for a, b in pairwise(first)]

    def move_labels(at: Ints, fixed_label: int | None = None) -> Ints:
        at, cost = at.copy(), fixed + pairs[:, at].sum(axis=1)
        for _ in range(_ROUNDS):
            moved = False
            for i, label_spots in enumerate(spots):
                k = at[i] if i == fixed_label else first[i] + cost[label_spots].argmin()
                if k != at[i]:
                    cost += pairs[:, k] - pairs[:, at[i]]
                    at[i], moved = k, True
            if not moved:
                break
        return at

    def total(at: Ints) -> float:
        return float(fixed[at].sum() + pairs[np.ix_(at, at)].sum() / 2)

    best = move_labels(first[:-1] + [cost.argmin() for cost in fixed_costs])
    for _ in range(_ROUNDS):
        before = total(best)
        for i, label_spots in enumerate(spots):
            # Label i overlaps with another one.
            if pairs[best[i], best].any():
                trials = np.tile(best, (len(fixed_costs[i]), 1))
                trials[:, i] = np.arange(label_spots.start, label_spots.stop)
                best = min(
                    [best, *(move_labels(move_labels(t, fixed_label=i)) for t in trials)], key=total
                )
        if total(best) >= before:
            break
    return [int(k) for k in best - first[:-1]]


def _pair_cost(boxes: Floats, hairs: Floats, other_boxes: Floats, other_hairs: Floats) -> Floats:
    """Return the cost of each pair of spots of two labels, shape (spots, other spots)."""
    return _TEXT * _overlap(boxes, other_boxes) + _CROSSING * _crossings(
        boxes, hairs, other_boxes, other_hairs
    )


def _write(ax: Axes, label: Label, spot: Spot) -> None:
    """Write a label at one of its spots."""
    from fedtrees.report import style

    x, y, ha, va = spot
    leader = {"arrowstyle": "-", "lw": 0.4, "color": style.MUTED, "shrinkA": 0, "shrinkB": 2}
    text = ax.annotate(
        label.text, label.xy, xycoords=label.transform, xytext=(x, y),
        textcoords="offset points", ha=ha, va=va, fontsize=SIZE, color=label.colour,
        rotation=label.rotation, arrowprops=leader if label.has_hair(spot) else None,
        annotation_clip=False,
    )  # fmt: skip
    # The layout is fixed, and labels must not change it.
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
    """Return the cost of each spot independently of other labels, shape (spots,)."""
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
    order = np.arange(len(label.spots)) * 1e-3  # of two equally good spots the first one is taken
    return (
        _TEXT * _outside(boxes, frame)
        + _MARKER * _overlap(boxes, _stack(markers)).sum(axis=1)
        + _LINE * _overlap(boxes, _stack(dots)).sum(axis=1)
        + _PER_POINT * far
        + order
    )


def _hairs(label: Label, boxes: Floats, point: float) -> Floats:
    """Return points on the hair line of every spot, shape (spots, points, 2).

    NaN if it has none.
    """
    anchor = np.array(label.transform.transform(label.xy)) / point
    ends = (boxes[:, :2] + boxes[:, 2:]) / 2
    hairs = anchor + np.linspace(0.1, 1, _HAIR)[None, :, None] * (ends - anchor)[:, None, :]
    hairs[[not label.has_hair(spot) for spot in label.spots]] = np.nan
    return hairs


def _crossings(boxes: Floats, hairs: Floats, other_boxes: Floats, other_hairs: Floats) -> Floats:
    """Count texts on hair lines and hair lines that cross, shape (spots, other spots)."""
    first, second = hairs[:, None], other_hairs[None]
    count = _within(first, other_boxes[None, :, None]).any(axis=2).astype(float)
    count += _within(second, boxes[:, None, None]).any(axis=2)
    a, b, c, d = first[..., 0, :], first[..., -1, :], second[..., 0, :], second[..., -1, :]
    # Two segments cross if the ends of each lie on different sides of the other one.
    apart = _side(a, b, c) * _side(a, b, d), _side(c, d, a) * _side(c, d, b)
    return count + ((apart[0] < 0) & (apart[1] < 0))  # NaN compares false


def _within(points: Floats, box: Floats) -> NDArray[np.bool_]:
    """Return whether points lie in a box."""
    inside = (points >= box[..., :2]) & (points <= box[..., 2:])
    return inside.all(axis=-1)


def _side(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Return on which side of the line from a to b the point c lies, as a sign."""
    u, v = b - a, c - a
    return np.sign(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])


def _along(corners: Iterable[Floats], step: float = 1.5) -> Iterable[tuple[float, float]]:
    """Yield points along a line at a distance of `step` points."""
    for a, b in pairwise(corners):
        if np.isfinite(a).all() and np.isfinite(b).all():
            for t in np.linspace(0, 1, max(2, int(math.dist(a, b) / step))):
                x, y = a + t * (b - a)
                yield float(x), float(y)


def _stack(boxes: Sequence[Floats]) -> Floats:
    """Return boxes as an array of shape (boxes, 4), also if there are none."""
    return np.array(boxes).reshape(-1, 4)


def _overlap(boxes: Floats, other_boxes: Floats) -> Floats:
    """Return the area that boxes share with other boxes in square points, shape (boxes, others)."""
    a, b = boxes[:, None, :], other_boxes[None, :, :]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.clip(sides, 0, None).prod(axis=2)


def _outside(boxes: Floats, frame: Floats) -> Floats:
    """Return by how many points each box exceeds the frame, shape (boxes,)."""
    over = np.hstack([frame[:2] - boxes[:, :2], boxes[:, 2:] - frame[2:]])
    return np.clip(over - _PAD, 0, None).sum(axis=1)
