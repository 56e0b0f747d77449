"""Go on boosting from given margins, on one owner's rows: what a client does by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.boosting import Owned
from fedtrees.trees.boosted.fixed_point import Bits, to_fixed, weighted
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import build_histogram, node_sums
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.sampling import ColumnSampler, dropped_rows
from fedtrees.trees.partition import ROOT, RowPartition
from fedtrees.trees.routing import Routes

# A float32 of size 2^-26 or more is a whole number of units, and so finer than XGBoost's own sums,
# which are float64. Nobody else adds to these sums, so the units need not be agreed on.
_FINEST_BITS = 50
_SUM_BITS = 61  # what int64 has room for, with a bit to spare


def add_trees(
    trees: Sequence[Tree], X: NDArray[np.float32], margin: NDArray[np.float32], first: int = 0
) -> None:
    """Add trees to margins in place, one after the other in float32, as XGBoost does.

    Parameters
    ----------
    trees : sequence of Tree
    X : float32 array, shape (n, d)
    margin : float32 array, shape (K, n)
    first : int
        The model's number of the first tree: tree t adds to output ``t % K``.
    """
    if not trees or not len(X):
        return
    for block, leaves in Routes.of(trees).blocks(X):
        for t, leaf in enumerate(leaves.T):
            margin[(first + t) % len(margin), block] += trees[t].value[leaf]


@dataclass(frozen=True, eq=False)
class Continuation:
    """One owner's rows and how it grows trees on them, whatever the model so far.

    Attributes
    ----------
    rows : Owned
    cuts : Cuts
    params : TreeParams
    objective : Objective
    streams : Streams
        The owner's: samples of rows and columns are drawn from it.
    least_rows : int
        A split needs so many rows on either side; 0: `min_child_weight` alone decides. Where a
        round draws fewer, it draws none.
    """

    rows: Owned
    cuts: Cuts
    params: TreeParams
    objective: Objective
    streams: Streams
    least_rows: int = 0

    def round(self, number: int, margin: NDArray[np.float32]) -> list[Tree]:
        """Grow one tree per output and add them to the margins, shape (K, n), in place.

        Parameters
        ----------
        number : int
            Of the round, from 0: samples are drawn anew in every one.
        margin : float32 array, shape (K, n)
        """
        gh = self.objective.gradients(margin, self.rows.y)
        bits = finest_bits(gh, self.rows.weight)
        gh = weighted(gh, self.rows.weight, bits)
        dropped = dropped_rows(len(self.rows.y), self.params.subsample, self.streams, number)
        counted = np.ones(gh.shape[1:], dtype=np.int64)
        if dropped is not None:
            counted[dropped] = 0
            if counted[:, 0].sum() < self.least_rows:
                counted[:] = 0
            gh[:, counted[:, 0] == 0] = 0
        units = to_fixed(gh, bits)
        grown = []
        for k in range(self.objective.n_outputs):
            tree, partition = self._grow(number * len(margin) + k, units[k], bits, counted)
            leaves = tree.leaves.astype(np.int32)
            partition.add_to(margin[k], leaves, tree.value[leaves])
            grown.append(tree)
        return grown

    def _grow(
        self, number: int, gh: NDArray[np.int64], bits: Bits, counted: NDArray[np.int64]
    ) -> tuple[Tree, RowPartition]:
        bins, partition = self.rows.bins, RowPartition(len(self.rows.y))
        root = node_sums(gh, partition.rows, partition.ranges(ROOT))[0]
        grower = TreeGrower(self.cuts, self.params, root, bits=bits)
        sampler = ColumnSampler(self.cuts, self.params, self.streams, number)
        while len(grower.nodes):
            ranges = partition.ranges(grower.to_build)
            hist = build_histogram(bins, gh, partition.rows, ranges)
            allowed = None
            if self.least_rows > 1:
                every = partition.ranges(grower.nodes)
                counts = build_histogram(bins, counted, partition.rows, every)[..., 0]
                allowed = enough_rows(counts, self.cuts, self.least_rows)
            decisions = grower.decide(hist, sampler.mask(grower.depths, allowed))
            partition.split(bins, decisions)
        return grower.finish(), partition


def finest_bits(gh: NDArray[np.float32], weight: NDArray[np.float32] | None) -> Bits:
    """Return the most binary places that int64 sums of these gradients have room for, at most 50.

    Parameters
    ----------
    gh : float32 array, shape (K, n, 2)
    weight : float array, shape (n,), or None
    """
    sizes = np.abs(gh, dtype=np.float64) * (1.0 if weight is None else weight[:, None])
    g, h = sizes.sum(axis=1).max(axis=0).tolist()
    room = [_SUM_BITS - math.ceil(math.log2(max(total, 1.0))) for total in (g, h)]
    return min(room[0], _FINEST_BITS), min(room[1], _FINEST_BITS)


def enough_rows(counts: NDArray[np.int64], cuts: Cuts, least: int) -> NDArray[np.bool_]:
    """Return which splits leave so many rows on both sides, bool, shape (k, total_bins).

    Rows whose value is missing may go either way and are not counted on.

    Parameters
    ----------
    counts : int64 array, shape (k, total_bins)
        Rows per node and bin.
    cuts : Cuts
    least : int
    """
    allowed = np.empty(counts.shape, dtype=bool)
    for begin, end in zip(cuts.offsets[:-1], cuts.offsets[1:], strict=True):
        below = np.cumsum(counts[:, begin:end], axis=1)
        above = below[:, -1:] - below
        allowed[:, begin:end] = (below >= least) & (above >= least)
    return allowed
