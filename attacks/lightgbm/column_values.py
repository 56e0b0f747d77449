"""Distribute the class counts of bins among workers if only sums over several workers are known.

The module also estimates the values of a column from its bins, some of its values, and rows of the
prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.columns import columns_of
from fedtrees.attacks.observations.replay import cuts_of
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.trees.binning import Cuts, bin_rows

Longs = NDArray[np.int64]


def allocate_counts(
    view: View, known_counts: Mapping[str, Longs], total_counts: Longs, classes: Mapping[str, Longs]
) -> dict[str, Longs]:
    """Fill in unknown class counts of workers from the sum over all workers.

    The total minus the counts of the principals and of the workers with known counts belongs to the
    remaining workers. If there is one such worker, its counts are exact. If the sketches contain
    the rows of each worker in a bin, the classes are distributed in proportion to these, which is
    the mode of the multivariate hypergeometric distribution. Otherwise they are distributed in
    proportion to the class counts of the workers.

    Parameters
    ----------
    view : View
        Provides cut points, sketches, and the rows of the principals.
    known_counts : mapping of str to int64 array, shape (b, 2)
        Class counts in every bin of each other worker, -1 if unknown.
    total_counts : int64 array, shape (b, 2)
        Class counts of all workers including the principals, -1 if unknown.
    classes : mapping of str to int64 array, shape (2,)
        Number of rows of each class of each other worker.

    Returns
    -------
    counts : dict of str to int64 array, shape (b, 2)
        Copies of `known_counts` with fewer unknown counts.
    """
    cuts = cuts_of(view)
    if cuts is None or cuts.total_bins != len(total_counts):
        return dict(known_counts)
    local_counts = (
        np.zeros_like(total_counts) if view.rows is None else _count_classes(view.rows, cuts)
    )
    names = [*known_counts]
    counts = np.stack([known_counts[name] for name in names])
    rows = _count_sketched_rows(view, names, cuts)
    shares = np.stack([classes.get(name, np.ones(2)) for name in names])
    remaining = total_counts - local_counts - np.where(counts < 0, 0, counts).sum(axis=0)
    # Only bins with a known and consistent total can be filled in.
    open_bins = (
        (total_counts >= 0).all(axis=1)
        & (remaining >= 0).all(axis=1)
        & (counts < 0).any(axis=(0, 2))
    )
    for b in np.flatnonzero(open_bins).tolist():
        unknown = np.flatnonzero(counts[:, b, 0] < 0)
        # Sketches are used only if they agree with the remaining total of the bin.
        if rows is not None and rows[unknown, b].sum() == remaining[b].sum():
            ones = largest_remainder(rows[unknown, b].astype(np.float64), int(remaining[b, 1]))
            ones = np.minimum(ones, rows[unknown, b])
            counts[unknown, b] = np.stack([rows[unknown, b] - ones, ones], axis=1)
        else:
            class_counts = [
                largest_remainder(shares[unknown, k].astype(float), int(remaining[b, k]))
                for k in (0, 1)
            ]
            counts[unknown, b] = np.stack(class_counts, axis=1)
    return dict(zip(names, counts, strict=True))


def _count_classes(rows: Table, cuts: Cuts) -> Longs:
    """Return the class counts of rows in every bin, int64, shape (b, 2)."""
    bins = bin_rows(rows.X, cuts)
    row, column = np.nonzero(bins.codes != bins.missing)
    at = (bins.offsets[column] + bins.codes[row, column]) * 2 + rows.y[row]
    return np.bincount(at, minlength=2 * cuts.total_bins).reshape(-1, 2)


def _count_sketched_rows(view: View, names: list[str], cuts: Cuts) -> Longs | None:
    """Return the rows of workers in every bin, int64, shape (m, b).

    The result is None unless the exact values of all workers are known from sketches.
    """
    columns = columns_of(view)
    if any(name not in columns or not all(c.exact for c in columns[name]) for name in names):
        return None
    counts = np.zeros((len(names), cuts.total_bins), np.int64)
    for rows, name in zip(counts, names, strict=True):
        n_values = max(len(c.values) for c in columns[name])
        X = np.full((n_values, cuts.n_features), np.nan, np.float32)
        for f, c in enumerate(columns[name]):
            X[: len(c.values), f] = c.values
        codes = bin_rows(X, cuts).codes
        for f, c in enumerate(columns[name]):
            np.add.at(rows, cuts.offsets[f] + codes[: len(c.values), f].astype(int), c.counts)
    return counts


Doubles = NDArray[np.float64]

# Upper limit of the decimal places of a column.
_PLACES = 7
# Upper limit of the grid points of a column. Beyond it, only the values of the prior rows are
# considered.
_MAX_GRID_POINTS = 200_000
# Relative rounding error of float32.
_SINGLE = 1e-7
# Steps of the bisection of the probability threshold in `_select_likeliest`.
_BISECTIONS = 16


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about a column of another machine. A bin contains the values up to its cut.

    Attributes
    ----------
    values : float64 array, shape (k,)
        Values that occur.
    cuts : float64 array, shape (b - 1,)
        Upper ends of the bins but the last.
    low, high : float or None
        Smallest and largest value, None if unknown.
    least : int
        Minimum number of rows in each bin.
    midway : bool array, shape (b - 1,)
        Cuts that are midpoints of two adjacent values. If all cuts are, no bin is empty.
    single : int64 array
        Bins that contain one of `values` and no other value.
    rows : int64 array, shape (b,), or None
        Number of rows in every bin, None if unknown.
    """

    values: Doubles
    cuts: Doubles
    low: float | None = None
    high: float | None = None
    least: int = 0
    midway: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    single: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: Longs | None = None

    @property
    def near(self) -> float:
        """Largest rounding error of the values in float32."""
        return _SINGLE * max(abs(self.low or 0.0), abs(self.high or 0.0))

    def midway_cuts(self) -> Iterator[tuple[float, float]]:
        """Yield cuts that are midpoints, with the largest distance to the adjacent values."""
        all_midway = len(self.midway) > 0 and self.midway.all()
        gaps = np.diff(self.cuts, prepend=-np.inf, append=np.inf)
        reach = np.minimum(gaps[:-1], gaps[1:]) if all_midway else np.full(len(self.cuts), np.inf)
        for k in np.flatnonzero(self.midway).tolist():
            yield float(self.cuts[k]), float(reach[k])


def likely_column(
    prior_values: Doubles, n: int, facts: ColumnFacts, is_categorical: bool
) -> tuple[Doubles, Longs]:
    """Return the values and counts that n rows of another machine most probably have.

    The distribution of a row is that of the prior rows, mixed with a smoothed version. The weight
    of the smoothed version is the share of prior values that occur once, which estimates the
    probability of a new value (Good 1953). Bins contain at least their minimum number of rows. A
    midpoint requires two values at equal distance with no value between them, and more probable
    distances are preferred. The n most probable cells are returned, or as many of each bin as it
    has rows, if known.

    Parameters
    ----------
    prior_values : float64 array, shape (m,)
        Present values of the prior rows.
    n : int
        Number of rows.
    facts : ColumnFacts
        Facts about the column.
    is_categorical : bool
        Whether values are categories, so that no category is near another.

    Returns
    -------
    values : float64 array, shape (k,)
        Distinct values, including the known ones.
    counts : int64 array, shape (k,)
        Number of rows with each value.
    """
    step = None if is_categorical else _step(np.concatenate([prior_values, facts.values]))
    # Without a grid of possible values, only known values and those of the prior rows can be
    # returned.
    if step is None or np.ptp(prior_values) / step > _MAX_GRID_POINTS:
        if facts.rows is not None:
            return _prior_values_in_bins(prior_values, facts)
        values, times = np.unique(prior_values, return_counts=True)
        counts = largest_remainder(times.astype(np.float64), n)
        values = np.concatenate([values, facts.values])
        counts = np.concatenate([counts, np.ones(len(facts.values), np.int64)])
        return values[counts > 0], counts[counts > 0]
    ends = (
        [facts.low, facts.high]
        if facts.low is not None
        else [prior_values.min(), prior_values.max()]
    )
    grid_positions = np.rint(np.concatenate([prior_values, facts.values, ends]) / step).astype(
        np.int64
    )
    first = int(grid_positions.min())
    rows = n * _smooth_frequencies(
        grid_positions[: len(prior_values)] - first, int(np.ptp(grid_positions)) + 1
    )
    values = np.asarray((first + np.arange(len(rows))) * step, dtype=np.float64)
    if facts.low is not None and facts.high is not None:
        rows = _in_bins(rows, values, facts)
    # Probability that at least one row has the value, under a Poisson distribution.
    presence = -np.expm1(-rows)
    for cut, gap in facts.midway_cuts():
        _condition_on_midpoint(presence, round(2 * cut / step) - 2 * first, gap / step)
    positions = np.rint(facts.values / step).astype(np.int64) - first
    presence[positions] = 1.0
    if facts.rows is None:
        counts = _select_likeliest(presence, rows, n)
    else:
        bin_of_value, counts = _bins_of(values, facts), np.zeros(len(rows), np.int64)
        for b in np.flatnonzero(facts.rows).tolist():
            positions = np.flatnonzero(bin_of_value == b)
            counts[positions] = _select_likeliest(
                presence[positions], rows[positions], int(facts.rows[b])
            )
    values = np.round(values, _PLACES)
    return values[counts > 0], counts[counts > 0]


def _prior_values_in_bins(prior_values: Doubles, facts: ColumnFacts) -> tuple[Doubles, Longs]:
    """Return the prior values of each bin, as often as it has rows.

    Bins with a single known value, and bins without prior values, contain known values only.
    """
    assert facts.rows is not None
    counts_of_value: dict[float, int] = {}
    bin_of_prior, bin_of_known = (_bins_of(v, facts) for v in (prior_values, facts.values))
    for b in np.flatnonzero(facts.rows).tolist():
        values, times = np.unique(prior_values[bin_of_prior == b], return_counts=True)
        if b in facts.single or not len(values):
            values = facts.values[bin_of_known == b]
            times = np.ones(len(values), np.int64)
        counts = largest_remainder(times.astype(np.float64), int(facts.rows[b]))
        counts_of_value |= dict(zip(values.tolist(), counts.tolist(), strict=True))
    present = {v: k for v, k in sorted(counts_of_value.items()) if k}
    return np.array([*present], np.float64), np.array([*present.values()], np.int64)


def _step(values: Doubles) -> float | None:
    """Return the largest power of ten of which all values are multiples, None if there is none."""
    for places in range(_PLACES + 1):
        # Values are compared with their roundings up to the precision of float32.
        near = np.abs(np.round(values, places) - values)
        if (near <= _SINGLE * np.abs(values)).all():
            return float(10.0**-places)
    return None


def _smooth_frequencies(positions: Longs, size: int) -> Doubles:
    """Return the probability of each grid point for one row, smoothed by Good-Turing."""
    from scipy.signal import fftconvolve  # imported here, because it takes half a second

    counts = np.bincount(positions, minlength=size).astype(np.float64)
    # Silverman's rate n^(-1/5), with half the usual width.
    width = max(1.0, 0.5 * float(positions.std()) * len(positions) ** -0.2)
    reach = int(4 * width) + 1
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    smooth = np.maximum(fftconvolve(counts, kernel)[reach : reach + size], 0)
    single = min(0.95, float((counts == 1).sum()) / len(positions))
    mixed: Doubles = (1 - single) * counts / len(positions) + single * smooth / smooth.sum()
    return mixed


def _bins_of(values: Doubles, facts: ColumnFacts) -> NDArray[np.intp]:
    """Return the bins of values, which may have been rounded to float32."""
    return np.asarray(np.searchsorted(facts.cuts, values - facts.near))


def _in_bins(rows: Doubles, values: Doubles, facts: ColumnFacts) -> Doubles:
    """Scale the expected rows of grid points to the size of their bins, 0 beyond the ends."""
    near, bin_of_value = facts.near, _bins_of(values, facts)
    assert facts.low is not None
    assert facts.high is not None
    # Values outside the extremes are impossible.
    beyond = (values < facts.low - near) | (values > facts.high + near)
    inside = np.where(beyond, 0.0, rows + np.finfo(float).eps)
    is_unknown = np.abs(values[:, None] - facts.values).min(axis=1, initial=np.inf) > near
    inside[np.isin(bin_of_value, facts.single) & is_unknown] = 0.0
    mass = np.bincount(bin_of_value, inside, len(facts.cuts) + 1)
    size = np.maximum(mass, facts.least)
    size = size * (rows.sum() / size.sum()) if facts.rows is None else facts.rows
    return np.asarray(inside * (size / np.maximum(mass, np.finfo(float).tiny))[bin_of_value])


def _condition_on_midpoint(presence: Doubles, twice: int, max_distance: float) -> None:
    """Condition the presence of values on a cut that is the midpoint of two adjacent values.

    Parameters
    ----------
    presence : float64 array, shape (v,)
        Probability that each value occurs. It is changed in place.
    twice : int
        Twice the position of the cut on the grid.
    max_distance : float
        Largest distance of the adjacent values from the cut, in grid steps.
    """
    left = (twice - 1) // 2
    right = twice - left
    reach = int(min(left + 1, len(presence) - right, max_distance + 1, _MAX_GRID_POINTS))
    if reach < 1:
        return
    at, across = left - np.arange(reach), right + np.arange(reach)
    # Probability that no value lies nearer to the cut than each candidate pair.
    gap_probability = np.cumprod(np.append(1.0, (1 - presence[at]) * (1 - presence[across])))[:-1]
    pairs = presence[at] * presence[across] * gap_probability
    if pairs.sum():
        for side in (at, across):
            presence[side] = 1 - (1 - presence[side]) * (1 - pairs / pairs.sum())


def _select_likeliest(presence: Doubles, rows: Doubles, n: int) -> Longs:
    """Return how many of the n most probable cells have each value, int64, shape (v,).

    Parameters
    ----------
    presence : float64 array, shape (v,)
        Probability that each value occurs.
    rows : float64 array, shape (v,)
        Expected number of rows with each value, under a Poisson distribution.
    n : int
        Number of rows.
    """
    candidates = np.argsort(-presence, kind="stable")[: 4 * n]

    def copies(least: float) -> Longs:
        from scipy.stats import poisson  # imported here, because it takes half a second

        more = np.where(rows[candidates] > 0, poisson.isf(least, rows[candidates]), 0).astype(
            np.int64
        )
        return np.maximum(more, presence[candidates] >= least)

    # A value deserves k copies if the probability of k rows exceeds a threshold. Bisection finds
    # the threshold at which there are n copies in total.
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if copies(middle).sum() > n else (low, middle)
    n_copies, next_cells = copies(high), np.flatnonzero(copies(max(low, 1e-12)) > copies(high))
    n_copies[next_cells[: max(n - int(n_copies.sum()), 0)]] += 1
    counts = np.zeros(len(presence), np.int64)
    counts[candidates] = n_copies
    return counts
