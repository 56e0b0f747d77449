"""Place the labels of a figure so that they cover neither one another nor the data.

Every label has a list of candidate spots. Each spot has a fixed cost, which penalises distance and
overlap with data, and each pair of spots has a cost of overlap and crossing lines. A local search
minimises the total cost. The renderers convert their labels to `LabelSpots` and draw the result
(`fedtrees.report.figures.static`, `fedtrees.report.figures.inline_svg`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ROUNDS = 6  # rounds in which every label is moved; few labels move after the second one
# Cost per square point of overlap with a label (never acceptable), a marker (hardly) and a line
# (rather acceptable).
_TEXT, _MARKER, _LINE = 1000.0, 20.0, 2.0
_CROSSING = 60.0  # cost of a leading line that crosses another one or a text
_THROUGH_MARKER = 600.0  # cost of a leading line that crosses a marker


@dataclass(frozen=True)
class LabelSpots:
    """The candidate spots of one label, the best one first, in any unit of length.

    Attributes
    ----------
    anchor : tuple of float
        The point that the label describes.
    boxes : float array, shape (spots, 4)
        Area of the text at each spot: smallest x and y, largest x and y.
    led : bool array, shape (spots,)
        Whether a line leads from the point to the label.
    costs : float array, shape (spots,)
        Cost of each spot, for example for its distance.
    """

    anchor: tuple[float, float]
    boxes: Floats
    led: Bools
    costs: Floats

    @property
    def leads(self) -> tuple[Floats, Floats]:
        """Both ends of the leading line of every spot, shape (spots, 2). NaN if there is none."""
        ends = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        starts = np.broadcast_to(np.array(self.anchor, dtype=float), ends.shape)
        keep = self.led[:, None]
        return np.where(keep, starts, np.nan), np.where(keep, ends, np.nan)


def choose_spots(
    labels: Sequence[LabelSpots], frame: Floats, markers: Floats, dots: Floats
) -> list[int | None]:
    """Choose one spot for each label. The result is deterministic.

    Parameters
    ----------
    labels : sequence of LabelSpots
        The labels.
    frame : float array, shape (4,)
        Area that no label may leave.
    markers : float array, shape (markers, 4)
        Areas of the markers.
    dots : float array, shape (dots, 4)
        Small areas along the lines of the figure.

    Returns
    -------
    spots : list of int or None
        Index of the spot of each label. None if the label would still cover another one, leave the
        frame, or lead through a marker.
    """
    fixed = [_fixed_costs(label, frame, markers, dots) for label in labels]
    pairs = [[np.zeros((len(a.boxes), len(b.boxes))) for b in labels] for a in labels]
    for i, one in enumerate(labels):
        for j in range(i):  # a label does not overlap with itself
            pairs[i][j] = _pair_costs(one, labels[j])
            pairs[j][i] = pairs[i][j].T
    placed: list[Floats] = []
    chosen: list[int | None] = []
    for label, k in zip(labels, _minimise_cost(fixed, pairs), strict=True):
        box = label.boxes[k : k + 1]
        covers = overlaps(box, np.array(placed).reshape(-1, 4)).any()
        crosses = _through_markers(label, markers)[k]
        bad = covers or crosses or _outside(box, frame)[0] > 0
        chosen.append(None if bad else k)
        if not bad:
            placed.append(label.boxes[k])
    return chosen


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


def _fixed_costs(label: LabelSpots, frame: Floats, markers: Floats, dots: Floats) -> Floats:
    """Return the cost of each spot independently of other labels, shape (spots,)."""
    order = np.arange(len(label.boxes)) * 1e-3  # of two equally good spots the first one is taken
    costs: Floats = (
        _TEXT * _outside(label.boxes, frame)
        + _MARKER * overlaps(label.boxes, markers).sum(axis=1)
        + _LINE * overlaps(label.boxes, dots).sum(axis=1)
        + _THROUGH_MARKER * _through_markers(label, markers)
        + label.costs
        + order
    )
    return costs


def _through_markers(label: LabelSpots, markers: Floats) -> Ints:
    """Return the number of markers of other points that the leading line of each spot crosses."""
    x, y = label.anchor
    is_own_marker = (
        (markers[:, 0] <= x) & (x <= markers[:, 2]) & (markers[:, 1] <= y) & (y <= markers[:, 3])
    )
    crossed: Ints = cross_boxes(*label.leads, markers[~is_own_marker]).sum(axis=1)
    return crossed


def _pair_costs(one: LabelSpots, other: LabelSpots) -> Floats:
    """Return the cost of each pair of spots of two labels, shape (spots, other spots)."""
    (a, b), (c, d) = one.leads, other.leads
    crossings = cross_boxes(a, b, other.boxes).astype(float)
    crossings += cross_boxes(c, d, one.boxes).T
    # Two segments cross if the ends of each lie on different sides of the other one.
    p, q, r, s = a[:, None], b[:, None], c[None], d[None]
    apart = _side(p, q, r) * _side(p, q, s), _side(r, s, p) * _side(r, s, q)
    crossings += (apart[0] < 0) & (apart[1] < 0)  # NaN compares false
    costs: Floats = _TEXT * overlaps(one.boxes, other.boxes) + _CROSSING * crossings
    return costs


def cross_boxes(starts: Floats, ends: Floats, boxes: Floats) -> Bools:
    """Return which segments pass through which boxes, shape (segments, boxes).

    Each segment is clipped to the range of the box in both directions (Liang and Barsky 1984).
    """
    step = (ends - starts)[:, None]  # shape (segments, 1, 2)
    low, high = boxes[None, :, :2] - starts[:, None], boxes[None, :, 2:] - starts[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.sort(np.stack([low / step, high / step]), axis=0)
        inside = (low < 0) & (high > 0)
    # A segment that is parallel to an axis passes the box if it lies within its range.
    enter = np.where(step == 0, np.where(inside, -np.inf, np.inf), limits[0])
    leave = np.where(step == 0, np.where(inside, np.inf, -np.inf), limits[1])
    crossed: Bools = np.maximum(enter.max(axis=2), 0) < np.minimum(leave.min(axis=2), 1)
    return crossed


def _side(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return on which side of the line from a to b the point c lies, as a sign."""
    u, v = b - a, c - a
    side: Floats = np.sign(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])
    return side


def overlaps(boxes: Floats, other_boxes: Floats) -> Floats:
    """Return the area that boxes share with other boxes, shape (boxes, others)."""
    a, b = boxes[:, None, :], other_boxes[None, :, :]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    areas: Floats = np.clip(sides, 0, None).prod(axis=2)
    return areas


def _outside(boxes: Floats, frame: Floats) -> Floats:
    """Return by how much each box exceeds the frame, shape (boxes,)."""
    over = np.hstack([frame[:2] - boxes[:, :2], boxes[:, 2:] - frame[2:]])
    excess: Floats = np.clip(over, 0, None).sum(axis=1)
    return excess
