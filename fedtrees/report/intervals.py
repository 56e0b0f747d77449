"""A mean over seeds with its 95% bootstrap interval, as the figures want it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fedtrees.metrics.aggregate import mean_interval


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


def estimate(values: Iterable[float]) -> Estimate:
    """Return mean and 95% interval of the finite values; their order does not matter.

    See `fedtrees.metrics.aggregate.mean_interval`.
    """
    return _estimate(tuple(sorted(float(v) for v in values if math.isfinite(v))))


@lru_cache(maxsize=65536)  # the same seeds stand behind many figures of a report
def _estimate(values: tuple[float, ...]) -> Estimate:
    found = mean_interval(values)
    mean, low, high = (math.nan if v is None else v for v in (found.mean, found.low, found.high))
    return Estimate(mean=mean, low=low, high=high, n=found.n)
