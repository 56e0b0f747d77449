"""Grow random forests: the coordinator's state of one tree, and the engine over tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.forest.gini import (
    child_keys,
    choose_splits,
    class_histogram,
    feature_orders,
    pair_starts,
)
from fedtrees.trees.forest.growth import assemble, grow_whole_tree
from fedtrees.trees.forest.params import ForestParams, feature_count
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, keep_best_splits
from fedtrees.trees.partition import Decisions, RowPartition

Part = tuple[Bins, NDArray[np.int64]]


def draw_rows(n: int, params: ForestParams, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each of one owner's rows enters a tree, int64, shape (n,)."""
    size = n if params.max_samples is None else min(n, max(1, round(n * params.max_samples)))
    if params.bootstrap:
        drawn = rng.integers(0, n, size) if n else np.zeros(0, dtype=np.int64)
    else:
        drawn = rng.permutation(n)[:size] if size < n else np.arange(n)
    return np.bincount(drawn, minlength=n).astype(np.int64)


def draw_columns(
    n_features: int, params: ForestParams, rng: np.random.Generator
) -> tuple[NDArray[np.int64], int]:
    """Return the features a tree may use, int64, ascending, and the key of its root's coins."""
    wanted = feature_count(params.tree_features, n_features)
    features = np.sort(rng.permutation(n_features)[:wanted]).astype(np.int64)
    return features, int(rng.integers(0, 2**32))


class ForestGrower:
    """The coordinator of one tree: asks for class counts, gives split decisions out.

    It never sees a row. While `nodes` is not empty: collect the counts of `features` at `nodes`
    (summed over row owners), call `decide`, and send the decisions to the row owners. A node
    whose drawn features turn out constant is asked about once more, with all that are left.

    Parameters
    ----------
    cuts : Cuts
    params : ForestParams
        `max_leaf_nodes` is left to `keep_best_splits`.
    totals : int64 array, shape (K,)
        Rows of each class.
    features : int64 array
        Features the tree may use.
    key : int
        Where the coins of its nodes come from.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes that wait for counts.
    features : int32 array, shape (p,)
        What is asked of them, one node after the other, in the order of trying.
    offsets : int64 array, shape (k + 1,)
        Node j is asked for ``features[offsets[j]:offsets[j + 1]]``.
    """

    def __init__(
        self,
        cuts: Cuts,
        params: ForestParams,
        totals: NDArray[np.int64],
        features: NDArray[np.int64],
        key: int,
    ) -> None:
        self._cuts, self._params, self._usable = cuts, params, features
        self._width = feature_count(params.max_features, len(features))
        self._depth, self._size = 0, 1  # levels closed, nodes numbered
        self._levels: list[_Level] = []
        root = np.array(totals, dtype=np.int64).reshape(1, -1)
        self._open(_Level.of(0, root, np.array([key], dtype=np.int64)))

    def _open(self, level: _Level) -> None:
        """Ask about the nodes of a level that can be split."""
        self._levels.append(level)
        p, rows = self._params, level.counts.sum(axis=1)
        split = (rows >= p.min_samples_split) & (rows >= 2 * p.min_samples_leaf)
        split &= (level.counts.max(axis=1, initial=0) < rows) & (self._depth < p.depth)
        self._asked = np.flatnonzero(split)  # within the level
        self._orders = feature_orders(level.keys[self._asked], self._usable)
        self._again = False
        self._ask(self._orders[:, : self._width])

    def _ask(self, features: NDArray[np.int64]) -> None:
        self.nodes = (self._levels[-1].first + self._asked).astype(np.int32)
        self.features = features.reshape(-1).astype(np.int32)
        self.offsets = np.arange(len(features) + 1, dtype=np.int64) * features.shape[1]

    def decide(self, counts: NDArray[np.int64]) -> Decisions:
        """Split the waiting nodes; once all of a level are settled, move on to their children.

        Parameters
        ----------
        counts : int64 array, shape (bins of all `features`, K)
            `fedtrees.trees.forest.gini.class_histogram`, summed over row owners.

        Returns
        -------
        Decisions
            Of the whole level; empty while some of its nodes need more counts.

        Raises
        ------
        DataError
            If the shape does not fit.
        """
        level = self._levels[-1]
        starts = pair_starts(self.features, self._cuts.n_bins)
        wanted = (int(starts[-1]), level.counts.shape[1])
        if counts.shape != wanted:
            raise DataError(f"class counts of shape {counts.shape}; expected {wanted}")
        # Asked again, a node has its features left in order, and stops at the first that varies.
        pair, found, left, usable = choose_splits(
            counts, starts, self.offsets, level.counts[self._asked],
            self._params.min_samples_leaf, self._again,
        )  # fmt: skip
        chosen = pair >= 0
        at = self._asked[chosen]
        level.feature[at] = self.features[pair[chosen]]
        level.bin[at], level.default_left[at] = found[chosen].T
        level.left_counts[at] = left[chosen]
        if not self._again and not usable.all() and self._width < len(self._usable):
            self._asked, self._again = self._asked[~usable], True
            self._ask(self._orders[~usable, self._width :])
            return level.decisions(self._cuts, np.zeros(0, dtype=np.intp))
        return self._close(level)

    def _close(self, level: _Level) -> Decisions:
        inner = np.flatnonzero(level.feature >= 0)
        level.left[inner] = self._size + 2 * np.arange(len(inner))
        left = level.left_counts[inner]
        pairs = np.stack([left, level.counts[inner] - left], axis=1)
        self._depth += 1
        self._open(
            _Level.of(self._size, pairs.reshape(-1, left.shape[1]), child_keys(level.keys[inner]))
        )
        self._size += 2 * len(inner)
        return level.decisions(self._cuts, inner)

    def finish(self) -> ClassTree:
        """Return the tree."""

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(level, name) for level in self._levels])

        structure = joined("feature"), joined("bin"), joined("default_left"), joined("left")
        return assemble(*structure, joined("counts"), self._cuts)


@dataclass(frozen=True, eq=False)
class _Level:
    """The nodes of one depth, numbered from `first` on; their splits are filled in when found."""

    first: int
    counts: NDArray[np.int64]
    keys: NDArray[np.int64]
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    left: NDArray[np.int32]
    left_counts: NDArray[np.int64]

    @staticmethod
    def of(first: int, counts: NDArray[np.int64], keys: NDArray[np.int64]) -> _Level:
        n = len(counts)
        feature, bin, left = (np.full(n, -1, dtype=np.int32) for _ in range(3))
        nothing = np.zeros_like(counts)
        return _Level(first, counts, keys, feature, bin, np.zeros(n, dtype=bool), left, nothing)

    def decisions(self, cuts: Cuts, at: NDArray[np.intp]) -> Decisions:
        """Return how some of the nodes split."""
        feature, bin = self.feature[at], self.bin[at]
        bin = np.minimum(bin, cuts.n_bins[feature] - 1)
        nodes = (self.first + at).astype(np.int32)
        threshold = cuts.thresholds(feature, bin)
        return Decisions(nodes, feature, bin, threshold, self.default_left[at], self.left[at])


def grow_class_tree(
    parts: Sequence[Part],
    weights: Sequence[NDArray[np.int64]],
    cuts: Cuts,
    n_classes: int,
    params: ForestParams,
    features: NDArray[np.int64],
    key: int,
) -> ClassTree:
    """Grow one tree over the rows of several owners, by summed class counts; see `ForestGrower`.

    Parameters
    ----------
    parts : sequence of (Bins, int64 array of shape (n_i,))
        Binned rows and class codes of every owner.
    weights : sequence of int64 array, shape (n_i,)
        How often each row enters.
    """
    owners = [
        (bins, y, w, RowPartition(np.flatnonzero(w).astype(np.int32)))
        for (bins, y), w in zip(parts, weights, strict=True)
    ]
    totals = np.sum([class_totals(y, w, n_classes) for _, y, w, _ in owners], axis=0)
    grower = ForestGrower(cuts, params, totals, features, key)
    while len(grower.nodes):
        counts: Any = 0
        for bins, y, w, p in owners:
            ranges = p.ranges(grower.nodes)
            asked = grower.features, grower.offsets
            counts = counts + class_histogram(bins, y, w, p.rows, ranges, *asked, n_classes)
        decisions = grower.decide(counts)
        for bins, _, _, p in owners:
            p.split(bins, decisions)
    return grower.finish()


def class_totals(
    labels: NDArray[np.int64], weights: NDArray[np.int64], n_classes: int
) -> NDArray[np.int64]:
    """Return how many drawn rows each class has, int64, shape (K,)."""
    return np.bincount(labels, weights=weights, minlength=n_classes).astype(np.int64)


def grow_random_forest_over(
    parts: Sequence[tuple[Bins, NDArray[Any]]],
    cuts: Cuts,
    params: ForestParams,
    *,
    n_classes: int | None = None,
    seed: int | Streams = 0,
    weights: Sequence[NDArray[Any]] | None = None,
) -> RandomForest:
    """Grow a forest over the rows of one or more owners.

    Owner i draws its own rows for every tree, from the stream of the party ``client-i``. Given
    the draws, the forest does not depend on who owns which row; without bootstrap and
    subsampling there are none.

    Parameters
    ----------
    parts : sequence of (Bins, array of shape (n_i,))
        Binned rows and class codes 0 to K - 1 of every owner.
    cuts : Cuts
    params : ForestParams
    n_classes : int, optional
        K; by default one more than the largest code, and 2 at least.
    seed : int or Streams
        Every draw derives from it; a protocol run with the same seed makes the same draws.
    weights : sequence of int array, shape (trees, n_i), optional
        How often each row enters each tree, instead of draws.

    Raises
    ------
    DataError
        If there is no row, a label is no class code, or weights do not fit.
    """
    labels = _labels([y for _, y in parts], [len(b) for b, _ in parts], n_classes)
    n_classes = n_classes or max(2, 1 + max(int(y.max(initial=0)) for y in labels))
    owners = [(bins, y) for (bins, _), y in zip(parts, labels, strict=True)]
    streams = seed if isinstance(seed, Streams) else Streams(seed)
    trees = []
    for t in range(params.trees):
        drawn = _drawn(owners, params, streams, t, weights)
        columns = streams.child("server").rng("columns", t)
        features, key = draw_columns(cuts.n_features, params, columns)
        if len(owners) == 1:
            (bins, y), w = owners[0], drawn[0]
            tree = grow_whole_tree(bins, y, w, cuts, n_classes, params, features, key)
        else:
            tree = grow_class_tree(owners, drawn, cuts, n_classes, params, features, key)
        limit = params.max_leaf_nodes
        trees.append(tree if limit is None else keep_best_splits(tree, limit))
    return RandomForest(tuple(trees))


def _drawn(
    owners: Sequence[Part],
    params: ForestParams,
    streams: Streams,
    tree: int,
    weights: Sequence[NDArray[Any]] | None,
) -> list[NDArray[np.int64]]:
    if weights is None:
        coins = [streams.child(f"client-{i}") for i in range(len(owners))]
        return [
            draw_rows(len(y), params, c.rng("rows", tree))
            for (_, y), c in zip(owners, coins, strict=True)
        ]
    found = [np.asarray(w, dtype=np.int64) for w in weights]
    for w, (_, y) in zip(found, owners, strict=True):
        if w.shape != (params.trees, len(y)) or (w.size and w.min() < 0):
            raise DataError(
                f"weights of shape {w.shape}; expected {(params.trees, len(y))}, none negative"
            )
    return [w[tree] for w in found]


def _labels(
    parts: Sequence[NDArray[Any]], sizes: Sequence[int], n_classes: int | None
) -> list[NDArray[np.int64]]:
    """Return class codes as int64, checked."""
    if not sum(sizes):
        raise DataError("no rows to train on")
    limit = np.inf if n_classes is None else n_classes
    found = []
    for y, size in zip(map(np.asarray, parts), sizes, strict=True):
        if y.shape != (size,):
            raise DataError(f"labels of shape {y.shape} do not fit {size} rows")
        codes = y.astype(np.int64) if y.dtype.kind in "biuf" else None
        if codes is None or (codes != y).any() or (codes < 0).any() or (codes >= limit).any():
            raise DataError("labels must be class codes 0, 1, ... below the number of classes")
        found.append(codes)
    return found


def grow_random_forest(
    X: NDArray[Any] | Bins,
    y: NDArray[Any],
    cuts: Cuts,
    params: ForestParams,
    *,
    n_classes: int | None = None,
    seed: int | Streams = 0,
    weights: NDArray[Any] | None = None,
) -> RandomForest:
    """Grow a forest over one table: the federation with a single owner.

    Parameters
    ----------
    X : float array, shape (n, d), or Bins
        Rows; NaN marks a missing value.
    weights : int array, shape (trees, n), optional
        As the others, see `grow_random_forest_over`.

    Raises
    ------
    DataError
        As `grow_random_forest_over`, and if X does not fit the cuts or is infinite somewhere.
    """
    bins = X if isinstance(X, Bins) else bin_rows(X, cuts)
    drawn = None if weights is None else [weights]
    return grow_random_forest_over(
        [(bins, y)], cuts, params, n_classes=n_classes, seed=seed, weights=drawn
    )
