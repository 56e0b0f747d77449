"""What is known of the values of one column."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.counts import share_out
from fedtrees.core.schema import Feature, Table

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """What is known of the present values of one column of one owner, or of several."""

    values: Floats  # float32 (k,): values that are there, ascending
    counts: Longs  # int64 (k,): rows they stand for
    # Whether these are all values, each as often as it says; else counts stand for what lies
    # between, too, but the outermost values are there
    exact: bool
    reliability: float = 1.0  # share of what counts tell that is not noise, 0 to 1
    points: bool = False  # whether values stand for those next to them, too
    middles: bool = False  # whether values stand for bins, and nobody need have them

    @property
    def present(self) -> int:
        """Number of rows whose value is not missing."""
        return int(self.counts.sum())

    def spread(self, m: int) -> Floats:
        """Return m values, ascending, at even ranks and both ends; at most those present."""
        at = np.arange(m) * (self.present - 1) // max(m - 1, 1)
        every: Floats = np.repeat(self.values, self.counts)[at]
        return every


def columns_in(rows: Table) -> tuple[Column, ...]:
    """Return the columns of some rows."""
    found = (np.unique(c[~np.isnan(c)], return_counts=True) for c in rows.X.T)
    return tuple(Column(values, counts, False) for values, counts in found)


def nearest(X: Floats, values: Floats) -> Floats:
    """Return the nearest of some ascending values to each of X, float32, shape (n,); NaN stays."""
    if not len(values):
        return X
    above = np.clip(np.searchsorted(values, X), 1, max(len(values) - 1, 1))
    low, high = values[above - 1], values[np.minimum(above, len(values) - 1)]
    near: Floats = np.where(X - low <= high - X, low, high)
    return np.where(np.isnan(X), X, near)


def of_own(values: Floats, counts: Longs, borders: NDArray[np.float64], own: Floats) -> Column:
    """Return a column of the values of own rows in each cell, else of the value given."""
    known = np.sort(own[np.isfinite(own)])
    cell = np.searchsorted(borders, known, side="right")
    empty = np.setdiff1d(np.flatnonzero(counts), cell)
    each = [share_out(np.ones(k), int(counts[c])) for c, k in enumerate(np.bincount(cell)) if k]
    value = np.concatenate([known, values[empty]]).astype(np.float32)
    rows = np.concatenate([*each, counts[empty]]).astype(np.int64)
    found, group = np.unique(value[rows > 0], return_inverse=True)
    return Column(found, np.bincount(group, rows[rows > 0]).astype(np.int64), False)


def filled(columns: Sequence[Column], own: Table) -> tuple[Column, ...]:
    """Return columns in which own rows' values next to points stand in their place."""
    return tuple(_next_to(c, x) if c.points else c for c, x in zip(columns, own.X.T, strict=True))


def _next_to(column: Column, own: Floats) -> Column:
    at = column.values.astype(np.float64)
    found = of_own(column.values, column.counts, (at[:-1] + at[1:]) / 2, own)
    return replace(found, reliability=column.reliability)


def unknown(feature: Feature, n: int, own: Floats) -> Column:
    """Return n values of an uncounted feature: own rows', else categories, or the lowest."""
    values, times = np.unique(own[np.isfinite(own)], return_counts=True)
    if not len(values):
        values = np.arange(max(len(feature.categories), 1), dtype=np.float32)
        times = np.ones(len(values), dtype=np.int64)
        if not feature.categories and feature.low is not None:
            values[0] = feature.low
    each = share_out(times.astype(np.float64), n)
    return Column(values[each > 0], each[each > 0], False, 0.0)


def shortest(low: NDArray[np.float64], high: NDArray[np.float64]) -> Floats:
    """Return the number with the fewest decimal places that is at least low and below high.

    Of several, the middle one; float32, shape (k,).
    """
    out = (low + high) / 2
    for places in range(7, -1, -1):
        first, last = np.ceil(low * 10.0**places), np.ceil(high * 10.0**places) - 1
        out = np.where(first <= last, np.floor((first + last) / 2) / 10.0**places, out)
    return out.astype(np.float32)


def together(parts: Sequence[Column]) -> Column:
    values, group = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, group, np.concatenate([p.counts for p in parts]))
    told = reliability(parts)
    exact = all(p.exact for p in parts)
    return Column(values, counts, exact, told, any(p.points for p in parts))


def reliability(columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns."""
    return float(np.mean([c.reliability for c in columns]))


def fullest(columns: Sequence[Column]) -> int:
    """Return how many rows there are at least."""
    return max((c.present for c in columns), default=0)
