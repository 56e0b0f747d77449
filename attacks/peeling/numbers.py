"""Rows with numeric targets, read off histograms of squared error.

Every hessian is 1, so that the rows of a bin are counted, and a bin that holds one row shows its
gradient, which is hardly ever another's: the same number in one bin of each feature of the first
tree is one person, whose target it tells. Bins of several rows are those whose gradients add up.
What is left open is drawn so that the sums of all trees agree, by swaps that leave the first tree's
counts as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, _route
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

OPEN = -2  # a bin that is not known; -1 is a missing value
MOST_SUBSETS = 20_000  # sums of several rows that are tried for a bin
# Swaps per open bin; from which share of a target's standard deviation sums are allowed to be off
# to which, and how much a row too many counts in these units.
SWAPS, HOT, COLD, ROW = 150, 1.0, 0.01, 1.0
#: Searches side by side, and in turn.
SEARCHES, ROUNDS = 3, 4
#: Share of such rows that are right (diabetes, trees of depth 4).
SURE_NUMBER = 0.95
#: How far gradients may be off, in parts of the largest: float32 rounds them.
NEAR = 1e-6
#: Bins in which a row must show alone, with its very gradient, beyond those it was read off.
LEAST_CHECKS = 2


@dataclass(frozen=True, eq=False)
class CountedBins:
    """Histograms of the terminal visible nodes of all trees: rows, and sums of gradients."""

    forest: BinnedForest  # its cells are these nodes
    # int64 array, shape (C, B + d): rows per bin; after the B bins, of each feature those without a
    # value
    n: Longs
    g: Floats  # float64 array, shape (C, B + d): sums of their gradients
    off: Floats  # float64 array, shape (C,): how far from the truth these may be, each

    @staticmethod
    def of(evidence: Evidence) -> CountedBins:
        """Collect the terminal nodes of all trees of the evidence, whose rows they count."""
        assert evidence.histograms is not None
        assert evidence.cuts is not None
        start = np.float32(np.ravel(evidence.base_margin)[0])
        seen = [h.nodes for h in evidence.histograms]
        forest = BinnedForest.of(evidence.trees, seen, evidence.cuts, start)
        last = [forest.terminal(t, nodes) for t, nodes in enumerate(seen)]
        parts = list(zip(evidence.histograms, last, strict=True))
        sums = np.concatenate([h.sums[k] for h, k in parts])
        whole = np.concatenate([h.totals[k] for h, k in parts])
        off = [np.zeros(len(k)) if h.slack is None else h.slack[k] for h, k in parts]
        sums[..., 1], whole[..., 1] = np.rint(sums[..., 1]), np.rint(whole[..., 1])
        missing = whole[:, None] - np.add.reduceat(sums, forest.offsets[:-1], axis=1)
        g, n = np.moveaxis(np.concatenate([sums, missing], axis=1), 2, 0)
        return CountedBins(forest, n.astype(np.int64), g.copy(), np.concatenate(off))

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
        """Subtract rows, in place."""
        cell, g = self.gradients(bins, y)
        columns = self.forest.columns(bins)
        for t in range(cell.shape[1]):
            np.subtract.at(self.n, (cell[:, t, None], columns), 1)
            np.subtract.at(self.g, (cell[:, t, None], columns), g[:, t, None])

    def checks(self, bins: Ints, y: Floats, near: float) -> Longs:
        """Return in how many bins rows show alone, int64 (m,); -1 where a bin has no room."""
        cell, g = self.gradients(bins, y)
        columns = self.forest.columns(bins)
        found = np.zeros(len(bins), dtype=np.int64)
        for t in range(cell.shape[1]):
            n = self.n[cell[:, t, None], columns]
            at_most = near + 2 * self.off[cell[:, t], None]
            same = np.abs(self.g[cell[:, t, None], columns] - g[:, t, None]) <= at_most
            wrong = (n < 1) | ((n == 1) & ~same)
            found = np.where(wrong.any(axis=1) | (found < 0), -1, found + ((n == 1) & same).sum(1))
        return found


@dataclass(frozen=True, eq=False)
class FirstRows:
    """Rows of the first tree's cells, as far as its bins tell them.

    `cell`, intp (m,): of each row. `bins`, int32 (m, d): `OPEN` where not known. `g`, float64 (m,):
    gradients, NaN where not known.
    """

    cell: NDArray[np.intp]
    bins: Ints
    g: Floats


def first_rows(counted: CountedBins) -> FirstRows:
    """Read what the bins of the first tree tell of single rows."""
    d = len(counted.forest.offsets) - 1
    parts = [
        _in_cell(counted.n[c], counted.g[c], counted.feature_of, d, counted.off[c])
        for c in np.flatnonzero(counted.forest.tree_of == 0)
    ]
    cell = np.repeat(np.flatnonzero(counted.forest.tree_of == 0), [len(g) for _, g in parts])
    none = [(np.zeros((0, d), np.int32), np.zeros(0))]
    bins, g = (np.concatenate(part) for part in zip(*(none + parts), strict=True))
    return FirstRows(cell, _as_bins(counted, bins), g)


def _as_bins(counted: CountedBins, columns: Ints) -> Ints:
    """Return columns of histograms as bins."""
    offsets = counted.forest.offsets
    bins = columns - offsets[:-1]
    bins = np.where(columns >= offsets[-1], -1, bins)
    return np.where(columns == OPEN, OPEN, bins).astype(np.int32)


def _in_cell(n: Longs, g: Floats, feature_of: Longs, d: int, off: float) -> tuple[Ints, Floats]:
    """Return the columns of a cell's rows, int32 (m, d), and their gradients."""
    m = int(n[feature_of == 0].sum())
    columns = np.full((m, d), OPEN, dtype=np.int32)
    alone: list[tuple[float, list[list[int]]]] = []
    single = np.flatnonzero(n == 1)
    single, last = single[np.argsort(g[single], kind="stable")], -np.inf
    for k in single.tolist():
        if g[k] - last > 2 * off:  # no gradient of the row before, which is as far off at most
            alone.append((float(g[k]), [[] for _ in range(d)]))
        alone[-1][1][feature_of[k]].append(k)
        last = g[k]
    found: list[float] = []
    for value, places in alone:
        times = max(map(len, places))
        if len(found) + times > m:
            break
        if times == 1:  # of equal targets none is told from the other
            for f, at in enumerate(places):
                columns[len(found), f] = at[0] if at else OPEN
        found += [value] * times
    gradients = np.full(m, np.nan)
    gradients[: len(found)] = found
    if len(found) == m - 1:
        gradients[-1] = g[feature_of == 0].sum() - sum(found)
    if m and not np.isnan(gradients).any():
        for f in range(d):
            _by_sums(n, g, np.flatnonzero(feature_of == f), columns[:, f], gradients, off)
    return columns, gradients


def _by_sums(n: Longs, g: Floats, at: Longs, column: Ints, gradients: Floats, off: float) -> None:
    """Fill bins of a feature by the rows whose gradients alone add up to them, in place."""
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


def completed(
    counted: CountedBins, rows: FirstRows, alike: Floats, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Return rows with all bins and gradients, in the first tree's numbers.

    `alike`: float64 array, shape (r, d + 1). Rows like those sought, by their bins and, last,
    targets: open bins go together as theirs do, by rank (a copula, Nelsen 2006). Of none they do
    not depend on one another.
    """
    offsets, feature_of = counted.forest.offsets, counted.feature_of
    bins, g = rows.bins.copy(), rows.g.copy()
    for c in np.unique(rows.cell).tolist():
        at = np.flatnonzero(rows.cell == c)
        g[at] = _gradients(counted, c, bins[at], g[at], rng)
        drawn = alike[rng.integers(0, len(alike), len(at))] if len(alike) else None
        if drawn is not None:  # the greater the target, the smaller the gradient
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
    """Return gradients of a cell's rows: of those not known, as bins of most features have them."""
    unknown = np.flatnonzero(np.isnan(g))
    if not len(unknown):
        return g
    feature_of, n = counted.feature_of, counted.n[c]
    used = [np.flatnonzero((feature_of == f) & (n > 0)) for f in range(bins.shape[1])]
    at = max(used, key=len)
    every = np.repeat(counted.g[c, at] / n[at], n[at])
    for value in g[~np.isnan(g)]:  # known ones are not drawn again
        every = np.delete(every, np.argmin(np.abs(every - value)))
    total = counted.g[c, at].sum() - np.nansum(g)
    every = every if len(every) else np.zeros(1)
    drawn = rng.permutation(np.resize(every, len(unknown)))
    g = g.copy()
    g[unknown] = drawn + (total - drawn.sum()) / len(unknown)
    return g


def read_off(
    counted: CountedBins, rows: FirstRows, alike: Floats, rng: np.random.Generator
) -> tuple[FirstRows, NDArray[np.bool_]]:
    """Return the rows with all bins of those that are sure filled in, and which these are.

    A row is sure that all searches find and that shows alone in some bins beyond those that told
    it; the next search is for the others alone.
    """
    sure = np.zeros(len(rows.g), dtype=bool)
    near = NEAR * float(np.nanmax(np.abs(rows.g), initial=0.0))
    for _ in range(ROUNDS):
        drawn = [completed(counted, rows, alike, rng) for _ in range(SEARCHES)]
        found = [agreeing(counted, rows, *d, rng) for d in drawn]
        one, g = found[0], drawn[0][1]
        same = ~sure
        for other, (_, of) in zip(found[1:], drawn[1:], strict=True):
            same &= (one == other).all(axis=1) & (g == of)
        told = (rows.bins != OPEN).sum(axis=1)
        seen = counted.checks(one, counted.targets(g), near)
        now = same & (seen >= told + LEAST_CHECKS)
        if not now.any():
            break
        sure |= now
        bins, known = rows.bins.copy(), rows.g.copy()
        bins[now], known[now] = one[now], g[now]
        rows = FirstRows(rows.cell, bins, known)
    return rows, sure


def agreeing(
    counted: CountedBins, rows: FirstRows, bins: Ints, g: Floats, rng: np.random.Generator
) -> Ints:
    """Swap open bins between rows of a cell until the sums of all trees agree; return the bins."""
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
def _moved(n, g, model_n, model_g, c, k, dn, dg, row):  # type: ignore[no-untyped-def]
    """Change what the model has in a bin; return by how much it then disagrees more."""
    off_n, off_g = model_n[c, k] - n[c, k], model_g[c, k] - g[c, k]
    before = off_g * off_g + row * off_n * off_n
    model_n[c, k] += dn
    model_g[c, k] += dg
    off_n, off_g = off_n + dn, off_g + dg
    return off_g * off_g + row * off_n * off_n - before


@inner_kernel
def _put(seen, columns, cell, g, i, t, f, sign, row):  # type: ignore[no-untyped-def]
    """Put a row into its bins of a tree, or take it out; of feature f alone, or of all (-1)."""
    n, sums, model_n, model_g = seen
    change = 0.0
    if cell < 0:
        return change
    for k in range(columns.shape[1]):
        if f < 0 or k == f:
            at = columns[i, k]
            change += _moved(n, sums, model_n, model_g, cell, at, sign, sign * g, row)
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
            _put(world, columns, cell[i, t], np.float64(margin[i, t] - y[i]), i, t, -1, 1, row)
    state = np.array([seed], dtype=np.uint64)
    two = np.empty((2, d), dtype=bins.dtype)
    new_cell, new_margin = np.empty((2, T), np.int32), np.empty((2, T), np.float32)
    pair = np.empty(2, dtype=np.int64)
    for step in range(steps):
        width = scale * HOT * (COLD / HOT) ** (step / steps)
        e = np.int64(next_bits(state) % np.uint64(free.shape[0]))
        i, f = free[e, 0], free[e, 1]
        j = by_cell[first[i] + np.int64(next_bits(state) % np.uint64(size[i]))]
        if fixed[j, f] or bins[i, f] == bins[j, f]:
            continue
        pair[0], pair[1] = i, j
        for s in range(2):
            for k in range(d):
                two[s, k] = bins[pair[s], k]
        two[0, f], two[1, f] = bins[j, f], bins[i, f]
        _route(two, start, nodes, sets, value, cells, base, new_cell, new_margin)
        change = _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row)
        u = np.float64(next_bits(state)) * 2.0**-53
        if change <= 0.0 or u < np.exp(-change / (2 * width * width)):
            bins[i, f], bins[j, f] = two[0, f], two[1, f]
        else:
            _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row)


@inner_kernel
def _exchange(world, columns, cell, margin, y, pair, f, new_cell, new_margin, row):  # type: ignore[no-untyped-def]
    """Let two rows change bins of a feature, and ways with it; what they had is in the new ways."""
    change = 0.0
    T = cell.shape[1]
    for s in range(2):
        i = pair[s]
        for t in range(T):
            same = cell[i, t] == new_cell[s, t] and margin[i, t] == new_margin[s, t]
            only = f if same else -1
            g = np.float64(margin[i, t] - y[i])
            change += _put(world, columns, cell[i, t], g, i, t, only, -1, row)
    columns[pair[0], f], columns[pair[1], f] = columns[pair[1], f], columns[pair[0], f]
    for s in range(2):
        i = pair[s]
        for t in range(T):
            same = cell[i, t] == new_cell[s, t] and margin[i, t] == new_margin[s, t]
            only = f if same else -1
            cell[i, t], new_cell[s, t] = new_cell[s, t], cell[i, t]
            margin[i, t], new_margin[s, t] = new_margin[s, t], margin[i, t]
            g = np.float64(margin[i, t] - y[i])
            change += _put(world, columns, cell[i, t], g, i, t, only, 1, row)
    return change
