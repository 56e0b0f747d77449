"""Gaussian noise on sums over rows that are drawn each by itself, composed by dp-accounting.

Privacy loss distributions (Koskela et al. 2020, Doroshenko et al. 2022), which round up.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from fedtrees.core.errors import UsageError

_GRID = 1e-3  # nats; what is between is rounded up


def sampled_epsilon(
    noise: Iterable[tuple[float, float, int]], pure: Mapping[float, int], delta: float
) -> float:
    """Return the epsilon, in nats, of releases for one row added or removed, at this delta.

    Raises `UsageError` if dp-accounting is not installed.

    `noise`: Sensitivity over scale, the chance of every row to take part, how many releases.
    `pure`: How many releases there are of each pure epsilon.
    """
    losses = _library()
    total, alike = losses.identity(_GRID), Counter[tuple[float, float]]()
    for mu, rate, count in noise:
        alike[mu, rate] += count
    for (mu, rate), count in alike.items():
        if math.isinf(mu):
            return math.inf
        total = total.compose(_drawn(mu, rate).self_compose(count))
    for epsilon, count in pure.items():
        bound = losses.common.DifferentialPrivacyParameters(epsilon)
        total = total.compose(losses.from_privacy_parameters(bound, _GRID).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


@cache
def multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the scale of noise, over a row's bound, whose steps cost (epsilon, delta) together.

    `rate`: The chance of every row to take part in a step.

    Raises `UsageError` if no scale up to a million is enough, or dp-accounting is not installed.
    """
    low, high = 0.0, 1.0
    while sampled_epsilon([(1 / high, rate, steps)], {}, delta) > epsilon:
        low, high = high, 4 * high
        if high > 1e6:
            raise UsageError(
                f"epsilon={epsilon:g}, delta={delta:g}: no noise is known to be enough for {steps} "
                f"steps at a sampling rate of {rate:g}; give a larger epsilon or delta"
            )
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        enough = sampled_epsilon([(1 / middle, rate, steps)], {}, delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


@lru_cache(64)
def _drawn(mu: float, rate: float) -> Any:
    import dp_accounting

    either = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return _library().from_gaussian_mechanism(
        1 / mu,
        sampling_prob=rate,
        neighboring_relation=either,
        value_discretization_interval=_GRID,
    )


def _library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as err:
        raise UsageError(
            f"sums over drawn rows need dp-accounting, which is not installed ({err}): "
            "pip install 'fedtrees[neural]'"
        ) from err
    return privacy_loss_distribution
