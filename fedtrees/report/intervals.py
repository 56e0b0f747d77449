"""A mean over seeds with its 95% bootstrap interval, as the figures want it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Coverage of intervals.
LEVEL = 0.95
_Z = 1.96  # of a standard normal, 95% within
#: Resamples behind an interval: its ends then move by about 2% of its length between runs.
_RESAMPLES = 4000
# Fixed, so that the same values always give the same interval.
_SEED = 20240817


@dataclass(frozen=True)
class Estimate:
    """Mean over ``n`` seeds and its interval; NaN where there is none (n < 2: no interval)."""

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0

    @property
    def known(self) -> bool:
        """Whether at least one seed gave a number."""
        return self.n > 0


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of the finite values, NaN where there is none."""
    known = [v for v in values if math.isfinite(v)]
    return math.fsum(known) / len(known) if known else math.nan


def finite(value: float, otherwise: float = -math.inf) -> float:
    """Return a number, something else where it is none."""
    return value if math.isfinite(value) else otherwise


def estimate(values: Iterable[float], errors: Iterable[float] = ()) -> Estimate:
    """Return mean and 95% interval of the finite values; their order does not matter.

    A percentile bootstrap interval (Efron and Tibshirani 1993, Sec. 13.3). Those of a handful of
    seeds are too short (for 5 seeds about 83% instead of 95% under normality); `n` is therefore
    always shown beside them.

    `errors`: Standard errors of the values, where they are of samples: the interval is as much
    wider, and there is one for a single value.
    """
    found = _estimate(tuple(sorted(float(v) for v in values if math.isfinite(v))))
    more = sampling_half(errors)
    if not more or not found.known:
        return found
    low, high = (e if math.isfinite(e) else found.mean for e in (found.low, found.high))
    return Estimate(
        found.mean,
        found.mean - math.hypot(found.mean - low, more),
        found.mean + math.hypot(high - found.mean, more),
        found.n,
    )


def t_estimate(values: Iterable[float], errors: Iterable[float] = ()) -> Estimate:
    """Return the mean of the finite values with its 95% t interval; below two without one.

    A bootstrap interval of a handful of seeds is too short to call a difference clear.

    `errors`: Standard errors of the values, where they are of samples: the interval is as much
    wider, and there is one for a single value.
    """
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return Estimate()
    mean, more = math.fsum(known) / len(known), sampling_half(errors)
    half = _t_upper(known) - mean if len(known) > 1 else 0.0
    if len(known) < 2 and not more:
        return Estimate(mean, n=1)
    half = math.hypot(half, more)
    return Estimate(mean, mean - half, mean + half, len(known))


def sampling_half(errors: Iterable[float]) -> float:
    """Return half of the 95% interval of a mean of values with such standard errors."""
    known = [e for e in errors if math.isfinite(e)]
    return _Z * math.hypot(*known) / len(known) if known else 0.0


@lru_cache(maxsize=65536)  # the same seeds stand behind many figures of a report
def _estimate(values: tuple[float, ...]) -> Estimate:
    if not values:
        return Estimate()
    known = np.array(values, dtype=np.float64)
    mean = float(known.mean())
    if len(known) == 1:
        return Estimate(mean, n=1)
    rng = np.random.default_rng(_SEED)
    means = known[rng.integers(0, len(known), (_RESAMPLES, len(known)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(min(low, mean)), float(max(high, mean)), len(known))


def _t_upper(values: Sequence[float]) -> float:
    """Return the upper end of Student's t interval of a mean over two seeds or more.

    With a handful of seeds it is wider than the bootstrap interval, as it should be where something
    is to be ruled out.
    """
    from scipy.special import stdtrit

    n = len(values)
    given = np.asarray(values, dtype=np.float64)
    half = stdtrit(n - 1, (1 + LEVEL) / 2) * given.std(ddof=1) / np.sqrt(n)
    return float(given.mean() + half)
