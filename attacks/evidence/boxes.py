"""Rows as boxes on the grid, and what the first round's counts say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.grid import ANY, Grid, LeafConstraints
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]
# int64 (K,) each: rows per class that the first round was not grown on, and those of them that no
# round was.
Rest = tuple[NDArray[np.int64], NDArray[np.int64]]


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
    # hi``, or no code is left
    missing: NDArray[np.bool_] = field(init=False)
    # uint64 (n, d): codes among these cells (at first: any)
    codes: NDArray[np.uint64] = field(init=False)
    # bool (n,): rows of the first round where it was grown on some of them; None: on all
    first: NDArray[np.bool_] | None = None
    # float64 (n,): how likely a row is in any other round; None: for sure
    share: Floats | None = None
    # bool (n,) per tree that was followed, where rounds are grown on some of the rows
    inside: list[NDArray[np.bool_]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing = np.zeros(self.lo.shape, dtype=bool)
        self.codes = np.full(self.lo.shape, ANY)

    def copy(self) -> Boxes:
        """Return the same boxes where no value is missing, after the same trees."""
        parts = (self.lo, self.hi, self.y, self.margin, self.history)
        boxes = Boxes(*(a.copy() for a in parts), first=self.first, share=self.share)
        boxes.codes = self.codes.copy()
        return boxes


def stacked(parts: Sequence[Boxes]) -> Boxes:
    """Return the rows of several reconstructions one after the other; counts of trees are lost."""
    names = ("lo", "hi", "y", "margin", "history", "missing", "codes")
    joined = {name: np.concatenate([getattr(b, name) for b in parts]) for name in names}
    boxes = Boxes(*(joined[name] for name in names[:5]))
    boxes.missing, boxes.codes = joined["missing"], joined["codes"]
    return boxes


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
    if evidence.subsample < 1:
        boxes.share = np.full(n, evidence.subsample)
    return boxes


def boxes_after_first_tree(
    evidence: Evidence, grid: Grid, counts: Counts, rest: Rest | None = None
) -> Boxes:
    """Initialise the dataset from the first tree's counts (Sec. 5.1, Fig. 6).

    ``rest`` are the rows it was not grown on; they may be anywhere, and their margins have not
    moved.
    """
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    boxes = _with_rest([int(counts.n0.sum()), int(counts.n1.sum())], rest, grid, evidence)
    position = np.arange(len(leaves), dtype=np.int32)
    chosen = np.concatenate([np.repeat(position, counts.n0), np.repeat(position, counts.n1)])
    rows = np.arange(len(boxes.y)) if boxes.first is None else np.flatnonzero(boxes.first)
    send(boxes, leaves, chosen, rows)
    boxes.margin[rows] += tree.value[leaves.node][chosen]
    return boxes


def boxes_by_class(
    evidence: Evidence, grid: Grid, counts: Sequence[Counts], rest: Rest | None = None
) -> Boxes:
    """Initialise the rows of every class from that class's own tree of the first round.

    Di Gennaro et al. (2025), App. E. Their way through the other classes' trees is still to be
    found, so no margin has moved yet. ``rest`` as above.
    """
    boxes = _with_rest([int(c.n1.sum()) for c in counts], rest, grid, evidence)
    there = boxes.y >= 0 if boxes.first is None else boxes.first
    for k, own_tree in enumerate(counts):
        leaves = grid.leaves(evidence.trees[k])
        position = np.arange(len(leaves), dtype=np.int32)
        rows = np.flatnonzero((boxes.y == k) & there)
        send(boxes, leaves, np.repeat(position, own_tree.n1), rows)
    return boxes


def _with_rest(sizes: Sequence[int], rest: Rest | None, grid: Grid, evidence: Evidence) -> Boxes:
    """Return open boxes of the rows of the first round and of the rest, by class."""
    if rest is None:
        return open_boxes(sizes, grid, evidence)
    out, never = rest
    boxes = open_boxes(np.asarray(sizes) + out, grid, evidence)
    in_class = [np.arange(n + m) for n, m in zip(sizes, out.tolist(), strict=True)]
    boxes.first = np.concatenate([a < n for a, n in zip(in_class, sizes, strict=True)])
    held_out = np.concatenate([a >= len(a) - m for a, m in zip(in_class, never, strict=True)])
    boxes.share = np.where(held_out, 0.0, evidence.subsample)
    boxes.history = boxes.y * 3 + np.where(boxes.first, 0, 1 + held_out)
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
    constraints = (leaves.feature, leaves.lo, leaves.hi, leaves.missing, leaves.codes)
    box = (boxes.lo, boxes.hi, boxes.missing, boxes.codes)
    _narrow(*box, rows, chosen, leaves.offsets, *constraints)
    way = boxes.history * (len(leaves) + 1)
    way[rows] += chosen + 1
    boxes.history = np.unique(way, return_inverse=True)[1].astype(np.int64)


@kernel
def _narrow(  # type: ignore[no-untyped-def]
    lo, hi, missing, codes, rows, chosen,
    offsets, feature, leaf_lo, leaf_hi, leaf_missing, leaf_codes,
):  # fmt: skip
    for r in range(chosen.shape[0]):
        i, first, last = rows[r], offsets[chosen[r]], offsets[chosen[r] + 1]
        inside = True
        for k in range(first, last):
            f = feature[k]
            empty = max(lo[i, f], leaf_lo[k]) >= min(hi[i, f], leaf_hi[k])
            empty = empty or codes[i, f] & leaf_codes[k] == np.uint64(0)
            if empty and not (missing[i, f] and leaf_missing[k]):
                inside = False  # under noise a leaf that no value reaches may claim rows
        if inside:
            for k in range(first, last):
                f = feature[k]
                lo[i, f] = max(lo[i, f], leaf_lo[k])
                hi[i, f] = max(min(hi[i, f], leaf_hi[k]), lo[i, f])
                missing[i, f] = missing[i, f] and leaf_missing[k]
                codes[i, f] &= leaf_codes[k]
