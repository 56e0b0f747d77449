"""Rows and the ways they may have come: weighted paths, cut down by every leaf that is solved.

Rows that no sum tells apart form a *slot*: so many rows, each of which took one of some *pieces*,
that is, came by one path with one label. The weights of a slot's pieces are rows and add up to
its size. A tree splits every piece into one per leaf it can reach; a leaf whose contents are
found removes the pieces that contradict them and splits slots into those inside and the rest.
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

LIGHTEST = 1e-7  # pieces that are a smaller share of their slot are dropped
_PER_PIECE = ("slot", "weight", "label", "lo", "hi", "codes", "leaf", "margin")


class Inside(NamedTuple):
    """So many rows of a slot, of one look, are in a leaf."""

    slot: int
    look: int
    rows: int


@dataclass(eq=False)
class Paths:
    """Slots and pieces after the trees read so far; arrays are replaced as it goes."""

    size: Longs  # int64 (S,): rows of each slot
    slot: Longs  # int64 (m,)
    weight: Floats  # float64 (m,)
    label: Longs  # int64 (m,)
    # int32 (m, d): box of each piece: cells ``lo <= cell < hi``, and codes
    lo: Ints
    hi: Ints
    codes: NDArray[np.uint64]  # uint64 (m, d)
    leaf: Ints  # int32 (m, t): position of the piece's leaf in each tree
    margin: NDArray[np.float32]  # float32 (m, t + 1): log-odds before each tree, and after the last

    @staticmethod
    def after_first(tree: Tree, base: np.float32, grid: Grid, counts: Counts) -> Paths:
        """Return the paths after the first tree, whose leaves' class counts are known."""
        leaves = grid.leaves(tree)
        (lo, hi), codes = leaves.boxes(grid.width), leaves.sets(len(grid.edges))
        weight = np.concatenate([counts.n0, counts.n1]).astype(np.float64)
        label = np.repeat(np.array([0, 1], dtype=np.int64), len(lo))
        leaf = np.tile(np.arange(len(lo), dtype=np.int32), 2)
        held = weight > 0
        leaf, label, weight = leaf[held], label[held], weight[held]
        after = np.float32(base) + tree.value[tree.leaves][leaf]
        margin = np.stack([np.full(len(leaf), base, dtype=np.float32), after], axis=1)
        _, slot = np.unique(after, return_inverse=True)
        slot = slot.reshape(-1).astype(np.int64)
        size = np.rint(np.bincount(slot, weight)).astype(np.int64)
        box = (lo[leaf], hi[leaf], codes[leaf])
        return Paths(size, slot, weight, label, *box, leaf[:, None], margin)

    @property
    def trees(self) -> int:
        """Number of trees read."""
        return self.leaf.shape[1]

    def copy(self) -> Paths:
        """Return the same paths; what happens to one does not happen to the other."""
        return Paths(self.size, *(getattr(self, name) for name in _PER_PIECE))

    def normalise(self) -> None:
        """Scale weights so that those of a slot add up to its size, in place."""
        total = np.bincount(self.slot, self.weight, len(self.size))
        self.weight = self.weight * (self.size / np.maximum(total, 1e-300))[self.slot]

    def grow(self, piece: Longs, leaf: Ints, weight: Floats, tree: Tree, grid: Grid) -> None:
        """Send pieces through one more tree, in place: piece ``piece[e]`` to leaf ``leaf[e]``."""
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
        """Keep to the contents of leaf ``j`` of tree ``t``: these rows are inside, all others not.

        ``look``, int64 (m,), is that of every piece in the tree.
        """
        here = self.leaf[:, t] == j
        kept, slot, size = ~here, self.slot.copy(), self.size.tolist()
        for part in inside:
            mine = here & (self.slot == part.slot) & (look == part.look)
            kept |= mine
            slot[mine] = len(size)
            size.append(part.rows)
            size[part.slot] -= part.rows
        self.slot, self.size = slot, np.array(size, dtype=np.int64)
        self._take(kept & (self.size[slot] > 0))
        self._renumber()

    def merge_equal(self) -> None:
        """Join slots all of whose pieces have one and the same margin now, in place.

        No later sum can tell them apart.
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
        """Return how many rows are in slots with one margin now."""
        low, high = self._margins()
        return int(self.size[low == high].sum())

    def _margins(self) -> tuple[Floats, Floats]:
        """Return the lowest and highest margin of every slot's pieces."""
        low, high = np.full(len(self.size), np.inf), np.full(len(self.size), -np.inf)
        np.minimum.at(low, self.slot, self.margin[:, -1])
        np.maximum.at(high, self.slot, self.margin[:, -1])
        return low, high

    def _take(self, kept: NDArray[np.bool_]) -> None:
        for name in _PER_PIECE:
            setattr(self, name, getattr(self, name)[kept])
        self.normalise()

    def _renumber(self) -> None:
        used, slot = np.unique(self.slot, return_inverse=True)
        self.slot, self.size = slot.reshape(-1).astype(np.int64), self.size[used]
