"""LightGBM's bins of one column (``src/io/bin.cpp`` of LightGBM 4.7), step by step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.lightgbm.midpoints import ZERO

_SPARSE = 0.7  # share of rows from which on the most frequent bin may be another than that of 0


@dataclass(frozen=True, eq=False)
class Mapper:
    """The bins of one column.

    `bounds`: float64 array, shape (b,). Upper bounds, the last infinite, or NaN where missing
    values have the last bin.
    `low, high`: The least and the greatest value.
    `used`: Whether any split leaves enough rows on either side.
    `frequent`: The bin of 0, or the one that has most rows.
    `sparse`: The share of rows in it.
    """

    bounds: NDArray[np.float64]
    low: float
    high: float
    used: bool
    frequent: int
    sparse: float

    @property
    def missing(self) -> bool:
        """Whether missing values have a bin; else they count as 0."""
        return bool(np.isnan(self.bounds[-1]))

    def bin(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the bin of each value."""
        absent, bounds = np.isnan(values), self.bounds[: len(self.bounds) - self.missing]
        found = np.searchsorted(bounds[:-1], np.where(absent, 0.0, values), side="left")
        return np.where(absent & self.missing, len(bounds), found)


def find_bins(
    values: NDArray[np.float64],
    max_bin: int,
    min_data_in_bin: int,
    least_rows: int,
    forced: NDArray[np.float64] | None = None,
) -> Mapper:
    """Return the bins that are found on all values of a column.

    `values`: float64 array, shape (n,).
    `least_rows`: That a split must leave on either side (``min_data_in_leaf``).
    `forced`: float64 array, shape (k,). Bounds that are there whatever the values are
    (``forcedbins_filename``).
    """
    present = np.sort(values[~np.isnan(values)], kind="stable")
    absent = len(values) - len(present)
    distinct, counts = _distinct(present)
    most = max_bin - bool(absent)
    if forced is None or not len(forced):
        bounds = _around_zero(distinct, counts, most, min_data_in_bin)
    else:
        bounds = _forced(distinct, counts, most, min_data_in_bin, forced)
    held = np.bincount(
        np.searchsorted(bounds[:-1], distinct, side="left"), counts, len(bounds)
    ).astype(np.int64)
    if absent:
        bounds, held = np.append(bounds, np.nan), np.append(held, absent)
    below = np.cumsum(held)[:-1]
    used = bool(((below >= least_rows) & (len(values) - below >= least_rows)).any())
    zero = int(np.searchsorted(bounds[: len(bounds) - 1 - bool(absent)], 0.0, side="left"))
    frequent = int(np.argmax(held))
    if held[frequent] / max(len(values), 1) < _SPARSE:
        frequent = zero
    low, high = (float(distinct[0]), float(distinct[-1])) if len(distinct) else (0.0, 0.0)
    sparse = float(held[frequent] / max(len(values), 1)) if used else 1.0
    return Mapper(bounds, low, high, used, frequent if used else 0, sparse)


def _distinct(present: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return different values and how many rows have each; near 0 is 0, neighbours are one."""
    present = np.where(np.abs(present) <= ZERO, 0.0, present)
    if not len(present):
        return np.zeros(1), np.zeros(1, np.int64)
    last = np.append(present[1:] > np.nextafter(present[:-1], np.inf), True)
    ends = np.flatnonzero(last)
    return present[ends], np.diff(np.append(-1, ends))


def _around_zero(
    distinct: NDArray[np.float64], counts: NDArray[np.int64], max_bin: int, least: int
) -> NDArray[np.float64]:
    """Return bounds with a bin of 0 alone."""
    left, right = distinct < -ZERO, distinct > ZERO
    bounds: list[float] = []
    if left.any() and max_bin > 1:
        rows, zero = counts[left].sum(), counts[~left & ~right].sum()
        share = max(1, int(float(rows) / float(counts.sum() - zero) * (max_bin - 1)))
        bounds = _greedy(distinct[left], counts[left], share, int(rows), least)
        bounds[-1] = -ZERO32
    most = max_bin - 1 - len(bounds)
    if not right.any() or most <= 0:
        return np.array([*bounds, np.inf])
    rest = _greedy(distinct[right], counts[right], most, int(counts[right].sum()), least)
    return np.array([*bounds, ZERO32, *rest])


ZERO32 = float(np.float32(ZERO))


def _greedy(
    distinct: NDArray[np.float64],
    counts: NDArray[np.int64],
    max_bin: int,
    total: int,
    least: int,
) -> list[float]:
    """Return bounds of bins of about as many rows each, the last infinite (``GreedyFindBin``)."""
    if len(distinct) <= max_bin:
        return _few(distinct, counts, least)
    if least > 0:
        max_bin = max(min(max_bin, total // least), 1)
    mean, bins, rows = total / max_bin, max_bin, total
    big = counts >= mean
    bins, rows = bins - int(big.sum()), rows - int(counts[big].sum())
    mean = _over(rows, bins)
    upper, lower, held = list[float](), [float(distinct[0])], 0
    for i in range(len(distinct) - 1):
        rows -= 0 if big[i] else int(counts[i])
        held += int(counts[i])
        if big[i] or held >= mean or (big[i + 1] and held >= max(1.0, mean * 0.5)):
            upper.append(float(distinct[i]))
            lower.append(float(distinct[i + 1]))
            if len(upper) >= max_bin - 1:
                break
            held = 0
            if not big[i]:
                bins -= 1
                mean = _over(rows, bins)
    found = list[float]()
    for a, b in zip(upper, lower[1:], strict=True):
        cut = _up((a + b) / 2)
        if not found or cut > _up(found[-1]):
            found.append(cut)
    return [*found, np.inf]


def _few(distinct: NDArray[np.float64], counts: NDArray[np.int64], least: int) -> list[float]:
    """Return bounds between values, where enough rows are below since the last one."""
    found, held = list[float](), 0
    for i in range(len(distinct) - 1):
        held += int(counts[i])
        cut = _up((distinct[i] + distinct[i + 1]) / 2)
        if held >= least and (not found or cut > _up(found[-1])):
            found.append(cut)
            held = 0
    return [*found, np.inf]


def _up(value: float) -> float:
    return float(np.nextafter(value, np.inf))


def _over(rows: int, bins: int) -> float:
    return rows / bins if bins else np.inf * np.sign(rows) if rows else np.nan


def _forced(
    distinct: NDArray[np.float64],
    counts: NDArray[np.int64],
    max_bin: int,
    least: int,
    forced: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return bounds that are forced, and where bins are left ones made of values between them."""
    left, right = bool((distinct < -ZERO).any()), bool((distinct > ZERO).any())
    bounds = [np.inf]
    if max_bin == 2:
        bounds.append(-ZERO32 if left else ZERO32)
    elif max_bin > 2:
        bounds += [-ZERO32] * left + [ZERO32] * right
    wanted = [float(b) for b in forced if abs(b) > ZERO]
    bounds = sorted([*bounds, *wanted[: max(max_bin - len(bounds), 0)]])
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
