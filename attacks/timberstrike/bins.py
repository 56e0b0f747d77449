"""Histograms of the victims alone, and rows as bins that can be taken out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.timberstrike.evidence import Evidence
from fedtrees.attacks.timberstrike.routing import gradients
from fedtrees.trees.binning import Cuts

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def to_bins(cuts: Cuts, X: NDArray[np.float32]) -> Ints:
    """Return the bin of every value, int32, shape (n, d); -1 where it is missing."""
    out = np.empty(X.shape, dtype=np.int32)
    for f in range(X.shape[1]):
        edges = cuts.values[cuts.offsets[f] : cuts.offsets[f + 1]]
        out[:, f] = np.minimum(np.searchsorted(edges, X[:, f], side="right"), len(edges) - 1)
    out[np.isnan(X)] = -1
    return out


@dataclass(frozen=True, eq=False)
class BinnedForest:
    """All trees in one array, splits as bins: a row goes left iff ``bin <= cut``.

    Attributes
    ----------
    start : int32 array, shape (T + 1,)
        Nodes of tree ``t`` are ``start[t]:start[t + 1]``; children are numbered inside the tree.
    feature, cut, left, right : int32 array, shape (n_nodes,)
    default_left : bool array, shape (n_nodes,)
    value : float32 array, shape (n_nodes,)
    cell : int32 array, shape (n_nodes,)
        Row of `Residual.sums` of a terminal visible node, else -1: a node with a histogram whose
        children have none.
    base_margin : float32
    """

    start: Ints
    feature: Ints
    cut: Ints
    left: Ints
    right: Ints
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    cell: Ints
    base_margin: np.float32

    @property
    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """What the kernels walk on."""
        return (
            self.start,
            self.feature,
            self.cut,
            self.left,
            self.right,
            self.default_left,
            self.value,
            self.cell,
        )

    def walk(self, bins: Ints, t: int) -> tuple[Ints, Ints]:
        """Return terminal cell and leaf (index over all trees) of rows in tree ``t``."""
        return _walk(bins, t, *self.arrays)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Residual:
    """What no known row explains yet; changed in place as rows are taken out.

    Attributes
    ----------
    sums : float64 array, shape (cells, total_bins + d, 2)
        Sums of g and h per bin; column ``total_bins + f`` counts the missing of feature ``f``.
    totals : float64 array, shape (cells, 2)
    tree : int32 array, shape (cells,)
    """

    sums: Floats
    totals: Floats
    tree: Ints


def binned_forest(evidence: Evidence) -> tuple[BinnedForest, Residual]:
    """Flatten the trees and collect the histograms of the terminal visible nodes."""
    assert evidence.histograms is not None
    assert evidence.cuts is not None
    cuts, d = evidence.cuts, len(evidence.cuts.offsets) - 1
    cut_of, cell_of, sums, totals, tree_of = [], [], [], [], []
    for t, (tree, hist) in enumerate(zip(evidence.trees, evidence.histograms, strict=True)):
        cut = np.zeros(len(tree), dtype=np.int32)
        for f in range(d):
            edges = cuts.values[cuts.offsets[f] : cuts.offsets[f + 1]]
            at = tree.feature == f
            cut[at] = np.searchsorted(edges, tree.threshold[at], side="right") - 1
        seen = np.zeros(len(tree), dtype=bool)
        seen[hist.nodes] = True
        inner = tree.feature >= 0
        terminal = seen.copy()
        terminal[inner] &= ~seen[tree.left[inner]]
        cell = np.full(len(tree), -1, dtype=np.int32)
        for k, node in enumerate(hist.nodes):
            if terminal[node]:
                cell[node] = len(sums)
                bins = hist.sums[k].astype(np.float64)
                inside = np.add.reduceat(bins, cuts.offsets[:-1], axis=0)
                sums.append(np.concatenate([bins, hist.totals[k] - inside]))
                totals.append(hist.totals[k].astype(np.float64))
                tree_of.append(t)
        cut_of.append(cut)
        cell_of.append(cell)
    trees = evidence.trees
    start = np.concatenate([[0], np.cumsum([len(t) for t in trees])]).astype(np.int32)
    forest = BinnedForest(
        start,
        np.concatenate([t.feature for t in trees]).astype(np.int32),
        np.concatenate(cut_of),
        np.concatenate([t.left for t in trees]).astype(np.int32),
        np.concatenate([t.right for t in trees]).astype(np.int32),
        np.concatenate([t.default_left for t in trees]),
        np.concatenate([t.value for t in trees]).astype(np.float32),
        np.concatenate(cell_of),
        np.float32(evidence.base_margin),
    )
    width = len(cuts.values) + d
    left = Residual(
        np.array(sums).reshape(-1, width, 2),
        np.array(totals).reshape(-1, 2),
        np.array(tree_of, dtype=np.int32),
    )
    return forest, left


def take_out(
    forest: BinnedForest, left: Residual, offsets: Ints, bins: Ints, y: NDArray[np.int64]
) -> None:
    """Subtract rows from every histogram, in place, each with its own float32 margin."""
    margin = np.full(len(y), forest.base_margin, dtype=np.float32)
    for t in range(len(forest.start) - 1):
        g, h = gradients(margin, y)
        cell, leaf = forest.walk(bins, t)
        _subtract(left.sums, left.totals, cell, bins, offsets, g, h)
        margin += forest.value[leaf]


def fits(
    forest: BinnedForest,
    left: Residual,
    offsets: Ints,
    bins: Ints,
    y: NDArray[np.int64],
    tolerance: float,
) -> NDArray[np.bool_]:
    """Tell which rows every tree's histograms have room for, bool, shape (n,).

    Features of two people mixed into one row pass the checksum of the tree they were read from
    if those two share a path there; in some other tree they part.
    """
    good = np.ones(len(y), dtype=bool)
    margin = np.full(len(y), forest.base_margin, dtype=np.float32)
    for t in range(len(forest.start) - 1):
        g, h = gradients(margin, y)
        cell, leaf = forest.walk(bins, t)
        _has_room(good, left.sums, cell, bins, offsets, g, h, tolerance)
        margin += forest.value[leaf]
    return good


def margins_before(forest: BinnedForest, bins: Ints, trees: int) -> NDArray[np.float32]:
    """Return the float32 margin of rows before tree number ``trees``."""
    margin = np.full(len(bins), forest.base_margin, dtype=np.float32)
    _margins(margin, bins, trees, *forest.arrays)
    return margin


@njit(cache=True)
def _step(bins, i, node, s, feature, cut, left, right, default_left):  # type: ignore[no-untyped-def]
    b = bins[i, feature[s + node]]
    go_left = default_left[s + node] if b < 0 else b <= cut[s + node]
    return left[s + node] if go_left else right[s + node]


@njit(cache=True)
def _walk(bins, t, start, feature, cut, left, right, default_left, value, cell):  # type: ignore[no-untyped-def]
    n, s = bins.shape[0], start[t]
    where = np.full(n, -1, dtype=np.int32)
    leaf = np.empty(n, dtype=np.int32)
    for i in range(n):
        node = 0
        where[i] = cell[s]
        while feature[s + node] >= 0:
            node = _step(bins, i, node, s, feature, cut, left, right, default_left)
            if cell[s + node] >= 0:
                where[i] = cell[s + node]
        leaf[i] = s + node
    return where, leaf


@njit(cache=True)
def _margins(margin, bins, trees, start, feature, cut, left, right, default_left, value, cell):  # type: ignore[no-untyped-def]
    for i in range(bins.shape[0]):
        for t in range(trees):
            s, node = start[t], 0
            while feature[s + node] >= 0:
                node = _step(bins, i, node, s, feature, cut, left, right, default_left)
            margin[i] += value[s + node]


@njit(cache=True)
def _has_room(good, sums, cell, bins, offsets, g, h, tolerance):  # type: ignore[no-untyped-def]
    missing = offsets[-1]
    for i in range(bins.shape[0]):
        c = cell[i]
        if c < 0 or not good[i]:
            continue
        for f in range(bins.shape[1]):
            b = missing + f if bins[i, f] < 0 else offsets[f] + bins[i, f]
            G, H = sums[c, b, 0] - g[i], sums[c, b, 1] - h[i]
            # no rows are left where H is 0, so none of G may be
            over = max(-H, abs(G) if tolerance >= H else 0.0)
            if over > tolerance:
                good[i] = False


@njit(cache=True)
def _subtract(sums, totals, cell, bins, offsets, g, h):  # type: ignore[no-untyped-def]
    missing = offsets[-1]
    for i in range(bins.shape[0]):
        c = cell[i]
        if c < 0:
            continue
        totals[c, 0] -= g[i]
        totals[c, 1] -= h[i]
        for f in range(bins.shape[1]):
            b = missing + f if bins[i, f] < 0 else offsets[f] + bins[i, f]
            sums[c, b, 0] -= g[i]
            sums[c, b, 1] -= h[i]
