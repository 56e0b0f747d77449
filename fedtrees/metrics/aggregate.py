"""Means over seeds with bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtrees.core.errors import DataError

#: Resamples behind an interval: its ends then move by about 2% of its length between runs.
RESAMPLES = 4000
# Fixed, so that the same values always give the same interval.
_SEED = 20240817


@dataclass(frozen=True)
class Interval:
    """A mean over seeds."""

    mean: float | None  # None if no value is defined
    # low, high: ends of the percentile bootstrap interval (Efron and Tibshirani 1993, Sec. 13.3).
    # None with fewer than two values.
    low: float | None
    high: float | None
    n: int  # number of values that entered
    missing: int = 0  # number of undefined values (None or NaN) that did not


def mean_interval(
    values: Sequence[float | None], *, level: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean over seeds and its bootstrap interval.

    Raises `DataError`: `level` outside (0, 1).

    `values`: One per seed; undefined values are counted and left out.
    `level`: Coverage, in (0, 1).

    Notes
    -----
    Percentile intervals of a handful of seeds are too short (for 5 seeds about 83% instead of
    95% under normality); `n` is therefore always shown beside them.
    """
    if not 0 < level < 1:
        raise DataError(f"level={level}: must lie between 0 and 1")
    known = np.array([v for v in values if v is not None and not np.isnan(v)], dtype=np.float64)
    missing = len(values) - len(known)
    if len(known) == 0:
        return Interval(None, None, None, 0, missing)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, None, None, 1, missing)
    rng = np.random.default_rng(_SEED)
    means = known[rng.integers(0, len(known), (resamples, len(known)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(min(low, mean)), float(max(high, mean)), len(known), missing)


def t_upper(values: Sequence[float], *, level: float = 0.95) -> float:
    """Return the upper end of Student's t interval of the mean over seeds.

    With a handful of seeds it is wider than the bootstrap interval, as it should be where something
    is to be ruled out.

    Raises `DataError`: `level` outside (0, 1).

    `values`: One per seed, all defined.
    `level`: Coverage of the two-sided interval, in (0, 1).

    Returns: Infinite for fewer than two values.
    """
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise DataError(f"level={level}: must lie between 0 and 1")
    n = len(values)
    if n < 2:
        return float("inf")
    given = np.asarray(values, dtype=np.float64)
    half = stdtrit(n - 1, (1 + level) / 2) * given.std(ddof=1) / np.sqrt(n)
    return float(given.mean() + half)
