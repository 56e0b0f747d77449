"""A mean over seeds with its 95% bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000  # the percentile interval moves by under 2% of its width from 1000 on


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
    """Return mean and 95% percentile bootstrap interval of the finite values.

    The draws are fixed: the same values give the same interval, in any order.
    """
    array = np.sort(np.array([v for v in values if math.isfinite(v)], dtype=float))
    n = len(array)
    if n == 0:
        return Estimate()
    mean = float(array.mean())
    if n == 1:
        return Estimate(mean=mean, n=1)
    rng = np.random.default_rng(0)
    means = array[rng.integers(0, n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(mean=mean, low=min(float(low), mean), high=max(float(high), mean), n=n)
