"""Bins of one column with the algorithm of LightGBM 4.7 (``src/io/bin.cpp``).

The module also contains the distribution of LightGBM's bins over machines. LightGBM places cuts
midway between neighbouring values. A recipient of the cuts can therefore compute values of the
column (`values_between`, `values_from`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: LightGBM's bound below which a value counts as zero (``kZeroThreshold``).
ZERO = 1e-35
#: Largest relative difference of two values that differ only by rounding errors.
_ROUNDING = 1e-11


def blocks(columns: int, world: int) -> list[range]:
    """Return the columns whose bins each machine computes."""
    step = -(-columns // world)
    ends = [min(k * step, columns) for k in range(world)] + [columns]
    return [range(a, b) for a, b in pairwise(ends)]


def dealt(bins: Mapping[int, int], world: int) -> list[list[int]]:
    """Assign columns, in their order, to the machine with the fewest bins so far.

    Parameters
    ----------
    bins : mapping of int to int
        Number of bins of each used column.
    world : int
        Number of machines.
    """
    assigned: list[list[int]] = [[] for _ in range(world)]
    totals = [0] * world
    for column, count in bins.items():
        machine = totals.index(min(totals))
        assigned[machine].append(column)
        totals[machine] += count
    return assigned


def values_between(
    low: float, high: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the value in every bin, if each bin has one, and which values are certain.

    Cuts are midway between the largest value of one bin and the smallest value of the next one.
    Starting from one end, each value follows from the one before. If the last value agrees with the
    other end, either no bin has several values, or the effects of several such bins cancel. A value
    is certain if no such bins could change it.

    Parameters
    ----------
    low, high : float
        Smallest and largest value of the column.
    cuts : float64 array, shape (b - 1,)
        Cuts between the bins.
    single : bool array, shape (b,)
        Whether all rows in a bin are known to have the same value.

    Returns
    -------
    values : float64 array, shape (b,)
        Empty if the cuts are not midway between values.
    certain : bool array, shape (b,)
    """
    values = values_from(low, cuts)
    near = _ROUNDING * max(abs(low), abs(high))
    if not len(values) or abs(values[-1] - high) > near:
        return np.zeros(0), np.zeros(0, np.bool_)
    values[-1] = high
    first = _reach(low, cuts, single)
    # The same bounds, computed from the largest value with all signs changed.
    last = -_reach(-high, -cuts[::-1], single[::-1])[::-1, ::-1]
    least, greatest = np.maximum(first[:, 0], last[:, 0]), np.minimum(first[:, 1], last[:, 1])
    return values, single & (greatest - least <= near)


def values_from(low: float, cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value in every bin if each has one, starting from the smallest.

    The result is float64, shape (b,). It is empty if the cuts are not midway between values.
    """
    values = np.empty(len(cuts) + 1)
    values[0] = low
    for k, cut in enumerate(cuts):
        # The cut is the mean of the values on both sides.
        values[k + 1] = 2 * cut - values[k]
    near = _ROUNDING * np.abs(values).max()
    lows, highs = np.append(-np.inf, cuts), np.append(cuts, np.inf)
    inside = (values > lows - near).all() and (values <= highs + near).all()
    return values if inside else np.zeros(0)


def _reach(low: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return bounds on the smallest value of each bin, float64, shape (b, 2)."""
    reach = np.empty((len(cuts) + 1, 2))
    reach[0] = low
    for k, cut in enumerate(cuts):
        least, greatest = reach[k]
        # The largest value of the bin is the smallest one if the bin is single, else at most the
        # cut.
        reach[k + 1] = 2 * cut - (greatest if single[k] else cut), 2 * cut - least
    return reach


_SPARSE = 0.7  # share of rows above which the most frequent bin is used in place of the bin of 0


@dataclass(frozen=True, eq=False)
class Mapper:
    """Bins of one column.

    Attributes
    ----------
    bounds : float64 array, shape (b,)
        Upper bounds. The last one is infinite, or NaN if missing values have the last bin.
    low, high : float
        Smallest and largest value.
    used : bool
        Whether any split leaves enough rows on each side.
    frequent : int
        Bin of 0, or the bin with most rows.
    sparse : float
        Share of the rows in this bin.
    """

    bounds: NDArray[np.float64]
    low: float
    high: float
    used: bool
    frequent: int
    sparse: float

    @property
    def missing(self) -> bool:
        """Whether missing values have a separate bin. Otherwise they count as 0."""
        return bool(np.isnan(self.bounds[-1]))

    def bin(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the bin of each value."""
        absent, bounds = np.isnan(values), self.bounds[: len(self.bounds) - self.missing]
        position = np.searchsorted(bounds[:-1], np.where(absent, 0.0, values), side="left")
        return np.where(absent & self.missing, len(bounds), position)


def find_bins(
    values: NDArray[np.float64],
    max_bin: int,
    min_data_in_bin: int,
    least_rows: int,
    forced: NDArray[np.float64] | None = None,
) -> Mapper:
    """Return the bins of a column, computed from all of its values.

    Parameters
    ----------
    values : float64 array, shape (n,)
        The column. NaN marks a missing value.
    max_bin : int
        Largest number of bins.
    min_data_in_bin : int
        Smallest number of rows of a bin.
    least_rows : int
        Smallest number of rows on each side of a split (``min_data_in_leaf``).
    forced : float64 array, shape (k,), optional
        Bounds that do not depend on the values (``forcedbins_filename``).
    """
    present = np.sort(values[~np.isnan(values)], kind="stable")
    absent = len(values) - len(present)
    distinct, counts = _distinct(present)
    n_bins = max_bin - bool(absent)
    if forced is None or not len(forced):
        bounds = _around_zero(distinct, counts, n_bins, min_data_in_bin)
    else:
        bounds = _force_bounds(distinct, counts, n_bins, min_data_in_bin, forced)
    rows_in_bin = np.bincount(
        np.searchsorted(bounds[:-1], distinct, side="left"), counts, len(bounds)
    ).astype(np.int64)
    if absent:
        bounds, rows_in_bin = np.append(bounds, np.nan), np.append(rows_in_bin, absent)
    below = np.cumsum(rows_in_bin)[:-1]
    used = bool(((below >= least_rows) & (len(values) - below >= least_rows)).any())
    zero = int(np.searchsorted(bounds[: len(bounds) - 1 - bool(absent)], 0.0, side="left"))
    frequent = int(np.argmax(rows_in_bin))
    if rows_in_bin[frequent] / max(len(values), 1) < _SPARSE:
        frequent = zero
    low, high = (float(distinct[0]), float(distinct[-1])) if len(distinct) else (0.0, 0.0)
    sparse = float(rows_in_bin[frequent] / max(len(values), 1)) if used else 1.0
    return Mapper(bounds, low, high, used, frequent if used else 0, sparse)


def _distinct(present: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distinct values and their numbers of rows.

    Values close to 0 become 0, and neighbouring floats count as one value.
    """
    present = np.where(np.abs(present) <= ZERO, 0.0, present)
    if not len(present):
        return np.zeros(1), np.zeros(1, np.int64)
    last = np.append(present[1:] > np.nextafter(present[:-1], np.inf), True)
    ends = np.flatnonzero(last)
    return present[ends], np.diff(np.append(-1, ends))


def _around_zero(
    distinct: NDArray[np.float64], counts: NDArray[np.int64], max_bin: int, least: int
) -> NDArray[np.float64]:
    """Return bounds with a separate bin for 0."""
    left, right = distinct < -ZERO, distinct > ZERO
    bounds: list[float] = []
    if left.any() and max_bin > 1:
        rows, zero = counts[left].sum(), counts[~left & ~right].sum()
        # Negative and positive values divide the bins in proportion to their rows.
        share = max(1, int(float(rows) / float(counts.sum() - zero) * (max_bin - 1)))
        bounds = _greedy(distinct[left], counts[left], share, int(rows), least)
        bounds[-1] = -ZERO32
    remaining = max_bin - 1 - len(bounds)
    if not right.any() or remaining <= 0:
        return np.array([*bounds, np.inf])
    rest = _greedy(distinct[right], counts[right], remaining, int(counts[right].sum()), least)
    return np.array([*bounds, ZERO32, *rest])


ZERO32 = float(np.float32(ZERO))


def _greedy(
    distinct: NDArray[np.float64],
    counts: NDArray[np.int64],
    max_bin: int,
    total: int,
    least: int,
) -> list[float]:
    """Return bounds of bins with about equal numbers of rows (``GreedyFindBin``).

    The last bound is infinite.
    """
    if len(distinct) <= max_bin:
        return _few(distinct, counts, least)
    if least > 0:
        max_bin = max(min(max_bin, total // least), 1)
    mean, bins, rows = total / max_bin, max_bin, total
    # Values with more rows than a bin should have get a separate bin. The remaining rows are
    # divided evenly.
    big = counts >= mean
    bins, rows = bins - int(big.sum()), rows - int(counts[big].sum())
    mean = _over(rows, bins)
    upper, lower, rows_in_bin = list[float](), [float(distinct[0])], 0
    for i in range(len(distinct) - 1):
        rows -= 0 if big[i] else int(counts[i])
        rows_in_bin += int(counts[i])
        if big[i] or rows_in_bin >= mean or (big[i + 1] and rows_in_bin >= max(1.0, mean * 0.5)):
            upper.append(float(distinct[i]))
            lower.append(float(distinct[i + 1]))
            if len(upper) >= max_bin - 1:
                break
            rows_in_bin = 0
            if not big[i]:
                bins -= 1
                mean = _over(rows, bins)
    bounds = list[float]()
    for a, b in zip(upper, lower[1:], strict=True):
        cut = _up((a + b) / 2)
        if not bounds or cut > _up(bounds[-1]):
            bounds.append(cut)
    return [*bounds, np.inf]


def _few(distinct: NDArray[np.float64], counts: NDArray[np.int64], least: int) -> list[float]:
    """Return bounds between values, each with enough rows since the bound before."""
    bounds, rows_in_bin = list[float](), 0
    for i in range(len(distinct) - 1):
        rows_in_bin += int(counts[i])
        cut = _up((distinct[i] + distinct[i + 1]) / 2)
        if rows_in_bin >= least and (not bounds or cut > _up(bounds[-1])):
            bounds.append(cut)
            rows_in_bin = 0
    return [*bounds, np.inf]


def _up(value: float) -> float:
    """Return the next larger float."""
    return float(np.nextafter(value, np.inf))


def _over(rows: int, bins: int) -> float:
    """Return a quotient with the results of C for a division by 0."""
    return rows / bins if bins else np.inf * np.sign(rows) if rows else np.nan


def _force_bounds(
    distinct: NDArray[np.float64],
    counts: NDArray[np.int64],
    max_bin: int,
    least: int,
    forced: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the forced bounds, and bounds between them for the remaining bins."""
    left, right = bool((distinct < -ZERO).any()), bool((distinct > ZERO).any())
    bounds = [np.inf]
    if max_bin == 2:
        bounds.append(-ZERO32 if left else ZERO32)
    elif max_bin > 2:
        bounds += [-ZERO32] * left + [ZERO32] * right
    nonzero = [float(b) for b in forced if abs(b) > ZERO]
    bounds = sorted([*bounds, *nonzero[: max(max_bin - len(bounds), 0)]])
    free, added, at, total = max_bin - len(bounds), list[float](), 0, int(counts.sum())
    for i, bound in enumerate(bounds):
        end = int(np.searchsorted(distinct, bound, side="left"))
        part, rows, at = slice(at, end), int(counts[at:end].sum()), end
        over = max_bin - len(bounds) - len(added)
        share = min(int(np.floor(rows * free / max(total, 1) + 0.5)), over) + 1
        if i == len(bounds) - 1:
            share = over + 1
        if end > part.start:
            added += _greedy(distinct[part], counts[part], share, rows, least)[:-1]
    return np.array(sorted([*bounds, *added]))
