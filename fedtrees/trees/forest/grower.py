"""Grow random forests: single trees from summed class counts, and complete forests on one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.forest.gini import child_keys, choose_splits, feature_orders, pair_starts
from fedtrees.trees.forest.growth import assemble, grow_whole_tree
from fedtrees.trees.forest.params import ForestParams, feature_count
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, keep_best_splits
from fedtrees.trees.partition import Decisions


def draw_rows(n: int, params: ForestParams, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each row of one party enters a tree, int64, shape (n,).

    Parameters
    ----------
    n : int
        Number of rows.
    params : ForestParams
        Hyperparameters.
    rng : numpy.random.Generator
        Source of randomness.
    """
    size = n if params.max_samples is None else min(n, max(1, round(n * params.max_samples)))
    if params.bootstrap:
        drawn = rng.integers(0, n, size) if n else np.zeros(0, dtype=np.int64)
    else:
        drawn = rng.permutation(n)[:size] if size < n else np.arange(n)
    return np.bincount(drawn, minlength=n).astype(np.int64)


def rows_of_tree(n: int, params: ForestParams, streams: Streams, tree: int) -> NDArray[np.int64]:
    """Return how often each of n rows enters a tree of `grow_random_forest`, int64, shape (n,).

    Parameters
    ----------
    n : int
        Number of rows.
    params : ForestParams
        Hyperparameters.
    streams : Streams
        Streams of the training.
    tree : int
        Number of the tree.
    """
    return draw_rows(n, params, streams.client(0).rng("rows", tree))


def draw_columns(
    n_features: int, params: ForestParams, rng: np.random.Generator
) -> tuple[NDArray[np.int64], int]:
    """Return the features that a tree may use, int64, ascending, and the random key of its root.

    Parameters
    ----------
    n_features : int
        Number of features.
    params : ForestParams
        Hyperparameters.
    rng : numpy.random.Generator
        Source of randomness.
    """
    count = feature_count(params.tree_features, n_features)
    features = np.sort(rng.permutation(n_features)[:count]).astype(np.int64)
    return features, int(rng.integers(0, 2**32))


class ForestGrower:
    """State of one tree that is grown: it requests class counts and returns split decisions.

    It never uses a row. While `nodes` is not empty, the caller collects the counts of `features` at
    `nodes`, summed over all parties with rows, calls `choose_splits`, and sends the decisions to
    these parties. If all drawn features of a node are constant, the node is requested again with
    all of its remaining features.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins.
    params : ForestParams
        Hyperparameters. `max_leaf_nodes` is not used here, see `keep_best_splits`.
    totals : int64 array, shape (K,)
        Number of rows of each class.
    features : int64 array
        Features that the tree may use.
    key : int
        Random key of the root.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes that need counts.
    features : int32 array, shape (p,)
        Requested features, one node after the other, in the order in which they are tried.
    offsets : int64 array, shape (k + 1,)
        The features of node j are ``features[offsets[j]:offsets[j + 1]]``.
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
        self._depth, self._size = 0, 1  # levels that are complete, and nodes that have a number
        self._levels: list[_Level] = []
        root = np.array(totals, dtype=np.int64).reshape(1, -1)
        self._open(_Level.of(0, root, np.array([key], dtype=np.int64)))

    def _open(self, level: _Level) -> None:
        """Request counts for the nodes of a level that can be split."""
        self._levels.append(level)
        p, rows = self._params, level.counts.sum(axis=1)
        # A node needs enough rows for two leaves, and rows of at least two classes.
        split = (rows >= p.min_samples_split) & (rows >= 2 * p.min_samples_leaf)
        split &= (level.counts.max(axis=1, initial=0) < rows) & (self._depth < p.depth)
        self._asked = np.flatnonzero(split)  # positions within the level
        self._orders = feature_orders(level.keys[self._asked], self._usable)
        self._again = False
        self._ask(self._orders[:, : self._width])

    def _ask(self, features: NDArray[np.int64]) -> None:
        """Set the requested nodes and features."""
        self.nodes = (self._levels[-1].first + self._asked).astype(np.int32)
        self.features = features.reshape(-1).astype(np.int32)
        self.offsets = np.arange(len(features) + 1, dtype=np.int64) * features.shape[1]

    def choose_splits(
        self, counts: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
    ) -> Decisions:
        """Split the requested nodes. When a level is complete, continue with its children.

        Parameters
        ----------
        counts : int64 array, shape (bins of all `features`, K)
            Result of `fedtrees.trees.forest.gini.class_histogram`, summed over all parties with
            rows.
        allowed : bool array, shape (bins of all `features`,), optional
            Bins after which rows may be split.

        Returns
        -------
        decisions : Decisions
            Those of the complete level. Empty while some of its nodes need more counts.

        Raises
        ------
        DataError
            If the shape of `counts` is wrong.
        """
        level = self._levels[-1]
        starts = pair_starts(self.features, self._cuts.n_bins)
        expected_shape = (int(starts[-1]), level.counts.shape[1])
        if counts.shape != expected_shape:
            raise DataError(f"class counts of shape {counts.shape}; expected {expected_shape}")
        # In the second request, a node tries its remaining features in order and stops at the first
        # one that is not constant.
        pair, borders, left, usable = choose_splits(
            counts, starts, self.offsets, level.counts[self._asked],
            self._params.min_samples_leaf, self._again, allowed,
        )  # fmt: skip
        chosen = pair >= 0
        at = self._asked[chosen]
        level.feature[at] = self.features[pair[chosen]]
        level.bin[at], level.default_left[at] = borders[chosen].T
        level.left_counts[at] = left[chosen]
        if not self._again and not usable.all() and self._width < len(self._usable):
            self._asked, self._again = self._asked[~usable], True
            self._ask(self._orders[~usable, self._width :])
            return level.decisions(self._cuts, np.zeros(0, dtype=np.intp))
        return self._close(level)

    def _close(self, level: _Level) -> Decisions:
        """Number the children of a complete level and open them."""
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
    """Nodes of one depth, numbered from `first`.

    Their splits are filled in when they are chosen.
    """

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
        """Return a level without splits."""
        n = len(counts)
        feature, bin, left = (np.full(n, -1, dtype=np.int32) for _ in range(3))
        nothing = np.zeros_like(counts)
        return _Level(first, counts, keys, feature, bin, np.zeros(n, dtype=bool), left, nothing)

    def decisions(self, cuts: Cuts, at: NDArray[np.intp]) -> Decisions:
        """Return the splits of some of the nodes."""
        feature, bin = self.feature[at], self.bin[at]
        # A split between present and missing values is after the last bin.
        bin = np.minimum(bin, cuts.n_bins[feature] - 1)
        nodes = (self.first + at).astype(np.int32)
        threshold = cuts.thresholds(feature, bin)
        return Decisions(nodes, feature, bin, threshold, self.default_left[at], self.left[at])


def class_totals(
    labels: NDArray[np.int64], weights: NDArray[np.int64], n_classes: int
) -> NDArray[np.int64]:
    """Return the number of drawn rows of each class, int64, shape (K,).

    Parameters
    ----------
    labels, weights : int64 array, shape (n,)
        Class code and multiplicity of every row.
    n_classes : int
        Number of classes K.
    """
    return np.bincount(labels, weights=weights, minlength=n_classes).astype(np.int64)


def grow_random_forest(
    X: NDArray[Any] | Bins,
    y: NDArray[Any],
    cuts: Cuts,
    params: ForestParams,
    *,
    n_classes: int | None = None,
    seed: int | Streams = 0,
) -> RandomForest:
    """Train a random forest on one table.

    Parameters
    ----------
    X : float array, shape (n, d), or Bins
        Rows. NaN marks a missing value.
    y : array, shape (n,)
        Class codes 0 to K - 1.
    cuts : Cuts
        Borders of the bins.
    params : ForestParams
        Hyperparameters.
    n_classes : int, optional
        Number of classes K. By default one more than the largest code, and at least 2.
    seed : int or Streams
        Source of all randomness.

    Raises
    ------
    DataError
        If there are no rows, if a label is not a class code, or if X does not fit the cuts or
        contains an infinite value.
    """
    bins = X if isinstance(X, Bins) else bin_rows(X, cuts)
    labels = _labels(y, len(bins), n_classes)
    n_classes = n_classes or max(2, 1 + int(labels.max()))
    streams = seed if isinstance(seed, Streams) else Streams(seed)
    trees = []
    for t in range(params.trees):
        weights = rows_of_tree(len(bins), params, streams, t)
        drawn = draw_columns(cuts.n_features, params, streams.deciding().rng("columns", t))
        tree = grow_whole_tree(bins, labels, weights, cuts, n_classes, params, *drawn)
        limit = params.max_leaf_nodes
        trees.append(tree if limit is None else keep_best_splits(tree, limit))
    return RandomForest(tuple(trees))


def _labels(y: NDArray[Any], n: int, n_classes: int | None) -> NDArray[np.int64]:
    """Return class codes as int64, after a check."""
    if not n:
        raise DataError("no rows to train on")
    limit = np.inf if n_classes is None else n_classes
    y = np.asarray(y)
    if y.shape != (n,):
        raise DataError(f"labels of shape {y.shape} do not fit {n} rows")
    codes = y.astype(np.int64) if y.dtype.kind in "biuf" else None
    if codes is None or (codes != y).any() or (codes < 0).any() or (codes >= limit).any():
        raise DataError("labels must be class codes 0, 1, ... below the number of classes")
    return codes
