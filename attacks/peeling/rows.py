"""Histograms that no known row explains yet, and rows in bins that can be subtracted from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import clip_to_fixed
from fedtrees.trees.boosted.losses import LOGISTIC, clipped_bounds, logistic_gradients
from fedtrees.trees.routing import Routes

Ints = NDArray[np.int32]
Sums = NDArray[np.int64]

# Hessian of a hidden bin: room for more than a million rows.
ANYTHING = 2**50
UNIT = 2.0**-30
CROWDED = 10.0  # factor by which accidental matches are more likely than for uniform gradients
BLOCK = 4096  # rows routed through all trees at once, which bounds the memory


# Columns of `BinnedForest.nodes`.
FEATURE, CUT, LEFT, RIGHT, DEFAULT_LEFT, SET = range(6)


@dataclass(frozen=True, eq=False)
class BinnedForest:
    """All trees in one array, with splits as bins: a row goes left iff ``bin <= cut``.

    Attributes
    ----------
    start : int32 array, shape (T + 1,)
        Nodes of tree ``t`` are ``start[t]:start[t + 1]``. Children are numbered over all trees.
    nodes : int32 array, shape (n_nodes, 6)
        Split feature (-1 at a leaf), cut, left and right child, whether missing values go left, and
        the row of `sets` of a split by categories, else -1.
    sets : bool array, shape (splits by categories, width)
        Bins that go right.
    value : float32 array, shape (n_nodes,)
        Leaf values.
    cell : int32 array, shape (n_nodes,)
        Row of `Residual.sums` for a terminal visible node, which has a histogram and no children
        with one. -1 for all other nodes.
    base_margin : float32
        Log-odds before the first tree.
    offsets : int32 array, shape (d + 1,)
        First bin of each feature.
    clip : tuple of float
        Bounds on a row's absolute gradient and on its hessian.
    """

    start: Ints
    nodes: Ints
    sets: NDArray[np.bool_]  # bool (splits by categories, width)
    value: NDArray[np.float32]  # float32 (n_nodes,)
    cell: Ints
    base_margin: np.float32
    offsets: Ints  # int32 (d + 1,)
    clip: tuple[float, float]

    @staticmethod
    def of(
        trees: Sequence[Tree],
        seen: Sequence[Ints],
        cuts: Cuts,
        base_margin: np.float32,
        clip: float | None = None,
    ) -> BinnedForest:
        """Flatten trees.

        Parameters
        ----------
        trees : sequence of Tree
            The trees.
        seen : sequence of int32 array
            Nodes of each tree that have a histogram.
        cuts : Cuts
            Bins of the features.
        base_margin : float32
            Log-odds before the first tree.
        clip : float, optional
            Bound on every row's absolute gradient before summation.
        """
        routes = Routes.of(trees)
        nodes = np.full((len(routes.feature), 6), -1, dtype=np.int32)
        start = np.append(routes.start, len(nodes)).astype(np.int32)
        shift = np.repeat(start[:-1], np.diff(start))
        nodes[:, FEATURE], nodes[:, DEFAULT_LEFT] = routes.feature, routes.default_left
        nodes[:, LEFT], nodes[:, RIGHT] = routes.left + shift, routes.right + shift
        for f in range(cuts.n_features):
            at = nodes[:, FEATURE] == f
            nodes[at, CUT] = np.searchsorted(cuts.of(f), routes.threshold[at], side="right") - 1
        by_set = np.flatnonzero(np.isnan(routes.threshold))
        nodes[by_set, SET] = np.arange(len(by_set))
        right = routes.categories[by_set, : int(cuts.n_bins.max())]
        visible = np.zeros(len(nodes), dtype=bool)
        for s, seen_nodes in zip(start, seen, strict=False):
            visible[s + seen_nodes] = True
        terminal = visible.copy()
        inner = nodes[:, FEATURE] >= 0
        terminal[inner] &= ~visible[nodes[inner, LEFT]]
        return BinnedForest(
            start,
            nodes,
            np.pad(right, ((0, 0), (0, int(cuts.n_bins.max()) - right.shape[1]))),
            np.concatenate([t.value for t in trees]).astype(np.float32),
            np.where(terminal, np.cumsum(terminal) - 1, -1).astype(np.int32),
            np.float32(base_margin),
            np.asarray(cuts.offsets, dtype=np.int32),
            clipped_bounds(LOGISTIC, np.inf if clip is None else clip),
        )

    @property
    def trees(self) -> int:
        """Number of trees T."""
        return len(self.start) - 1

    @property
    def node_of(self) -> Ints:
        """Node of every cell, int32, shape (cells,)."""
        return np.flatnonzero(self.cell >= 0).astype(np.int32)

    @property
    def tree_of(self) -> Ints:
        """Tree of every cell, int32, shape (cells,)."""
        return (np.searchsorted(self.start, self.node_of, side="right") - 1).astype(np.int32)

    def terminal(self, t: int, nodes: Ints) -> NDArray[np.intp]:
        """Return the positions of terminal nodes in a list, in the order of their cells."""
        cell = self.cell[self.start[t] + nodes]
        order = np.argsort(cell, kind="stable")
        return order[cell[order] >= 0]

    def at_terminal_nodes(
        self, nodes: Sequence[Ints], parts: Iterable[NDArray[Any]]
    ) -> NDArray[Any]:
        """Concatenate the entries of the terminal nodes, in the order of the cells.

        Parameters
        ----------
        nodes : sequence of int32 array
            Nodes of every tree that have a histogram.
        parts : iterable of array
            One entry per node, for every tree.
        """
        pairs = enumerate(zip(nodes, parts, strict=True))
        return np.concatenate([part[self.terminal(t, seen)] for t, (seen, part) in pairs])

    def columns(self, bins: Ints) -> Ints:
        """Return the positions of bins, shape (m, d), in `Residual.sums`.

        Missing values are in the last d columns.
        """
        d = len(self.offsets) - 1
        at = np.where(bins < 0, self.offsets[-1] + np.arange(d), self.offsets[:-1] + bins)
        return at.astype(np.int32)

    def route(self, bins: Ints) -> tuple[Ints, NDArray[np.float32]]:
        """Return the cell of every row in every tree and its margin before it, shape (m, T)."""
        cell = np.empty((len(bins), self.trees), dtype=np.int32)
        margin = np.empty((len(bins), self.trees), dtype=np.float32)
        arrays = (self.start, self.nodes, self.sets, self.value, self.cell)
        _route(bins, *arrays, self.base_margin, cell, margin)
        return cell, margin

    def gradients(self, margin: NDArray[np.float32], y: NDArray[np.int64]) -> Sums:
        """Return fixed-point gradients, int64, shape (m, T, 2), as the clients compute them."""
        labels = np.repeat(y, margin.shape[1])
        gh = logistic_gradients(margin.reshape(-1), labels)
        return clip_to_fixed(gh, self.clip).reshape(*margin.shape, 2)


@dataclass(frozen=True, eq=False)
class Residual:
    """Sums that no known row explains yet. They change in place as rows are subtracted.

    Attributes
    ----------
    sums : int64 array, shape (cells, total_bins + d, 2)
        Sums of g and h per bin in units of 2^-30. Column ``total_bins + f`` contains the missing
        values of feature ``f``. A hidden bin has h of about `ANYTHING`.
    totals : int64 array, shape (cells, 2)
        Sums over all rows.
    alone : bool array, shape (cells, total_bins + d)
        Bins known to contain a single row.
    slack : float64 array, shape (cells,)
        Largest error of the sums in the same units. 0 means exact.
    sampled : bool
        Whether rows may be in only some of the trees.
    """

    sums: Sums
    totals: Sums  # int64 (cells, 2)
    alone: NDArray[np.bool_]  # bool (cells, total_bins + d)
    slack: NDArray[np.float64]
    sampled: bool = False

    @property
    def arrays(self) -> tuple[Sums, Sums, NDArray[np.bool_], NDArray[np.float64]]:
        """Arrays that kernels receive."""
        return self.sums, self.totals, self.alone, self.slack

    @staticmethod
    def of(
        hist: Sums,
        totals: Sums,
        offsets: Ints,
        slack: NDArray[np.float64],
        complete: NDArray[np.bool_],
        hidden: NDArray[np.bool_] | None = None,
        levels: int = 1,
        sampled: bool = False,
    ) -> Residual:
        """Add columns for missing values: rows in a node's total and in no bin of a feature.

        With inexact sums, the error of this difference is that of all bins it is computed from:
        those of the feature here, and those of a split feature on each of the ``levels`` above. A
        smaller difference counts as empty, and a larger one as any number of rows.

        Parameters
        ----------
        hist : int64 array, shape (cells, total_bins, 2)
            Histograms.
        totals : int64 array, shape (cells, 2)
            Sums over all rows.
        offsets : int32 array, shape (d + 1,)
            First bin of each feature.
        slack : float64 array, shape (cells,)
            Largest errors.
        complete : bool array, shape (d,)
            Features without missing values.
        hidden : bool array, shape (cells, total_bins), optional
            Bins that may contain any rows.
        levels : int
            Number of levels above.
        sampled : bool
            Whether rows may be in only some of the trees.
        """
        missing = totals[:, None] - np.add.reduceat(hist, offsets[:-1], axis=1)
        if slack.any() or hidden is not None:
            n_bins = np.diff(offsets)
            reach = slack[:, None] * np.sqrt(1 + levels * n_bins.max() + n_bins)
            some = (np.abs(missing) > reach[..., None]).any(axis=2) | (hidden is not None)
            some &= ~complete
            rest = np.stack([np.zeros_like(some, dtype=np.int64), some * ANYTHING], axis=2)
            exact = (slack == 0) & (hidden is None)
            missing = np.where(exact[:, None, None], missing, rest)
        if hidden is not None:
            hist = np.where(hidden[..., None], np.array([0, ANYTHING]), hist)
        sums = np.concatenate([hist, missing], axis=1)
        alone = np.zeros(sums.shape[:2], dtype=bool)
        return Residual(sums, totals.copy(), alone, slack, sampled)

    @property
    def unexplained(self) -> int:
        """Number of visible bins that still contain rows."""
        h = self.sums[..., 1]
        return int(np.count_nonzero((h > 0) & (h < ANYTHING // 2)))


def terminal_histograms(
    evidence: BoostingObservations,
) -> tuple[BinnedForest, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Flatten the trees of a view and collect the histograms of the deepest visible nodes.

    Returns
    -------
    forest : BinnedForest
        All trees. With several outputs per round, its margins must not be used.
    sums, totals : float64 array, shape (cells, total_bins, 2) and (cells, 2)
        Sums over the rows in every bin, and over all rows, by cell.
    errors : float64 array, shape (cells,)
        Largest error of the sums.
    """
    histograms, cuts = evidence.observed.histograms, evidence.observed.cuts
    assert histograms is not None
    assert cuts is not None
    nodes, start = [h.nodes for h in histograms], np.float32(np.ravel(evidence.base_margin)[0])
    forest = BinnedForest.of(evidence.trees, nodes, cuts, start)
    parts = [h.sums for h in histograms], [h.totals for h in histograms]
    sums, totals = (forest.at_terminal_nodes(nodes, part) for part in parts)
    return forest, sums, totals, forest.at_terminal_nodes(nodes, [h.errors for h in histograms])


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows that were read from histograms.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 if missing.
    y : int64 array, shape (m,)
        Classes.
    confidence : float64 array, shape (m,)
        Probability that a row is correct in every bin and the label.
    work : float
        Number of elementary steps of about 20 nanoseconds.
    finished : bool
        False if the limit on work ended the search.
    rejected : int
        Number of complete rows for which the histograms had no room.
    """

    bins: Ints
    y: NDArray[np.int64]
    confidence: NDArray[np.float64]
    work: float = 0.0
    finished: bool = True
    rejected: int = 0

    def append(self, bins: Ints, y: NDArray[np.int64], confidence: float) -> ReadRows:
        """Append rows that are less certain.

        Parameters
        ----------
        bins : int32 array, shape (k, d)
            Rows.
        y : int64 array, shape (k,)
            Classes.
        confidence : float
            Probability of being correct.
        """
        return replace(
            self,
            bins=np.concatenate([self.bins, bins]),
            y=np.concatenate([self.y, y]),
            confidence=np.concatenate([self.confidence, np.full(len(y), confidence)]),
        )


def _blocks(
    forest: BinnedForest, bins: Ints, y: NDArray[np.int64]
) -> Iterator[tuple[slice, Ints, Ints, Sums]]:
    """Yield slices of rows with their cells, columns and gradients, `BLOCK` rows at a time."""
    for a in range(0, len(y), BLOCK):
        part = slice(a, a + BLOCK)
        cell, margin = forest.route(bins[part])
        yield part, cell, forest.columns(bins[part]), forest.gradients(margin, y[part])


def take_out(forest: BinnedForest, left: Residual, bins: Ints, y: NDArray[np.int64]) -> None:
    """Subtract rows from every histogram in place, each with its float32 margin.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Changed in place.
    bins : int32 array, shape (m, d)
        Rows.
    y : int64 array, shape (m,)
        Classes.
    """
    for _, cell, columns, gh in _blocks(forest, bins, y):
        _subtract(left.sums, left.totals, cell, columns, gh)


def accept(
    forest: BinnedForest, left: Residual, bins: Ints, y: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Subtract, in order, the rows for which all histograms have room, and return which, (m,).

    Features of two persons mixed into one row pass the checksum of the trees in which the two have
    the same path. In some other tree their paths differ, and one of the bins there has no such row.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Changed in place.
    bins : int32 array, shape (m, d)
        Rows.
    y : int64 array, shape (m,)
        Classes.
    """
    good, checks = np.zeros(len(y), dtype=bool), np.zeros(len(y))
    for part, cell, columns, gh in _blocks(forest, bins, y):
        _accept(*left.arrays, cell, columns, gh, True, good[part], checks[part])
    return good


def has_room(
    left: Residual, cell: Ints, columns: Ints, gh: Sums
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return for which rows all histograms have room, each considered separately.

    Parameters
    ----------
    left : Residual
        Remaining sums.
    cell : int32 array, shape (m, T)
        Cells of the rows.
    columns : int32 array, shape (m, d)
        Columns of the rows.
    gh : int64 array, shape (m, T, 2)
        Gradients of the rows.

    Returns
    -------
    good : bool array, shape (m,)
    checks : float64 array, shape (m,)
        Log odds that a row's gradients appear by accident in bins that contain nothing else.
    """
    good, checks = np.zeros(len(cell), dtype=bool), np.zeros(len(cell))
    _accept(*left.arrays, cell, columns, gh, False, good, checks)
    return good, checks


@inner_kernel
def goes_left(nodes, sets, node, b):  # type: ignore[no-untyped-def]
    """Return whether rows with bin b of the node's feature go left (-1 is a missing value)."""
    if b < 0:
        return nodes[node, DEFAULT_LEFT] == 1
    if nodes[node, SET] >= 0:
        return not sets[nodes[node, SET], b]
    return b <= nodes[node, CUT]


@kernel
def _route(bins, start, nodes, sets, value, cells, base, cell, margin):  # type: ignore[no-untyped-def]
    for i in range(bins.shape[0]):
        m = base
        for t in range(start.shape[0] - 1):
            node = start[t]
            where = cells[node]
            while nodes[node, FEATURE] >= 0:
                b = bins[i, nodes[node, FEATURE]]
                node = nodes[node, LEFT if goes_left(nodes, sets, node, b) else RIGHT]
                if cells[node] >= 0:
                    where = cells[node]
            cell[i, t] = where
            margin[i, t] = m
            m = np.float32(m + value[node])


@inner_kernel
def fits(sums, alone, slack, c, k, g, h):  # type: ignore[no-untyped-def]
    """Return whether bin k of cell c can contain the row: nothing or other rows remain.

    Callers pass k as int64, because another type would compile this once more.
    """
    G, H = sums[c, k, 0] - g, sums[c, k, 1] - h
    if alone[c, k] or slack[c] >= H:
        return abs(H) <= slack[c] and abs(G) <= slack[c]
    return True


@kernel
def log_chance(slack):  # type: ignore[no-untyped-def]
    """Return the log probability that a bin has a given gradient by accident (nats)."""
    return min(0.0, math.log(CROWDED * (2.0 + 4.0 * slack) * UNIT))


@kernel
def _accept(sums, totals, alone, slack, cell, columns, gh, take, good, checks):  # type: ignore[no-untyped-def]
    d = columns.shape[1]
    for i in range(columns.shape[0]):
        good[i] = True
        for t in range(cell.shape[1]):
            c = cell[i, t]
            if c < 0:
                continue
            only = False
            for f in range(d):
                k, g, h = np.int64(columns[i, f]), gh[i, t, 0], gh[i, t, 1]
                if not fits(sums, alone, slack, c, k, g, h):
                    good[i] = False
                    break
                only = only or abs(sums[c, k, 1] - h) + abs(sums[c, k, 0] - g) <= 2 * slack[c]
            if only:
                checks[i] += log_chance(slack[c])
            if not good[i]:
                break
        if not (good[i] and take):
            continue
        _subtract_row(sums, totals, cell, columns, gh, i)
        for t in range(cell.shape[1]):
            c = cell[i, t]
            for f in range(d if c >= 0 else 0):
                if sums[c, columns[i, f], 1] <= slack[c]:
                    alone[c, columns[i, f]] = False


@kernel
def _subtract(sums, totals, cell, columns, gh):  # type: ignore[no-untyped-def]
    for i in range(columns.shape[0]):
        _subtract_row(sums, totals, cell, columns, gh, i)


@inner_kernel
def _subtract_row(sums, totals, cell, columns, gh, i):  # type: ignore[no-untyped-def]
    for t in range(cell.shape[1]):
        c = cell[i, t]
        for s in range(2 if c >= 0 else 0):
            totals[c, s] -= gh[i, t, s]
            for f in range(columns.shape[1]):
                sums[c, columns[i, f], s] -= gh[i, t, s]
