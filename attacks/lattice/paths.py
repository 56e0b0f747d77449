"""Possible paths of the rows through the trees, with weights. Solved leaves exclude paths.

A *slot* is a group of rows that the solved leaves do not distinguish. A *piece* of a slot is one
possible path with one label. Its weight is the expected number of rows of the slot that took this
path, so that the weights of all pieces of a slot add up to its size. For example, a slot of two
rows with the pieces "leaf 3, label 0" (weight 1.5) and "leaf 5, label 1" (weight 0.5) most probably
has both rows in leaf 3.

A new tree splits every piece into one per leaf that it can reach (`grow`). A solved leaf
removes the pieces that contradict its contents, and splits slots into the rows inside and the
others (`confine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.grid import Grid
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]

LIGHTEST = 1e-7  # pieces with a smaller share of their slot are dropped
_PER_PIECE = ("slot", "weight", "label", "lo", "hi", "codes", "leaf", "margin")


class Inside(NamedTuple):
    """Number of rows of a slot, with a given look (see `Candidates`), that are in a leaf."""

    slot: int
    look: int
    rows: int


@dataclass(eq=False)
class Paths:
    """S slots and their m pieces after t trees. Methods replace the arrays.

    Attributes
    ----------
    size : int64 array, shape (S,)
        Rows of each slot.
    slot, label : int64 array, shape (m,)
        Slot and label of each piece.
    weight : float64 array, shape (m,)
        Expected number of rows of each piece.
    lo, hi : int32 array, shape (m, d)
        Box of each piece: cells ``lo <= cell < hi``.
    codes : uint64 array, shape (m, d)
        Category codes of the box, as bits.
    leaf : int32 array, shape (m, t)
        Position of the leaf of the piece in each tree.
    margin : float32 array, shape (m, t + 1)
        Log-odds before each tree and after the last.
    """

    size: Longs
    slot: Longs
    weight: Floats
    label: Longs
    lo: Ints
    hi: Ints
    codes: NDArray[np.uint64]
    leaf: Ints
    margin: NDArray[np.float32]

    @staticmethod
    def after_first(tree: Tree, base: np.float32, grid: Grid, counts: Counts) -> Paths:
        """Return the paths after the first tree with base margin ``base``, given its counts."""
        leaves = grid.leaves(tree)
        (lo, hi), codes = leaves.boxes(grid.width), leaves.sets(len(grid.edges))
        weight = np.concatenate([counts.n0, counts.n1]).astype(np.float64)
        label = np.repeat(np.array([0, 1], dtype=np.int64), len(lo))
        leaf = np.tile(np.arange(len(lo), dtype=np.int32), 2)
        occupied = weight > 0
        leaf, label, weight = leaf[occupied], label[occupied], weight[occupied]
        after = np.float32(base) + tree.value[tree.leaves][leaf]
        margin = np.stack([np.full(len(leaf), base, dtype=np.float32), after], axis=1)
        # Later sums depend on the margins and labels of rows only, so that leaves of the first tree
        # with the same value form one slot.
        _, slot = np.unique(after, return_inverse=True)
        slot = slot.reshape(-1).astype(np.int64)
        size = np.rint(np.bincount(slot, weight)).astype(np.int64)
        box = (lo[leaf], hi[leaf], codes[leaf])
        return Paths(size, slot, weight, label, *box, leaf[:, None], margin)

    @property
    def trees(self) -> int:
        """Number of trees, t."""
        return self.leaf.shape[1]

    def copy(self) -> Paths:
        """Return a copy. The arrays are shared, because methods replace them instead of writing."""
        return Paths(self.size, *(getattr(self, name) for name in _PER_PIECE))

    def normalise(self) -> None:
        """Scale weights so that those of a slot add up to its size, in place."""
        total = np.bincount(self.slot, self.weight, len(self.size))
        self.weight = self.weight * (self.size / np.maximum(total, 1e-300))[self.slot]

    def grow(self, piece: Longs, leaf: Ints, weight: Floats, tree: Tree, grid: Grid) -> None:
        """Extend the pieces by one tree, in place.

        New piece e continues ``piece[e]`` in leaf ``leaf[e]`` of the tree, with ``weight[e]`` rows.
        """
        leaves = grid.leaves(tree)
        lo, hi = leaves.boxes(grid.width)
        self.lo = np.maximum(self.lo[piece], lo[leaf])
        self.hi = np.minimum(self.hi[piece], hi[leaf])
        self.codes = self.codes[piece] & leaves.sets(len(grid.edges))[leaf]
        after = self.margin[piece, -1] + tree.value[tree.leaves][leaf]
        self.margin = np.column_stack([self.margin[piece], after])
        self.leaf = np.column_stack([self.leaf[piece], leaf]).astype(np.int32)
        self.slot, self.label, self.weight = self.slot[piece], self.label[piece], weight
        self._take(self.weight > LIGHTEST * self.size[self.slot])

    def confine(self, t: int, j: int, look: Longs, inside: list[Inside]) -> None:
        """Remove the pieces that contradict the contents of leaf ``j`` of tree ``t``, in place.

        ``inside`` are the rows in the leaf. All other rows are elsewhere. ``look``, int64 (m,), is
        the look of every piece in the tree.
        """
        here = self.leaf[:, t] == j
        consistent, slot, size = ~here, self.slot.copy(), self.size.tolist()
        # The rows in the leaf form new slots of known size. Their old slots shrink by as many rows.
        for part in inside:
            selected = here & (self.slot == part.slot) & (look == part.look)
            consistent |= selected
            slot[selected] = len(size)
            size.append(part.rows)
            size[part.slot] -= part.rows
        self.slot, self.size = slot, np.array(size, dtype=np.int64)
        self._take(consistent & (self.size[slot] > 0))
        self._renumber()

    def merge_equal(self) -> None:
        """Merge slots whose pieces all have the same margin, in place.

        No later sum can distinguish their rows.
        """
        low, high = self._margins()
        name = np.arange(len(low), dtype=np.int64)
        one = np.flatnonzero(low == high)
        _, first, same = np.unique(low[one], return_index=True, return_inverse=True)
        name[one] = one[first][same.reshape(-1)]
        self.size = np.bincount(name, self.size, len(name)).astype(np.int64)
        self.slot = name[self.slot]
        self._renumber()

    def sure_rows(self) -> int:
        """Return the number of rows whose margin is certain."""
        low, high = self._margins()
        return int(self.size[low == high].sum())

    def _margins(self) -> tuple[Floats, Floats]:
        """Return the lowest and highest margin of every slot's pieces."""
        low, high = np.full(len(self.size), np.inf), np.full(len(self.size), -np.inf)
        np.minimum.at(low, self.slot, self.margin[:, -1])
        np.maximum.at(high, self.slot, self.margin[:, -1])
        return low, high

    def _take(self, pieces: NDArray[np.bool_]) -> None:
        for name in _PER_PIECE:
            setattr(self, name, getattr(self, name)[pieces])
        self.normalise()

    def _renumber(self) -> None:
        used, slot = np.unique(self.slot, return_inverse=True)
        self.slot, self.size = slot.reshape(-1).astype(np.int64), self.size[used]
