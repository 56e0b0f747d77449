"""Grow random forests: the coordinator's state of one tree, and the engine over tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.forest_params import ForestParams, feature_count
from fedtrees.trees.gini import child_key, class_histogram, feature_order, pair_starts, scan_feature
from fedtrees.trees.partition import Decisions, RowPartition
from fedtrees.trees.random_forest import ClassTree, RandomForest, keep_best_splits
from fedtrees.trees.random_growth import assemble, grow_whole_tree

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
        self._counts = [np.array(totals, dtype=np.int64)]  # a message's array is read-only
        self._keys = [key]
        self._splits: dict[int, tuple[int, int, bool, int]] = {}
        self._depth = 0
        self._chosen: dict[int, tuple[int, int, bool, NDArray[np.int64]]] = {}
        self._open([0])

    def _splittable(self, node: int) -> bool:
        counts, p = self._counts[node], self._params
        total = int(counts.sum())
        enough = total >= p.min_samples_split and total >= 2 * p.min_samples_leaf
        return enough and int(counts.max()) < total

    def _open(self, level: list[int]) -> None:
        deeper = self._depth < self._params.depth
        asked = [n for n in level if deeper and self._splittable(n)]
        orders = [feature_order(self._keys[n], self._usable) for n in asked]
        self._later = {n: o[self._width :] for n, o in zip(asked, orders, strict=True)}
        self._ask(asked, [o[: self._width] for o in orders])

    def _ask(self, nodes: list[int], features: Sequence[NDArray[np.int64]]) -> None:
        self.nodes = np.array(nodes, dtype=np.int32)
        self.features = np.concatenate([*features, np.zeros(0, np.int64)]).astype(np.int32)
        self.offsets = np.cumsum([0, *map(len, features)], dtype=np.int64)

    def decide(self, counts: NDArray[np.int64]) -> Decisions:
        """Split the waiting nodes; once all of a level are settled, move on to their children.

        Parameters
        ----------
        counts : int64 array, shape (bins of all `features`, K)
            `fedtrees.trees.gini.class_histogram`, summed over row owners.

        Returns
        -------
        Decisions
            Of the whole level; empty while some of its nodes need more counts.

        Raises
        ------
        DataError
            If the shape does not fit.
        """
        n_bins = self._cuts.n_bins
        starts = pair_starts(self.features, n_bins)
        if counts.shape != (int(starts[-1]), len(self._counts[0])):
            raise DataError(
                f"class counts of shape {counts.shape}; expected "
                f"{(int(starts[-1]), len(self._counts[0]))}"
            )
        unsettled = []
        for j, node in enumerate(self.nodes.tolist()):
            pairs = range(int(self.offsets[j]), int(self.offsets[j + 1]))
            if not self._try(node, [(int(self.features[p]), counts[starts[p] : starts[p + 1]])
                                    for p in pairs]):  # fmt: skip
                unsettled.append(node)
        again = [n for n in unsettled if len(self._later.get(n, ()))]
        if again:
            self._ask(again, [self._later.pop(n) for n in again])
            return self._decisions([])
        return self._next_level()

    def _try(self, node: int, tables: list[tuple[int, NDArray[np.int64]]]) -> bool:
        """Choose among the tables of a node; return whether any of its features varied.

        Asked again, a node has its remaining features in order and stops at the first that varies.
        """
        totals = self._counts[node]
        n_classes = len(totals)
        again = node not in self._later
        best, usable = -1.0, False
        scratch, left = np.empty(n_classes, dtype=np.int64), np.empty(n_classes, dtype=np.int64)
        found = np.empty(2, dtype=np.int64)
        for feature, table in tables:
            absent = totals - table.sum(axis=0)
            codes = np.flatnonzero(table.any(axis=1)).astype(np.int64)
            if len(codes) + bool(absent.any()) < 2:
                continue
            usable = True
            flat = np.concatenate([table, absent[None]]).reshape(-1)
            before = best
            best = scan_feature(
                flat, codes, len(codes), len(table), totals, self._params.min_samples_leaf, best,
                scratch, left, found,
            )  # fmt: skip
            if best > before:
                self._chosen[node] = (feature, int(found[0]), bool(found[1]), left.copy())
            if again:
                break
        return usable

    def _next_level(self) -> Decisions:
        inner = sorted(self._chosen)
        children = []
        for node in inner:
            feature, bin, missing_left, left = self._chosen[node]
            child = len(self._counts)
            self._splits[node] = (feature, bin, missing_left, child)
            self._counts += [left, self._counts[node] - left]
            self._keys += [child_key(self._keys[node], side) for side in range(2)]
            children += [child, child + 1]
        self._chosen = {}
        self._depth += 1
        self._open(children)
        return self._decisions(inner)

    def _decisions(self, nodes: list[int]) -> Decisions:
        rows = [self._splits[n] for n in nodes]
        feature, bin, left = (np.array([r[i] for r in rows], dtype=np.int32) for i in (0, 1, 3))
        default_left = np.array([r[2] for r in rows], dtype=bool)
        threshold = self._cuts.thresholds(feature, bin) if rows else np.zeros(0, np.float32)
        numbers = np.array(nodes, dtype=np.int32)
        return Decisions(numbers, feature, bin, threshold, default_left, left)

    def finish(self) -> ClassTree:
        """Return the tree."""
        size = len(self._counts)
        feature, bin, left = (np.full(size, -1, dtype=np.int32) for _ in range(3))
        default_left = np.zeros(size, dtype=bool)
        for node, split in self._splits.items():
            feature[node], bin[node], default_left[node], left[node] = split
        return assemble(feature, bin, default_left, left, np.stack(self._counts), self._cuts)


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
