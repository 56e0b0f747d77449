"""Knowledge about the values of one column of the victims, and operations on it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.allocation import share_out
from fedtrees.core.schema import Feature, Table

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one column of one party, or of several parties, without missing values.

    Attributes
    ----------
    values : float32 array, shape (k,)
        Ascending values.
    counts : int64 array, shape (k,)
        Number of rows that each value represents.
    exact : bool
        True if these are all values and their exact frequencies. Otherwise a count includes rows
        with values in between, but the smallest and the largest value do occur.
    reliability : float
        Share of the information in the counts that is not noise, 0 to 1.
    points : bool
        Whether each value also represents values close to it.
    middles : bool
        Whether values represent bins, so that no row need have exactly this value.
    """

    values: Floats  # ascending
    counts: Longs
    # Quantile sketches give some of the values only.
    exact: bool
    reliability: float = 1.0
    points: bool = False
    middles: bool = False

    @property
    def present(self) -> int:
        """Number of rows whose value is not missing."""
        return int(self.counts.sum())

    def spread(self, m: int) -> Floats:
        """Return m ascending values at evenly spaced ranks, both ends included.

        m must not exceed `present`.
        """
        at = np.arange(m) * (self.present - 1) // max(m - 1, 1)
        every: Floats = np.repeat(self.values, self.counts)[at]
        return every


def columns_in(rows: Table) -> tuple[Column, ...]:
    """Return the columns of a table. They are not exact, because the rows are a sample."""
    unique_values = (np.unique(c[~np.isnan(c)], return_counts=True) for c in rows.X.T)
    return tuple(Column(values, counts, False) for values, counts in unique_values)


def nearest(X: Floats, values: Floats) -> Floats:
    """Return, for each element of X, the nearest of the ascending values. NaN remains NaN.

    The result is a float32 array of shape (n,).
    """
    if not len(values):
        return X
    above = np.clip(np.searchsorted(values, X), 1, max(len(values) - 1, 1))
    low, high = values[above - 1], values[np.minimum(above, len(values) - 1)]
    # ties go to the smaller value
    near: Floats = np.where(X - low <= high - X, low, high)
    return np.where(np.isnan(X), X, near)


def of_own(
    values: Floats, counts: Longs, borders: NDArray[np.float64], local_values: Floats
) -> Column:
    """Return a column with the local values in each cell, or else the given value.

    Parameters
    ----------
    values : float32 array, shape (k,)
        Value of each cell, used if the cell contains no local value.
    counts : int64 array, shape (k,)
        Rows in each cell. They are shared out evenly among the local values in it.
    borders : float64 array, shape (k - 1,)
        Borders between the cells.
    local_values : float32 array
        Local values. May contain NaN.
    """
    sorted_values = np.sort(local_values[np.isfinite(local_values)])
    cell = np.searchsorted(borders, sorted_values, side="right")
    empty = np.setdiff1d(np.flatnonzero(counts), cell)
    each = [share_out(np.ones(k), int(counts[c])) for c, k in enumerate(np.bincount(cell)) if k]
    value = np.concatenate([sorted_values, values[empty]]).astype(np.float32)
    rows = np.concatenate([*each, counts[empty]]).astype(np.int64)
    unique_values, group = np.unique(value[rows > 0], return_inverse=True)
    return Column(unique_values, np.bincount(group, rows[rows > 0]).astype(np.int64), False)


def replace_points(columns: Sequence[Column], local_rows: Table) -> tuple[Column, ...]:
    """Replace the values of columns marked `points` by nearby values of the local rows."""
    return tuple(
        _next_to(c, x) if c.points else c for c, x in zip(columns, local_rows.X.T, strict=True)
    )


def _next_to(column: Column, local_values: Floats) -> Column:
    at = column.values.astype(np.float64)
    filled_column = of_own(column.values, column.counts, (at[:-1] + at[1:]) / 2, local_values)
    return replace(filled_column, reliability=column.reliability)


def unknown(feature: Feature, n: int, local_values: Floats) -> Column:
    """Return a column of n rows for a feature without counts, with reliability 0.

    If there are local values (`local_values`, float32), they determine the distribution. Otherwise
    all categories are equally likely, or all rows have the lowest declared value or 0.
    """
    values, times = np.unique(local_values[np.isfinite(local_values)], return_counts=True)
    if not len(values):
        values = np.arange(max(len(feature.categories), 1), dtype=np.float32)
        times = np.ones(len(values), dtype=np.int64)
        if not feature.categories and feature.low is not None:
            values[0] = feature.low
    each = share_out(times.astype(np.float64), n)
    return Column(values[each > 0], each[each > 0], False, 0.0)


def shortest(low: NDArray[np.float64], high: NDArray[np.float64]) -> Floats:
    """Return the number with the fewest decimal places in each interval ``low <= x < high``.

    If several numbers qualify, the middle one is returned. The result is float32, shape (k,). For
    example, the interval from 0.37 to 0.52 gives 0.4 or 0.5.
    """
    out = (low + high) / 2
    for places in range(7, -1, -1):
        first, last = np.ceil(low * 10.0**places), np.ceil(high * 10.0**places) - 1
        # fewer places overwrite more, so that the fewest remain
        out = np.where(first <= last, np.floor((first + last) / 2) / 10.0**places, out)
    return out.astype(np.float32)


def together(parts: Sequence[Column]) -> Column:
    """Merge the columns of several parties into one, adding the counts of equal values."""
    values, group = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, group, np.concatenate([p.counts for p in parts]))
    mean_reliability = reliability(parts)
    exact = all(p.exact for p in parts)
    return Column(values, counts, exact, mean_reliability, any(p.points for p in parts))


def reliability(columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns."""
    return float(np.mean([c.reliability for c in columns]))


def fullest(columns: Sequence[Column]) -> int:
    """Return the largest number of present values of any column.

    It is a lower bound on the number of rows.
    """
    return max((c.present for c in columns), default=0)
