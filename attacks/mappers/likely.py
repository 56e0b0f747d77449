"""The likeliest values of a column of which bins and a few values are known, and own rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.counts import share_out

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

_PLACES = 7  # most decimal places that columns are taken to have
_MOST = 200_000  # values that a range may have; of more, own rows' alone are considered
_SINGLE = 1e-7  # relative rounding of float32
_BISECTIONS = 16


@dataclass(frozen=True)
class Known:
    """What a machine told of a column; bins are those of values up to a cut.

    `values`: float64 array, shape (k,). Some that are there.
    `cuts`: float64 array, shape (b - 1,). Ends of bins.
    `low, high`: The least and the greatest value; None: not known.
    `least`: Rows that each bin has at least.
    `midway`: bool array, shape (b - 1,). Which cuts are midway between two values next to one
    another; if all are, no bin is empty.
    `single`: int64 array. Bins that have one of `values` and no other.
    `rows`: int64 array, shape (b,). Rows of every bin; None: not known.
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
        """How far values may be off that were rounded to float32."""
        return _SINGLE * max(abs(self.low or 0.0), abs(self.high or 0.0))

    def midway_cuts(self) -> Iterator[tuple[float, float]]:
        """Yield cuts between two values, with how far away these are at most."""
        every = len(self.midway) > 0 and self.midway.all()
        gaps = np.diff(self.cuts, prepend=-np.inf, append=np.inf)
        most = np.minimum(gaps[:-1], gaps[1:]) if every else np.full(len(self.cuts), np.inf)
        for k in np.flatnonzero(self.midway).tolist():
            yield float(self.cuts[k]), float(most[k])


def likely_column(own: Doubles, n: int, known: Known, whole: bool) -> tuple[Doubles, Longs]:
    """Return values and counts that n others' rows most likely have, known ones among them.

    Rows have a value as often as own rows, some of them one near by: as many as own values are
    single (Good 1953). Known bins have their least number of rows, and a cut two values at equal
    distance with none between, likelier ones first. Of all cells the n likeliest are returned; of
    each bin as many as it has, where that is known.

    `own`: float64 array, shape (m,). Present values of own rows.
    `whole`: Whether values are categories, of which none is near another.
    """
    step = None if whole else _step(np.concatenate([own, known.values]))
    if step is None or np.ptp(own) / step > _MOST:
        if known.rows is not None:
            return _own_in_bins(own, known)
        values, times = np.unique(own, return_counts=True)
        counts = share_out(times.astype(np.float64), n)
        values = np.concatenate([values, known.values])
        counts = np.concatenate([counts, np.ones(len(known.values), np.int64)])
        return values[counts > 0], counts[counts > 0]
    ends = [known.low, known.high] if known.low is not None else [own.min(), own.max()]
    every = np.rint(np.concatenate([own, known.values, ends]) / step).astype(np.int64)
    first = int(every.min())
    rows = n * _near(every[: len(own)] - first, int(np.ptp(every)) + 1)
    values = (first + np.arange(len(rows))) * step
    if known.low is not None and known.high is not None:
        rows = _in_bins(rows, values, known)
    there = -np.expm1(-rows)
    for cut, gap in known.midway_cuts():
        _beside(there, round(2 * cut / step) - 2 * first, gap / step)
    at = np.rint(known.values / step).astype(np.int64) - first
    there[at] = 1.0
    if known.rows is None:
        counts = _likeliest(there, rows, n)
    else:
        of, counts = _bins_of(values, known), np.zeros(len(rows), np.int64)
        for b in np.flatnonzero(known.rows).tolist():
            at = np.flatnonzero(of == b)
            counts[at] = _likeliest(there[at], rows[at], int(known.rows[b]))
    values = np.round(values, _PLACES)
    return values[counts > 0], counts[counts > 0]


def _own_in_bins(own: Doubles, known: Known) -> tuple[Doubles, Longs]:
    """Return own values of each bin, as often as it has rows; of known values these alone."""
    assert known.rows is not None
    found: dict[float, int] = {}
    of_own, of_known = (_bins_of(v, known) for v in (own, known.values))
    for b in np.flatnonzero(known.rows).tolist():
        values, times = np.unique(own[of_own == b], return_counts=True)
        if b in known.single or not len(values):
            values = known.values[of_known == b]
            times = np.ones(len(values), np.int64)
        counts = share_out(times.astype(np.float64), int(known.rows[b]))
        found |= dict(zip(values.tolist(), counts.tolist(), strict=True))
    there = {v: k for v, k in sorted(found.items()) if k}
    return np.array([*there], np.float64), np.array([*there.values()], np.int64)


def _step(values: Doubles) -> float | None:
    """Return the greatest power of ten that all values are multiples of, None if there is none."""
    for places in range(_PLACES + 1):
        near = np.abs(np.round(values, places) - values)
        if (near <= _SINGLE * np.abs(values)).all():
            return float(10.0**-places)
    return None


def _near(own: Longs, size: int) -> Doubles:
    """Return the shares of a row's values: own ones, smoothed as far as these are single."""
    from scipy.signal import fftconvolve  # takes half a second to load

    counts = np.bincount(own, minlength=size).astype(np.float64)
    width = max(1.0, 0.5 * float(own.std()) * len(own) ** -0.2)
    reach = int(4 * width) + 1
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    smooth = np.maximum(fftconvolve(counts, kernel)[reach : reach + size], 0)
    single = min(0.95, float((counts == 1).sum()) / len(own))
    mixed: Doubles = (1 - single) * counts / len(own) + single * smooth / smooth.sum()
    return mixed


def _bins_of(values: Doubles, known: Known) -> NDArray[np.intp]:
    return np.asarray(np.searchsorted(known.cuts, values - known.near))


def _in_bins(rows: Doubles, values: Doubles, known: Known) -> Doubles:
    """Return expected rows with so many in every bin, and none beyond the ends."""
    near, of = known.near, _bins_of(values, known)
    assert known.low is not None
    assert known.high is not None
    beyond = (values < known.low - near) | (values > known.high + near)
    inside = np.where(beyond, 0.0, rows + np.finfo(float).eps)
    one = np.abs(values[:, None] - known.values).min(axis=1, initial=np.inf) > near
    inside[np.isin(of, known.single) & one] = 0.0
    mass = np.bincount(of, inside, len(known.cuts) + 1)
    size = np.maximum(mass, known.least)
    size = size * (rows.sum() / size.sum()) if known.rows is None else known.rows
    return np.asarray(inside * (size / np.maximum(mass, np.finfo(float).tiny))[of])


def _beside(there: Doubles, twice: int, most: float) -> None:
    """Change the probabilities of values to those given a cut midway between two neighbours.

    `twice`: Twice the place of the cut among the values. `most`: How far away these may be.
    """
    left = (twice - 1) // 2
    right = twice - left
    reach = int(min(left + 1, len(there) - right, most + 1, _MOST))
    if reach < 1:
        return
    at, across = left - np.arange(reach), right + np.arange(reach)
    none = np.cumprod(np.append(1.0, (1 - there[at]) * (1 - there[across])))[:-1]
    pairs = there[at] * there[across] * none
    if pairs.sum():
        for side in (at, across):
            there[side] = 1 - (1 - there[side]) * (1 - pairs / pairs.sum())


def _likeliest(there: Doubles, rows: Doubles, n: int) -> Longs:
    """Return how many of the n likeliest cells have each value, int64, shape (v,).

    `there`: Probability of a value. `rows`: Expected rows that have it, as of a Poisson law.
    """
    some = np.argsort(-there, kind="stable")[: 4 * n]

    def copies(least: float) -> Longs:
        from scipy.stats import poisson  # takes half a second to load

        more = np.where(rows[some] > 0, poisson.isf(least, rows[some]), 0).astype(np.int64)
        return np.maximum(more, there[some] >= least)

    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if copies(middle).sum() > n else (low, middle)
    found, rest = copies(high), np.flatnonzero(copies(max(low, 1e-12)) > copies(high))
    found[rest[: max(n - int(found.sum()), 0)]] += 1
    counts = np.zeros(len(there), np.int64)
    counts[some] = found
    return counts
