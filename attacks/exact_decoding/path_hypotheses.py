"""Possible paths of the rows through the trees, with probabilities. Solved leaves exclude paths.

A *slot* is a group of rows that the solved leaves do not distinguish. A *piece* of a slot is one
possible path with one label. Its weight is the expected number of rows of the slot that took this
path, so that the weights of all pieces of a slot add up to its size. For example, a slot of two
rows with the pieces "leaf 3, label 0" (weight 1.5) and "leaf 5, label 1" (weight 0.5) most probably
has both rows in leaf 3.

A new tree splits every piece into one per leaf that it can reach (`grow`), weighted by maximum
entropy given the sums of unsolved leaves. A solved leaf removes the pieces that contradict its
contents, and splits slots into the rows inside and outside (`PathHypotheses.confine`). Finally
every row takes one piece of its slot (`rows_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.counts.leaf_sums import Counts, LeafSums
from fedtrees.attacks.observations.boosting import BoostingObservations, gradients
from fedtrees.attacks.reconstruction.boxes import FeatureBoxes, Grid
from fedtrees.attacks.reconstruction.context import ReconstructionContext, contributions, equations
from fedtrees.attacks.reconstruction.maxent import max_entropy
from fedtrees.attacks.reconstruction.prior import ReachableLeaves, reach
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
class PathHypotheses:
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
    def after_first(tree: Tree, base: np.float32, grid: Grid, counts: Counts) -> PathHypotheses:
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
        return PathHypotheses(size, slot, weight, label, *box, leaf[:, None], margin)

    @property
    def trees(self) -> int:
        """Number of trees, t."""
        return self.leaf.shape[1]

    def copy(self) -> PathHypotheses:
        """Return a copy. The arrays are shared, because methods replace them instead of writing."""
        return PathHypotheses(self.size, *(getattr(self, name) for name in _PER_PIECE))

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


# Smallest share of a path, because maximum entropy is overconfident if few rows remain. With 1e-9
# rows lost their true path at about the twentieth tree.
FLOOR = 1e-4
SWEEPS = 2  # passes of iterative proportional fitting over the label counts of all trees


def grow(
    paths: PathHypotheses, evidence: BoostingObservations, t: int, basis: ReconstructionContext
) -> None:
    """Extend all pieces by tree ``t``, to every leaf that they can reach, in place.

    The weights are the distribution closest to the prior whose expected sums equal the sums of the
    leaves.
    """
    tree, sums = evidence.trees[t], basis.sums[t]
    leaves = basis.grid.leaves(tree)
    boxed = (paths.lo, paths.hi, paths.label)
    options = reach(leaves, boxed, basis.prior, prior_leaf=sums.prior_leaf, codes=paths.codes)
    gh = gradients(paths.margin[:, -1], paths.label)
    x = contributions(evidence, t, sums, leaves, options, gh)
    target, ridge = equations(evidence, t, sums, leaves)
    share = max_entropy(options, paths.weight, x, target, ridge)
    piece = np.repeat(np.arange(len(paths.slot)), np.diff(options.offsets))
    weight = paths.weight[piece] * np.maximum(share, FLOOR)
    paths.grow(piece, options.leaf, weight, tree, basis.grid)


def fit_labels(
    paths: PathHypotheses,
    solved: list[NDArray[np.bool_]],
    count: list[Longs],
    positives: list[Longs],
) -> None:
    """Scale weights towards the label counts of solved leaves, in place.

    Parameters
    ----------
    paths : PathHypotheses
        Changed in place.
    solved : list of bool array, shape (J,)
        Solved leaves of every tree.
    count, positives : list of int64 array, shape (J,)
        Rows, and rows with label 1, in solved leaves.
    """
    for _ in range(SWEEPS):
        for t in range(paths.trees):
            side = paths.leaf[:, t] * 2 + paths.label
            total = np.bincount(side, paths.weight, 2 * len(solved[t]))
            goal = np.stack([count[t] - positives[t], positives[t]], axis=1).reshape(-1)
            factor = np.where(np.repeat(solved[t], 2), goal / np.maximum(total, 1e-12), 1.0)
            paths.weight = np.maximum(paths.weight * factor[side], 1e-9)
            paths.normalise()


def fit_sums(paths: PathHypotheses, t: int, sums: LeafSums) -> None:
    """Change weights so that the expected sums of tree ``t`` equal ``sums``, in place."""
    assert sums.g is not None
    assert sums.h is not None
    order = np.argsort(paths.slot, kind="stable")
    width = np.bincount(paths.slot, minlength=len(paths.size))
    share = (paths.weight / paths.size[paths.slot])[order]
    options = ReachableLeaves(
        np.concatenate([[0], np.cumsum(width)]).astype(np.int64),
        paths.leaf[order, t].astype(np.int32),
        np.log(np.maximum(share, 1e-12)),
    )
    x = np.stack(gradients(paths.margin[order, t], paths.label[order]), axis=1)
    target = np.stack([sums.g, sums.h], axis=1)
    share = max_entropy(options, paths.size.astype(np.float64), x, target, np.zeros_like(target))
    weight = np.empty_like(paths.weight)
    weight[order] = np.repeat(paths.size, width) * np.maximum(share, FLOOR)
    paths.weight = weight
    paths.normalise()


UNLIKELY = 50.0  # nats: cost of a first leaf and label that no piece of the slot has


def rows_of(paths: PathHypotheses, first: Counts) -> tuple[FeatureBoxes, Longs]:
    """Assign the rows of all slots to pieces so that the counts of the first tree are correct.

    If a slot has several pieces, the most probable assignment with these counts is chosen for all
    slots together (a linear assignment problem).

    Returns
    -------
    boxes : FeatureBoxes
        Boxes of the n rows. Rows with equal boxes and labels have the same ``history``.
    place : int64 array, shape (n,)
        Number of the pair (leaf of the first tree, label) of each row.
    """
    row_slot = np.repeat(np.arange(len(paths.size)), paths.size)
    place = paths.leaf[:, 0].astype(np.int64) * 2 + paths.label
    n_places = 2 * len(first.n0)
    place_sizes = np.stack([first.n0, first.n1], axis=1).reshape(-1)
    row_place = np.empty(len(row_slot), dtype=np.int64)
    # Slots rarely span several margins after the first tree, so that the problem splits into small
    # blocks.
    for slots, places in _blocks(paths.slot, place, n_places):
        rows = np.flatnonzero(np.isin(row_slot, slots))
        ends = np.repeat(places, place_sizes[places])
        weight = np.zeros((len(paths.size), n_places))
        np.add.at(weight, (paths.slot, place), paths.weight / paths.size[paths.slot])
        share = weight[np.ix_(row_slot[rows], ends)]
        cost = np.where(share > 0, -np.log(np.maximum(share, 1e-300)), UNLIKELY)
        chosen, end = linear_sum_assignment(cost)
        row_place[rows[chosen]] = ends[end]
    piece = _pieces(paths, row_slot, row_place, place)
    box = np.column_stack(
        [paths.lo[piece], paths.hi[piece], paths.label[piece], paths.codes[piece].view(np.int64)]
    )
    _, history = np.unique(box, axis=0, return_inverse=True)
    boxes = FeatureBoxes(
        paths.lo[piece], paths.hi[piece], paths.label[piece], paths.margin[piece, -1].copy(),
        history.reshape(-1).astype(np.int64),
    )  # fmt: skip
    boxes.codes = paths.codes[piece]
    return boxes, row_place


def _blocks(slot: Longs, place: Longs, n_places: int) -> list[tuple[Longs, Longs]]:
    """Return the connected components of slots and places, connected by pieces."""
    name = np.arange(n_places)
    changed = True
    while changed:
        least = np.full(int(slot.max(initial=-1)) + 1, n_places)
        np.minimum.at(least, slot, name[place])
        new = name.copy()
        np.minimum.at(new, place, least[slot])
        changed = bool((new != name).any())
        name = new
    return [
        (np.unique(slot[name[place] == b]), np.unique(place[name[place] == b]))
        for b in np.unique(name[place])
    ]


def _pieces(paths: PathHypotheses, row_slot: Longs, row_place: Longs, place: Longs) -> Longs:
    """Return a piece per row: the heaviest of its slot and place.

    The weight of the chosen piece is then reduced by one row. If the slot has no piece of the
    place, all its pieces are considered.
    """
    weight = paths.weight.copy()
    order = np.argsort(paths.slot, kind="stable")
    start = np.searchsorted(paths.slot[order], row_slot)
    stop = start + np.bincount(paths.slot, minlength=len(paths.size))[row_slot]
    out = np.empty(len(row_slot), dtype=np.int64)
    for i, row_target in enumerate(row_place):
        slot_pieces = order[start[i] : stop[i]]
        right = slot_pieces[place[slot_pieces] == row_target]
        slot_pieces = right if len(right) else slot_pieces
        out[i] = slot_pieces[weight[slot_pieces].argmax()]
        weight[out[i]] -= 1.0
    return out
