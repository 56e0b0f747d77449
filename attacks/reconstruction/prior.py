"""Prior distribution of a row, from the local rows or from value ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.reconstruction.boxes import ANY, Grid, LeafConstraints, has
from fedtrees.blind_baselines.recipes import Recipe
from fedtrees.blind_baselines.rows import estimated_width
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.binning import Cuts
from fedtrees.trees.cut_points import LARGEST

Floats = NDArray[np.float64]
Ranges = Literal["schema", "own"]

UNIFORM_SHARE = 0.1  # weight of the uniform distribution on the range in the marginals
VIOLATION_COST = 1.5  # a local row's weight falls by exp(-1.5) per feature outside the box
MARGINAL_WEIGHT = 3.0  # weight of the marginal prior, in rows
CELL_FLOOR = 1e-6  # no cell is impossible
SENTINEL_MARGIN = 1e-5  # XGBoost's margin beyond twice the extremes


@dataclass(frozen=True, eq=False)
class Prior:
    """Local rows on the grid, cell masses of each class, and value ranges.

    Attributes
    ----------
    cumulative : float64 array, shape (C, d, w)
        ``cumulative[c, f, hi] - cumulative[c, f, lo]`` is the mass of cells lo..hi-1 for class c.
    missing : float64 array, shape (C, d)
        Odds of a missing value: its mass relative to the cells, which add up to about 1. It is 0 if
        no row of the prior misses the value.
    low, high : float64 array, shape (d,)
        Range of each feature.
    rows : Table
        Rows that the prior is estimated from: local rows or likely rows. Empty if no rows may be
        used.
    row_cells : int32 array, shape (n_own, d)
        Cells of these rows, -1 if the value is missing.
    from_sketches : bool
        Whether these rows are likely rows with the victims' marginals.
    recipe : Recipe
        Way of guessing that is best among the rows of the prior.
    pool : tuple (Table, int32 array), or None
        Rows that boxes are filled from, and their cells. None means the rows of the prior.
    """

    cumulative: Floats
    missing: Floats
    low: Floats
    high: Floats
    rows: Table
    row_cells: NDArray[np.int32]
    from_sketches: bool = False
    # By cross-validation among the rows of the prior.
    recipe: Recipe = Recipe(0.0, "bootstrap+consensus")
    # None means the rows of the prior.
    pool: tuple[Table, NDArray[np.int32]] | None = None

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.cumulative)

    @cached_property
    def values(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Sorted values of the prior's rows, and the position of each feature and class in them.

        The second array is int64 of shape (d, C + 2). The values of feature f are ``values[begin[f,
        0]:begin[f, 1]]``. The values of each class follow. A class without values gets those of all
        rows.
        """
        parts, rows = [], self.rows
        for column in rows.X.T:
            present = ~np.isnan(column)
            every = np.sort(column[present])
            of_class = [np.sort(column[present & (rows.y == c)]) for c in range(self.classes)]
            parts += [every, *(each if len(each) else every for each in of_class)]
        ends = np.cumsum([0, *map(len, parts)])
        index = np.arange(rows.X.shape[1])[:, None] * (self.classes + 1)
        begin = ends[index + np.arange(self.classes + 2)]
        return np.concatenate(parts).astype(np.float32), begin

    @cached_property
    def sorted_rows(self) -> RowPool:
        """The cells of the rows, sorted by label. There must be at least one row."""
        return RowPool.of(self.row_cells, self.rows.y, self.classes)

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """Features of which all values are integers, bool, shape (d,)."""
        odd = np.where(np.isnan(self.rows.X), 0, self.rows.X % 1 != 0).any(axis=0)
        return np.asarray(~odd & ~np.isnan(self.rows.X).all(axis=0))

    def tolerance(self, schema: Schema) -> Floats:
        """Return the largest difference of two values that count as equal, float64, shape (d,)."""
        return estimated_width(self.rows, schema, self.low, self.high)[:-1]


def value_ranges(
    schema: Schema, background: Table, grid: Grid, cuts: Cuts | None, ranges: Ranges
) -> tuple[Floats, Floats]:
    """Return a range per feature from cut points, the schema, local rows and thresholds.

    The rows of other clients are never used. The authors' code fills open sides with the true
    pooled range. Cut points that were computed from the clients' rows reveal most of this range
    (`pooled_range`).

    Parameters
    ----------
    schema : Schema
        Declared ranges and categories.
    background : Table
        Local rows.
    grid : Grid
        Thresholds of the trees.
    cuts : Cuts or None
        Cut points, if the adversary knows them and they reveal ranges.
    ranges : {"schema", "own"}
        If "schema", a declared range replaces an end that cut points do not reveal. Otherwise it is
        the outermost known value.

    Returns
    -------
    low, high : float64 array, shape (d,) each
    """
    d = len(schema.features)
    low, high = np.zeros(d), np.ones(d)
    for f, feature in enumerate(schema.features):
        if feature.kind == "categorical" and feature.categories:
            low[f], high[f] = 0.0, float(len(feature.categories) - 1)
            continue
        seen = [background.X[:, f], grid.edges[f]]
        limits: tuple[float | None, float | None] = (None, None)
        if cuts is not None and f < cuts.n_features:
            seen.append(cuts.of(f) if feature.cuts else cuts.of(f)[:-1])
            limits = (None, None) if feature.cuts else pooled_range(cuts, f)
        declared = (feature.low, feature.high) if ranges == "schema" else (None, None)
        ends = [t if t is not None else v for t, v in zip(limits, declared, strict=True)]
        endpoints = np.concatenate([*seen, [v for v in ends if v is not None]]).astype(np.float64)
        # cut points of unbounded bins carry no information about the range
        endpoints = endpoints[np.abs(endpoints) < LARGEST]
        if endpoints.size:
            low[f], high[f] = endpoints.min(), endpoints.max()
        low[f] = low[f] if ends[0] is None else ends[0]
        high[f] = high[f] if ends[1] is None else ends[1]
        if not high[f] > low[f]:
            high[f] = low[f]
    return low, high


def pooled_range(cuts: Cuts, f: int) -> tuple[float | None, float | None]:
    """Return the smallest and the largest value of a feature over all clients.

    The outermost cut and the threshold below all values are computed from them by
    ``upper_sentinel`` and ``lower_sentinel`` of `fedtrees.trees.binning`: twice a positive largest
    value, and twice a negative smallest value. If an extreme is on the other side of 0, its
    sentinel is constant and the result is None. If both sentinels are constant, all values are 0.
    Unbounded grids reveal neither extreme.
    """
    top = float(cuts.of(f)[-1]) - SENTINEL_MARGIN
    bottom = float(cuts.minimum[f]) + SENTINEL_MARGIN
    if top > LARGEST:
        return None, None
    # sentinels are float32, so that values within this distance of 0 count as 0
    rounding = 1e-6 * max(abs(top), abs(bottom), 1.0)
    if -rounding <= bottom and top <= rounding:
        return 0.0, 0.0
    low = bottom / 2 if bottom < -rounding else None
    high = top / 2 if top > rounding else None
    return low, high


def ranges_within(rows: Table, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the range of these rows' columns, or the given range if all values are missing.

    Parameters
    ----------
    rows : Table
        Rows whose range is returned.
    low, high : float64 array, shape (d,)
        Used for columns without values.
    """
    some = ~np.isnan(rows.X).all(axis=0)
    X, low, high = rows.X[:, some].astype(np.float64), low.copy(), high.copy()
    low[some], high[some] = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    return low, high


def make_prior(
    schema: Schema, rows: Table, grid: Grid, low: Floats, high: Floats, from_sketches: bool = False
) -> Prior:
    """Place rows on the grid and compute the cell masses of each class.

    Each class is smoothed by a uniform distribution on the range of each feature (``low``,
    ``high``). If the rows are likely rows with the victims' marginals, it is smoothed by all of
    these rows instead.
    """
    width = grid.width
    classes = max(len(schema.classes), 2)
    cumulative = np.zeros((classes, len(width), int(width.max(initial=1)) + 1))
    cells = grid.cells(rows.X)
    for f, w in enumerate(width):
        uniform = _uniform_cells(grid.edges[f], low[f], high[f], schema.categorical[f])
        if from_sketches and (cells[:, f] >= 0).any():
            class_cells = cells[cells[:, f] >= 0, f]
            uniform = np.bincount(class_cells, minlength=w) / len(class_cells)
        for c in range(classes):
            class_cells = cells[(rows.y == c) & (cells[:, f] >= 0), f]
            if class_cells.size == 0:
                class_cells = cells[cells[:, f] >= 0, f]
            share = (
                np.bincount(class_cells, minlength=w) / class_cells.size
                if class_cells.size
                else uniform
            )
            mass = (1 - UNIFORM_SHARE) * share + UNIFORM_SHARE * uniform + CELL_FLOOR
            cumulative[c, f, 1 : w + 1] = np.cumsum(mass)
            cumulative[c, f, w + 1 :] = cumulative[c, f, w]
    return Prior(
        cumulative, _missing_odds(cells, rows.y, classes), low, high, rows, cells, from_sketches
    )


def _missing_odds(cells: NDArray[np.int32], y: NDArray[np.int64], classes: int) -> Floats:
    """Return the odds of a missing value per class and feature, float64, shape (C, d).

    They are the share among rows of the class, smoothed by the share among all rows. One additional
    row whose value is present prevents that a feature is missing with certainty.
    """
    overall = (cells < 0).sum(axis=0) / (len(cells) + 1)
    share = np.tile(overall, (classes, 1))
    for c in np.unique(y):
        class_share = (cells[y == c] < 0).mean(axis=0)
        share[c] = (1 - UNIFORM_SHARE) * class_share + UNIFORM_SHARE * overall
    return np.asarray(share / (1 - share))


def _uniform_cells(
    edges: NDArray[np.float32], low: float, high: float, categorical: bool
) -> Floats:
    """Return the mass of each cell under the uniform distribution on the range (or the codes)."""
    if categorical or not high > low:
        codes = np.arange(np.floor(low), np.floor(high) + 1) if categorical else np.array([low])
        cell = np.searchsorted(edges, codes, side="right")
        return np.bincount(cell, minlength=edges.shape[0] + 1) / codes.shape[0]
    bounds = np.clip(np.concatenate([[low], edges.astype(np.float64), [high]]), low, high)
    return np.diff(bounds) / (high - low)


class RowPool(NamedTuple):
    """Cells of rows in the order of their labels, one contiguous array per feature.

    In this layout many rows are compared with a box at once.

    Attributes
    ----------
    cells : int32 array, shape (d, m)
        Cells, -1 if a value is missing.
    rows : int64 array, shape (m,)
        Number of every row in the original order. Rows of equal label keep their order.
    begin : int64 array, shape (K + 1,)
        Rows of label c are at ``begin[c]:begin[c + 1]``.
    least, greatest : int32 array, shape (d,)
        Smallest and largest cell of every feature.
    """

    cells: NDArray[np.int32]
    rows: NDArray[np.int64]
    begin: NDArray[np.int64]
    least: NDArray[np.int32]
    greatest: NDArray[np.int32]

    @staticmethod
    def of(cells: NDArray[np.int32], y: NDArray[np.int64], classes: int) -> RowPool:
        """Sort at least one row, int32 (m, d), by its label, int64 (m,), below ``classes``."""
        rows = np.argsort(y, kind="stable").astype(np.int64)
        begin = np.searchsorted(y[rows], np.arange(classes + 1)).astype(np.int64)
        columns = np.ascontiguousarray(cells[rows].T)
        return RowPool(columns, rows, begin, columns.min(axis=1), columns.max(axis=1))


@inner_kernel
def count_violations(pool, start, stop, lo, hi, missing, codes, out):  # type: ignore[no-untyped-def]
    """Write the number of features in which the rows ``start:stop`` of a pool violate a box.

    A value is inside the box if ``lo <= cell < hi`` and its code is in the set. A missing value is
    inside where ``missing`` is True.
    """
    counts = out[start:stop]
    for r in range(stop - start):
        counts[r] = 0
    for f in range(lo.shape[0]):
        low, high, anywhere = lo[f], hi[f], missing[f]
        is_set = codes[f] != ANY
        below = low > pool.least[f] and not (anywhere and low == 0)
        if not (below or high <= pool.greatest[f] or is_set):
            continue  # no row of the pool violates the box in this feature
        cells = pool.cells[f, start:stop]  # with a slice, the compiler vectorises the loops
        for r in range(stop - start):
            c = cells[r]
            inside = ((c >= low) & (c < high)) | ((c < 0) & anywhere)
            counts[r] += np.int32(not inside)
        if is_set:
            for r in range(stop - start):
                c = cells[r]
                if c >= low and c < high and c >= 0 and not has(codes[f], c):
                    counts[r] += np.int32(1)


@dataclass(frozen=True, eq=False)
class ReachableLeaves:
    """Reachable leaves of rows, in compressed sparse rows.

    Attributes
    ----------
    offsets : int64 array, shape (n + 1,)
        Row ``i`` can reach the leaves ``leaf[offsets[i]:offsets[i + 1]]``.
    leaf : int32 array, shape (nnz,)
        Positions of leaves.
    log_prior : float64 array, shape (nnz,)
        Log probability of the leaf given box and label (nats), up to a constant per row.
    """

    offsets: NDArray[np.int64]
    leaf: NDArray[np.int32]
    log_prior: Floats


def reach(
    leaves: LeafConstraints,
    boxes: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]],
    prior: Prior,
    missing: NDArray[np.bool_] | None = None,
    prior_leaf: NDArray[np.int32] | None = None,
    codes: NDArray[np.uint64] | None = None,
) -> ReachableLeaves:
    """Return the reachable leaves of boxes under the marginal prior.

    Parameters
    ----------
    leaves : LeafConstraints
        Leaves of one tree.
    boxes : tuple (lo, hi, y)
        Cells and labels of n rows.
    prior : Prior
        Cell masses.
    missing : bool array, shape (n, d), optional
        Where values may be missing. None means nowhere.
    prior_leaf : int32 array, optional
        Leaf positions of the prior's rows. If given, these rows change the weights
        (`add_prior_rows`).
    codes : uint64 array, shape (n, d), optional
        Sets of possible codes. None means any.
    """
    lo, hi, y = boxes
    may = np.zeros(lo.shape, dtype=bool) if missing is None else missing
    offsets, leaf, mass = _reach(
        lo, hi, y, may, _any(lo.shape) if codes is None else codes,
        leaves.offsets, leaves.feature, leaves.lo, leaves.hi, leaves.missing, leaves.codes,
        prior.cumulative, prior.missing,
    )  # fmt: skip
    out = ReachableLeaves(offsets, leaf, np.log(mass))
    if prior_leaf is not None and len(prior.rows):
        add_prior_rows(out, boxes, prior, prior_leaf, len(leaves), missing, codes)
    return out


def _any(shape: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.full(shape, ANY)


def add_prior_rows(
    options: ReachableLeaves,
    boxes: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]],
    prior: Prior,
    prior_leaf: NDArray[np.int32],
    n_leaves: int,
    missing: NDArray[np.bool_] | None = None,
    codes: NDArray[np.uint64] | None = None,
) -> None:
    """Mix the prior's rows of the same label into the marginal prior, in place.

    A row counts exp(-1.5 * number of features outside the box) in its leaf. The marginal prior
    counts as three rows.

    Parameters
    ----------
    options : ReachableLeaves
        Reachable leaves. `ReachableLeaves.log_prior` is changed.
    boxes : tuple (lo, hi, y)
        Cells and labels of n rows.
    prior : Prior
        Supplies the rows and their cells.
    prior_leaf : int32 array
        Leaf positions of the prior's rows.
    n_leaves : int
        Number of leaves.
    missing : bool array, shape (n, d), optional
        A missing value is outside the box where this is False. None means that it is never outside.
    codes : uint64 array, shape (n, d), optional
        A code that is not in the set is outside the box. None means that all codes are inside.
    """
    sets = _any(boxes[0].shape) if codes is None else codes
    anywhere = np.ones(boxes[0].shape, dtype=np.bool_) if missing is None else missing
    prior_arguments = (prior.sorted_rows, prior_leaf, n_leaves, anywhere, sets)
    _add_prior_rows(options.offsets, options.leaf, options.log_prior, *boxes, *prior_arguments)


@inner_kernel
def mass_of(cumulative, c, f, lo, hi, codes):  # type: ignore[no-untyped-def]
    """Return the mass of the cells ``lo <= cell < hi`` of feature f for class c in a set."""
    if codes == ANY:
        return cumulative[c, f, hi] - cumulative[c, f, lo] if lo < hi else 0.0
    total = 0.0
    for k in range(lo, hi):
        if has(codes, k):
            total += cumulative[c, f, k + 1] - cumulative[c, f, k]
    return total


@kernel
def _reach(  # type: ignore[no-untyped-def]
    lo, hi, y, missing, codes,
    start, feature, leaf_lo, leaf_hi, leaf_missing, leaf_codes, cumulative, odds,
):  # fmt: skip
    """Return the reachable leaves of every box, and the share of the box's prior mass in each leaf.

    The share of a leaf is the product over the features that the leaf constrains, because the
    marginal prior treats features as independent given the class.
    """
    n, J = lo.shape[0], start.shape[0] - 1
    offsets = np.zeros(n + 1, dtype=np.int64)
    size = max(4 * n, 16)
    leaf = np.empty(size, dtype=np.int32)
    mass = np.empty(size)
    filled = 0
    for i in range(n):
        c = y[i]
        for j in range(J):
            share = 1.0
            for k in range(start[j], start[j + 1]):
                f = feature[k]
                a, b = max(lo[i, f], leaf_lo[k]), min(hi[i, f], leaf_hi[k])
                both = missing[i, f] and leaf_missing[k]
                part = mass_of(cumulative, c, f, a, b, codes[i, f] & leaf_codes[k])
                if part == 0.0 and not both:
                    share = -1.0
                    break
                row_mass = mass_of(cumulative, c, f, lo[i, f], hi[i, f], codes[i, f])
                if both:
                    part += odds[c, f]
                if missing[i, f]:
                    row_mass += odds[c, f]
                share *= part / row_mass
            if share > 0.0:
                if filled == size:
                    size *= 2
                    grown_leaf, grown_mass = np.empty(size, dtype=np.int32), np.empty(size)
                    for k in range(filled):  # a slice assignment would cost seconds to compile
                        grown_leaf[k], grown_mass[k] = leaf[k], mass[k]
                    leaf, mass = grown_leaf, grown_mass
                leaf[filled], mass[filled] = j, share
                filled += 1
        offsets[i + 1] = filled
    return offsets, leaf[:filled], mass[:filled]


@kernel
def _add_prior_rows(  # type: ignore[no-untyped-def]
    offsets, leaf, log_prior, lo, hi, y, pool, prior_leaf, n_leaves, missing, codes
):
    """Add the weights of the prior's rows of the same label to the log priors, in place."""
    weight = np.exp(-VIOLATION_COST * np.arange(lo.shape[1] + 1))
    mass = np.zeros(n_leaves)
    violations = np.empty(pool.rows.shape[0], dtype=np.int32)
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        if b - a < 2:
            continue
        for j in range(n_leaves):
            mass[j] = 0.0
        start, stop = pool.begin[y[i]], pool.begin[y[i] + 1]
        count_violations(pool, start, stop, lo[i], hi[i], missing[i], codes[i], violations)
        for r in range(start, stop):
            mass[prior_leaf[pool.rows[r]]] += weight[violations[r]]
        for k in range(a, b):
            log_prior[k] = np.log(mass[leaf[k]] + MARGINAL_WEIGHT * np.exp(log_prior[k]))
