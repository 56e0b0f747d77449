"""Gaussian noise on sums over sampled rows, composed by dp-accounting.

The privacy loss distributions (Koskela et al. 2020, Doroshenko et al. 2022) are discretised so that
every loss is rounded up. Used by the defense `dp-sgd`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from fedtrees.core.errors import UsageError

_GRID = 1e-3  # grid of the losses, in nats; losses are rounded up


def sampled_epsilon(
    noise: Iterable[tuple[float, float, int]], pure: Mapping[float, int], delta: float
) -> float:
    """Return the epsilon of releases together, for one row added or removed.

    Parameters
    ----------
    noise : iterable of (float, float, int)
        Sensitivity divided by noise scale, probability that a row takes part, number of releases.
    pure : mapping of float to int
        Number of releases for each pure epsilon.
    delta : float
        In (0, 1).

    Returns
    -------
    epsilon : float
        In nats. Infinite if a release has no noise.

    Raises
    ------
    UsageError
        If dp-accounting is not installed.
    """
    losses = _library()
    total, n_by_release = losses.identity(_GRID), Counter[tuple[float, float]]()
    for mu, rate, count in noise:
        n_by_release[mu, rate] += count
    for (mu, rate), count in n_by_release.items():
        if math.isinf(mu):
            return math.inf
        total = total.compose(_drawn(mu, rate).self_compose(count))
    for epsilon, count in pure.items():
        bound = losses.common.DifferentialPrivacyParameters(epsilon)
        total = total.compose(losses.from_privacy_parameters(bound, _GRID).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


@cache
def multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise multiplier whose steps together satisfy the budget, rounded up.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all steps, epsilon in nats.
    rate : float
        Probability that a row takes part in a step.
    steps : int
        Number of steps.

    Returns
    -------
    multiplier : float
        Noise scale divided by the bound on the norm of a row. It is at most 0.1 % too large.

    Raises
    ------
    UsageError
        If no multiplier up to a million is sufficient, or if dp-accounting is not installed.
    """
    low, high = 0.0, 1.0
    # Bracket the multiplier by powers of 4, then bisect.
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
