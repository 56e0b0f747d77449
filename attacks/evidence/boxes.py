"""Rows as boxes on the grid, and what the first round's counts say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.grid import Grid, LeafConstraints
from fedtrees.attacks.evidence.routing import add_values

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Boxes:
    """The reconstruction so far; arrays change in place from tree to tree."""

    # int32 (n, d): cells ``lo <= cell < hi`` of each feature
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    y: NDArray[np.int64]  # int64 (n,)
    # float32 (n,) or (n, K): log-odds after the trees seen; of more than two classes, a margin for
    # each
    margin: NDArray[np.float32]
    # int64 (n,): rows with equal label and equal leaves so far share a number
    history: NDArray[np.int64]
    # L1 distance from the broadcast sums, per tree
    residual: list[float] = field(default_factory=list)
    # Variance of the margins, from trees grown on rows of others
    doubt: Floats | None = None
    # bool (n, d): whether the value may be missing (at first: nowhere); it must be where ``lo ==
    # hi``
    missing: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = np.zeros(self.lo.shape, dtype=bool)


def open_boxes(sizes: Sequence[int], grid: Grid, evidence: Evidence) -> Boxes:
    """Return so many rows of each class with no bounds."""
    n, d = int(sum(sizes)), len(grid.edges)
    y = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    boxes = Boxes(
        lo=np.zeros((n, d), dtype=np.int32),
        hi=np.tile(grid.width, (n, 1)),
        y=y,
        margin=evidence.start(n),
        history=y.copy(),
    )
    boxes.missing |= grid.missing
    return boxes


def boxes_after_first_tree(evidence: Evidence, grid: Grid, counts: Counts) -> Boxes:
    """Initialise the dataset from the first tree's counts (Sec. 5.1, Fig. 6)."""
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    boxes = open_boxes((int(counts.n0.sum()), int(counts.n1.sum())), grid, evidence)
    position = np.arange(len(leaves), dtype=np.int32)
    chosen = np.concatenate([np.repeat(position, counts.n0), np.repeat(position, counts.n1)])
    send(boxes, leaves, chosen)
    add_values(boxes.margin, 0, tree.value[leaves.node][chosen])
    return boxes


def boxes_by_class(evidence: Evidence, grid: Grid, counts: Sequence[Counts]) -> Boxes:
    """Initialise the rows of every class from that class's own tree of the first round.

    Di Gennaro et al. (2025), App. E. Their way through the other classes' trees is still to be
    found, so no margin has moved yet.
    """
    boxes = open_boxes([int(c.n1.sum()) for c in counts], grid, evidence)
    for k, own_tree in enumerate(counts):
        leaves = grid.leaves(evidence.trees[k])
        position = np.arange(len(leaves), dtype=np.int32)
        send(boxes, leaves, np.repeat(position, own_tree.n1), np.flatnonzero(boxes.y == k))
    return boxes


def send(
    boxes: Boxes,
    leaves: LeafConstraints,
    chosen: NDArray[np.int32],
    rows: NDArray[np.intp] | None = None,
) -> None:
    """Narrow the boxes of some rows (all) to their leaves', in place."""
    if rows is None:
        rows = np.arange(len(boxes.y))
    constraints = (leaves.offsets, leaves.feature, leaves.lo, leaves.hi, leaves.missing)
    _narrow(boxes.lo, boxes.hi, boxes.missing, rows, chosen, *constraints)
    way = boxes.history * len(leaves)
    way[rows] += chosen
    boxes.history = np.unique(way, return_inverse=True)[1].astype(np.int64)


@njit(cache=True)
def _narrow(  # type: ignore[no-untyped-def]
    lo, hi, missing, rows, chosen, offsets, feature, leaf_lo, leaf_hi, leaf_missing
):
    for r in range(chosen.shape[0]):
        i, first, last = rows[r], offsets[chosen[r]], offsets[chosen[r] + 1]
        inside = True
        for k in range(first, last):
            f = feature[k]
            empty = max(lo[i, f], leaf_lo[k]) >= min(hi[i, f], leaf_hi[k])
            if empty and not (missing[i, f] and leaf_missing[k]):
                inside = False  # under noise a leaf that no value reaches may claim rows
        if inside:
            for k in range(first, last):
                f = feature[k]
                lo[i, f] = max(lo[i, f], leaf_lo[k])
                hi[i, f] = max(min(hi[i, f], leaf_hi[k]), lo[i, f])
                missing[i, f] = missing[i, f] and leaf_missing[k]
