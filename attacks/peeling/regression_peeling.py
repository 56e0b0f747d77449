"""Read rows with numeric targets from histograms of squared error.

Every hessian is 1, so that the rows of a bin are counted. A bin with one row shows its gradient,
which hardly any other row has: the same number in one bin of each feature of the first tree is one
person, whose target it reveals. Bins of several rows are matched with rows whose gradients add up.
The remaining bins are chosen so that the sums of all trees agree, by swaps that preserve the first
tree's counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, _route, terminal_histograms
from fedtrees.attacks.solvers.sampling import remainder, uniform
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

OPEN = -2  # an unknown bin. -1 is a missing value
MOST_SUBSETS = 20_000  # largest number of sums of several rows for a bin
# Swaps per unknown bin, first and last tolerance of sums in standard deviations of a target, and
# weight of one surplus row in these units.
SWAPS, HOT, COLD, ROW = 150, 1.0, 0.01, 1.0
#: Number of independent searches per round, and of rounds.
SEARCHES, ROUNDS = 3, 4
#: Share of the returned rows that are correct (diabetes, trees of depth 4).
SURE_NUMBER = 0.95
#: Relative float32 rounding error of gradients.
NEAR = 1e-6
#: Number of additional bins that must contain only this row, with exactly its gradient.
LEAST_CHECKS = 2


@dataclass(frozen=True, eq=False)
class CountedBins:
    """Histograms of the terminal visible nodes of all trees: numbers of rows, and gradient sums.

    Attributes
    ----------
    forest : BinnedForest
        Its cells are these nodes.
    n : int64 array, shape (C, B + d)
        Rows per bin. After the B bins follow the missing values of each feature.
    g : float64 array, shape (C, B + d)
        Sums of their gradients.
    off : float64 array, shape (C,)
        Largest error of each sum.
    """

    forest: BinnedForest
    n: Longs
    g: Floats  # float64 (C, B + d)
    off: Floats  # float64 (C,)

    @staticmethod
    def of(evidence: BoostingObservations) -> CountedBins:
        """Collect the terminal nodes of all trees of the evidence."""
        forest, sums, totals, off = terminal_histograms(evidence)
        sums[..., 1], totals[..., 1] = np.rint(sums[..., 1]), np.rint(totals[..., 1])
        missing = totals[:, None] - np.add.reduceat(sums, forest.offsets[:-1], axis=1)
        g, n = np.moveaxis(np.concatenate([sums, missing], axis=1), 2, 0)
        return CountedBins(forest, n.astype(np.int64), g.copy(), off)

    @property
    def feature_of(self) -> Longs:
        """Feature of every column."""
        bins = np.diff(self.forest.offsets)
        return np.concatenate([np.repeat(np.arange(len(bins)), bins), np.arange(len(bins))])

    def gradients(self, bins: Ints, y: Floats) -> tuple[Ints, Floats]:
        """Return the cell of rows in every tree and their gradients there, (m, T) each."""
        cell, margin = self.forest.route(bins)
        g = margin - y.astype(np.float32)[:, None]
        return cell, g.astype(np.float64)

    def targets(self, g: Floats) -> Floats:
        """Return the targets of rows by their gradients in the first tree."""
        return np.float64(self.forest.base_margin) - g

    def take_out(self, bins: Ints, y: Floats) -> None:
        """Subtract rows from the histograms, in place."""
        cell, g = self.gradients(bins, y)
        columns = self.forest.columns(bins)
        for t in range(cell.shape[1]):
            np.subtract.at(self.n, (cell[:, t, None], columns), 1)
            np.subtract.at(self.g, (cell[:, t, None], columns), g[:, t, None])

    def checks(self, bins: Ints, y: Floats, near: float) -> Longs:
        """Return the number of bins with only this row, int64 (m,), or -1 if a bin has no room.

        Parameters
        ----------
        bins : int32 array, shape (m, d)
            Rows.
        y : float array, shape (m,)
            Targets.
        near : float
            Largest difference of equal gradients.
        """
        cell, g = self.gradients(bins, y)
        columns = self.forest.columns(bins)
        n_bins = np.zeros(len(bins), dtype=np.int64)
        for t in range(cell.shape[1]):
            n = self.n[cell[:, t, None], columns]
            at_most = near + 2 * self.off[cell[:, t], None]
            same = np.abs(self.g[cell[:, t, None], columns] - g[:, t, None]) <= at_most
            wrong = (n < 1) | ((n == 1) & ~same)
            n_bins = np.where(
                wrong.any(axis=1) | (n_bins < 0), -1, n_bins + ((n == 1) & same).sum(1)
            )
        return n_bins


@dataclass(frozen=True, eq=False)
class FirstRows:
    """Rows of the first tree's cells, as far as its bins determine them.

    Attributes
    ----------
    cell : intp array, shape (m,)
        Cell of each row.
    bins : int32 array, shape (m, d)
        `OPEN` if unknown.
    g : float64 array, shape (m,)
        Gradients, NaN if unknown.
    """

    cell: NDArray[np.intp]
    bins: Ints
    g: Floats


def first_rows(counted: CountedBins) -> FirstRows:
    """Read the rows that the bins of the first tree determine."""
    d = len(counted.forest.offsets) - 1
    parts = [
        _in_cell(counted.n[c], counted.g[c], counted.feature_of, d, counted.off[c])
        for c in np.flatnonzero(counted.forest.tree_of == 0)
    ]
    cell = np.repeat(np.flatnonzero(counted.forest.tree_of == 0), [len(g) for _, g in parts])
    empty = [(np.zeros((0, d), np.int32), np.zeros(0))]
    bins, g = (np.concatenate(part) for part in zip(*(empty + parts), strict=True))
    return FirstRows(cell, _as_bins(counted, bins), g)


def _as_bins(counted: CountedBins, columns: Ints) -> Ints:
    """Convert columns of histograms to bins."""
    offsets = counted.forest.offsets
    bins = columns - offsets[:-1]
    bins = np.where(columns >= offsets[-1], -1, bins)
    return np.where(columns == OPEN, OPEN, bins).astype(np.int32)


def _in_cell(n: Longs, g: Floats, feature_of: Longs, d: int, off: float) -> tuple[Ints, Floats]:
    """Return the columns of a cell's rows, int32 (m, d), and their gradients."""
    m = int(n[feature_of == 0].sum())
    columns = np.full((m, d), OPEN, dtype=np.int32)
    single_rows: list[tuple[float, list[list[int]]]] = []
    single = np.flatnonzero(n == 1)
    single, last = single[np.argsort(g[single], kind="stable")], -np.inf
    for k in single.tolist():
        if g[k] - last > 2 * off:  # different from the gradient before
            single_rows.append((float(g[k]), [[] for _ in range(d)]))
        single_rows[-1][1][feature_of[k]].append(k)
        last = g[k]
    known_gradients: list[float] = []
    for value, places in single_rows:
        times = max(map(len, places))
        if len(known_gradients) + times > m:
            break
        if times == 1:  # equal targets cannot be distinguished
            for f, at in enumerate(places):
                columns[len(known_gradients), f] = at[0] if at else OPEN
        known_gradients += [value] * times
    gradients = np.full(m, np.nan)
    gradients[: len(known_gradients)] = known_gradients
    if len(known_gradients) == m - 1:
        gradients[-1] = g[feature_of == 0].sum() - sum(known_gradients)
    if m and not np.isnan(gradients).any():
        for f in range(d):
            _by_sums(n, g, np.flatnonzero(feature_of == f), columns[:, f], gradients, off)
    return columns, gradients


def _by_sums(n: Longs, g: Floats, at: Longs, column: Ints, gradients: Floats, off: float) -> None:
    """Assign rows to bins of a feature if only their gradients add up to the sum, in place."""
    again = True
    while again:
        again = False
        for k in at.tolist():
            here = column == k
            left, rest = int(n[k] - here.sum()), g[k] - gradients[here].sum()
            free = np.flatnonzero(column == OPEN)
            if left < 1 or comb(len(free), left) > MOST_SUBSETS:
                continue
            some = np.array(list(combinations(free.tolist(), left)), dtype=np.intp)
            near = 1e-9 * (1 + np.abs(gradients[free]).sum()) + off * (n[k] + 1)
            fits = some[np.abs(gradients[some].sum(axis=1) - rest) <= near]
            if len(fits) == 1:
                column[fits[0]] = k
                again = True


def complete_rows(
    counted: CountedBins, rows: FirstRows, similar_rows: Floats, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Return rows with all bins and gradients, with the counts of the first tree.

    Parameters
    ----------
    counted : CountedBins
        Histograms.
    rows : FirstRows
        Known bins and gradients.
    similar_rows : float64 array, shape (r, d + 1)
        Similar rows, by their bins and, last, targets. Unknown bins have the same dependence, by
        rank (a copula, Nelsen 2006). Without such rows they are independent.
    rng : numpy.random.Generator
        Randomness of the unknown bins.
    """
    offsets, feature_of = counted.forest.offsets, counted.feature_of
    bins, g = rows.bins.copy(), rows.g.copy()
    for c in np.unique(rows.cell).tolist():
        at = np.flatnonzero(rows.cell == c)
        g[at] = _gradients(counted, c, bins[at], g[at], rng)
        drawn = (
            similar_rows[rng.integers(0, len(similar_rows), len(at))] if len(similar_rows) else None
        )
        if drawn is not None:  # larger targets have smaller gradients
            drawn = drawn[np.argsort(-drawn[:, -1], kind="stable")]
        by_target = np.argsort(g[at], kind="stable")
        for f in range(len(offsets) - 1):
            k = np.flatnonzero(feature_of == f)
            code = np.where(k < offsets[-1], k - offsets[f], -1)
            left = counted.n[c, k] - [int((bins[at, f] == b).sum()) for b in code]
            pool = np.repeat(code, np.maximum(left, 0))
            free = by_target[bins[at[by_target], f] == OPEN]
            pool = np.resize(pool, len(free)) if len(pool) else np.zeros(len(free), np.int64)
            order = rng.permutation(len(free))
            if drawn is not None:
                place = np.flatnonzero(bins[at[by_target], f] == OPEN)
                order = np.lexsort((rng.random(len(free)), drawn[place, f]))
            bins[at[free[order]], f] = np.sort(pool)
    return bins, g


def _gradients(
    counted: CountedBins, c: int, bins: Ints, g: Floats, rng: np.random.Generator
) -> Floats:
    """Return the gradients of a cell's rows, with unknown ones from the feature with most bins."""
    unknown = np.flatnonzero(np.isnan(g))
    if not len(unknown):
        return g
    feature_of, n = counted.feature_of, counted.n[c]
    used = [np.flatnonzero((feature_of == f) & (n > 0)) for f in range(bins.shape[1])]
    at = max(used, key=len)
    candidates = np.repeat(counted.g[c, at] / n[at], n[at])
    for value in g[~np.isnan(g)]:  # known ones are not drawn again
        candidates = np.delete(candidates, np.argmin(np.abs(candidates - value)))
    total = counted.g[c, at].sum() - np.nansum(g)
    candidates = candidates if len(candidates) else np.zeros(1)
    drawn = rng.permutation(np.resize(candidates, len(unknown)))
    g = g.copy()
    g[unknown] = drawn + (total - drawn.sum()) / len(unknown)
    return g


def read_off(
    counted: CountedBins, rows: FirstRows, similar_rows: Floats, rng: np.random.Generator
) -> tuple[FirstRows, NDArray[np.bool_]]:
    """Fill in the bins of all certain rows, and return which rows are certain.

    A row is certain if all searches find it and if enough bins, in addition to those that
    determined it, contain only this row. The next search is for the remaining rows.

    Parameters
    ----------
    counted : CountedBins
        Histograms.
    rows : FirstRows
        Known bins and gradients.
    similar_rows : float64 array, shape (r, d + 1)
        Similar rows, see `complete_rows`.
    rng : numpy.random.Generator
        Randomness of the searches.
    """
    sure = np.zeros(len(rows.g), dtype=bool)
    near = NEAR * float(np.nanmax(np.abs(rows.g), initial=0.0))
    for _ in range(ROUNDS):
        drawn = [complete_rows(counted, rows, similar_rows, rng) for _ in range(SEARCHES)]
        solutions = [agreeing(counted, rows, *d, rng) for d in drawn]
        one, g = solutions[0], drawn[0][1]
        same = ~sure
        for other, (_, of) in zip(solutions[1:], drawn[1:], strict=True):
            same &= (one == other).all(axis=1) & (g == of)
        n_known = (rows.bins != OPEN).sum(axis=1)
        seen = counted.checks(one, counted.targets(g), near)
        now = same & (seen >= n_known + LEAST_CHECKS)
        if not now.any():
            break
        sure |= now
        bins, gradients = rows.bins.copy(), rows.g.copy()
        bins[now], gradients[now] = one[now], g[now]
        rows = FirstRows(rows.cell, bins, gradients)
    return rows, sure


def agreeing(
    counted: CountedBins, rows: FirstRows, bins: Ints, g: Floats, rng: np.random.Generator
) -> Ints:
    """Swap unknown bins between rows of a cell until the sums of all trees agree.

    Parameters
    ----------
    counted : CountedBins
        Histograms.
    rows : FirstRows
        Known bins, which do not change.
    bins : int32 array, shape (m, d)
        Initial bins.
    g : float64 array, shape (m,)
        Gradients in the first tree.
    rng : numpy.random.Generator
        Seed of the swaps.
    """
    forest = counted.forest
    y = counted.targets(g).astype(np.float32)
    free = np.ascontiguousarray(np.argwhere(rows.bins == OPEN), dtype=np.int64)
    if not len(free):
        return bins
    by_cell = np.argsort(rows.cell, kind="stable")
    first = np.searchsorted(rows.cell[by_cell], rows.cell)
    size = np.bincount(rows.cell)[rows.cell]
    model = counted.n * 0, counted.g * 0.0
    scale = float(np.std(g)) or 1.0
    bins = np.ascontiguousarray(bins)
    fixed = rows.bins != OPEN
    arrays = (forest.start, forest.nodes, forest.sets, forest.value, forest.cell)
    _swap(
        bins, y, fixed, free, (by_cell, first, size), arrays, forest.base_margin, forest.offsets,
        (counted.n, counted.g), model, scale, SWAPS * len(free), np.uint64(rng.integers(2**63)),
    )  # fmt: skip
    return bins


@inner_kernel
def _shift_content(n, g, model_n, model_g, c, k, dn, dg, row):  # type: ignore[no-untyped-def]
    """Change the model's content of a bin, and return the increase of the discrepancy."""
    off_n, off_g = model_n[c, k] - n[c, k], model_g[c, k] - g[c, k]
    before = off_g * off_g + row * off_n * off_n
    model_n[c, k] += dn
    model_g[c, k] += dg
    off_n, off_g = off_n + dn, off_g + dg
    return off_g * off_g + row * off_n * off_n - before


@inner_kernel
def _put(seen, columns, cell, g, i, f, sign, row):  # type: ignore[no-untyped-def]
    """Add or remove a row in the bins of a tree, for feature f or for all features (-1)."""
    n, sums, model_n, model_g = seen
    change = 0.0
    if cell < 0:
        return change
    for k in range(columns.shape[1]):
        if f < 0 or k == f:
            at = columns[i, k]
            change += _shift_content(n, sums, model_n, model_g, cell, at, sign, sign * g, row)
    return change


@kernel
def _swap(  # type: ignore[no-untyped-def]
    bins, y, fixed, free, places, arrays, base, offsets, seen, model, scale, steps, seed
):
    start, nodes, sets, value, cells = arrays
    by_cell, first, size = places
    world = (seen[0], seen[1], model[0], model[1])
    m, d = bins.shape
    T, last = start.shape[0] - 1, offsets[d]
    columns = np.empty((m, d), dtype=np.int64)
    for i in range(m):
        for f in range(d):
            columns[i, f] = last + f if bins[i, f] < 0 else offsets[f] + bins[i, f]
    cell, margin = np.empty((m, T), np.int32), np.empty((m, T), np.float32)
    _route(bins, start, nodes, sets, value, cells, base, cell, margin)
    row = ROW * scale * scale
    for i in range(m):
        for t in range(T):
            _put(world, columns, cell[i, t], np.float64(margin[i, t] - y[i]), i, -1, 1, row)
    state = np.array([seed], dtype=np.uint64)
    two = np.empty((2, d), dtype=bins.dtype)
    new_cell, new_margin = np.empty((2, T), np.int32), np.empty((2, T), np.float32)
    pair = np.empty(2, dtype=np.int64)
    for step in range(steps):
        width = scale * HOT * (COLD / HOT) ** (step / steps)
        e = remainder(state, free.shape[0])
        i, f = free[e, 0], free[e, 1]
        j = by_cell[first[i] + remainder(state, size[i])]
        if fixed[j, f] or bins[i, f] == bins[j, f]:
            continue
        pair[0], pair[1] = i, j
        for s in range(2):
            for k in range(d):
                two[s, k] = bins[pair[s], k]
        two[0, f], two[1, f] = bins[j, f], bins[i, f]
        _route(two, start, nodes, sets, value, cells, base, new_cell, new_margin)
        change = _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row)
        u = uniform(state)
        if change <= 0.0 or u < np.exp(-change / (2 * width * width)):
            bins[i, f], bins[j, f] = two[0, f], two[1, f]
        else:
            _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row)


@inner_kernel
def _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row):  # type: ignore[no-untyped-def]
    """Exchange the bins of a feature between two rows, and store the previous paths."""
    change = 0.0
    T = cell.shape[1]
    for s in range(2):
        i = pair[s]
        for t in range(T):
            same = cell[i, t] == new_cell[s, t] and margin[i, t] == new_margin[s, t]
            only = f if same else -1
            g = np.float64(margin[i, t] - y[i])
            change += _put(world, columns, cell[i, t], g, i, only, -1, row)
    columns[pair[0], f], columns[pair[1], f] = columns[pair[1], f], columns[pair[0], f]
    for s in range(2):
        i = pair[s]
        for t in range(T):
            same = cell[i, t] == new_cell[s, t] and margin[i, t] == new_margin[s, t]
            only = f if same else -1
            cell[i, t], new_cell[s, t] = new_cell[s, t], cell[i, t]
            margin[i, t], new_margin[s, t] = new_margin[s, t], margin[i, t]
            g = np.float64(margin[i, t] - y[i])
            change += _put(world, columns, cell[i, t], g, i, only, 1, row)
    return change
