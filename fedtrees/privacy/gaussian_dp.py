"""Privacy loss of Gaussian noise: on all rows in closed form, on sampled rows by dp-accounting.

Gaussian differential privacy (Dong, Roth and Su 2022): a release of L2 sensitivity D with Gaussian
noise of scale s is mu-GDP with ``mu = D / s``. Several releases, each chosen after the earlier
ones, are together exactly ``sqrt(sum of mu^2)``-GDP.

For sums over sampled rows, dp-accounting composes the privacy loss distributions (Koskela et al.
2020, Doroshenko et al. 2022). They are discretised so that every loss is rounded up. The defense
`dp-sgd` calibrates its noise with them.

The two accountants of opacus give larger bounds for the same sums (`opacus_epsilons`). They are
reported for comparison, because reports of opacus trainings state them.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from fedtrees.core.errors import INSTALL, UsageError
from fedtrees.core.transcript import BudgetEvent

#: Factor that compensates rounding errors, so that no epsilon is too small in its last digits.
_SAFE = 1 - 1e-9
_CLOSE, _TINY = 1e-12, 1e-30


def delta_of(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """Return the smallest delta at which mu-GDP is (epsilon, delta)-DP.

    Balle and Wang (2018), Theorem 5.

    Parameters
    ----------
    epsilon : float array
        In nats. It may be negative.
    mu : float
        0 or more.

    Returns
    -------
    delta : float64 array, of the shape of `epsilon`

    Examples
    --------
    >>> round(float(delta_of(1.0, 1.0)), 4)
    0.1269
    """
    e = np.asarray(epsilon, dtype=np.float64)
    if mu == 0:
        return np.asarray(-np.expm1(np.minimum(e, 0.0)))
    with np.errstate(over="ignore"):
        # log_p, log_q: probability of a loss above epsilon, with the row and without it.
        log_p, log_q = log_ndtr(mu / 2 - e / mu), log_ndtr(-mu / 2 - e / mu)
        return np.asarray(-np.exp(log_p) * np.expm1(np.minimum(e + log_q - log_p, 0.0)))


def least_epsilon(left: Callable[[float], float], delta: float, high: float) -> float:
    """Return the smallest epsilon that leaves at most `delta`, rounded up.

    Parameters
    ----------
    left : callable
        Returns the delta at an epsilon. It is decreasing.
    delta : float
        Delta of the result.
    high : float
        An epsilon that is large enough.
    """
    return _smallest_argument(lambda epsilon: left(epsilon) <= delta * _SAFE, 0.0, high)


def tail(mu: float, delta: float) -> float:
    """Return an epsilon, not the smallest, at which mu-GDP is (epsilon, delta)-DP."""
    return mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta * _SAFE))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP is (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon : float
        In nats, above 0.
    delta : float
        In (0, 1).
    """
    # The search is over 1 / mu, because `_smallest_argument` rounds up. With mu / 2 above
    # sqrt(epsilon) + 9 no delta is small enough.
    low = 1 / (2 * math.sqrt(epsilon) + 18)
    enough = _smallest_argument(
        lambda s: float(delta_of(epsilon, 1 / s)) <= delta * _SAFE**2, low, 1e12
    )
    return _SAFE / enough


def _smallest_argument(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest argument at which a condition holds, rounded up. It holds at `high`."""
    if holds(low):
        return low
    while high - low > _CLOSE * high:
        middle = math.sqrt(low * high) if low > 0 else high / 2
        if middle < _TINY:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


_GRID = 1e-3  # grid of the losses, which are rounded up, in nats


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
    losses = _accounting_library()
    total, n_by_release = losses.identity(_GRID), Counter[tuple[float, float]]()
    for mu, rate, count in noise:
        n_by_release[mu, rate] += count
    for (mu, rate), count in n_by_release.items():
        if math.isinf(mu):
            return math.inf
        total = total.compose(_sampled_gaussian_losses(mu, rate).self_compose(count))
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
def _sampled_gaussian_losses(mu: float, rate: float) -> Any:
    """Return the privacy loss distribution of one release over sampled rows."""
    import dp_accounting

    either = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return _accounting_library().from_gaussian_mechanism(
        1 / mu,
        sampling_prob=rate,
        neighboring_relation=either,
        value_discretization_interval=_GRID,
    )


def _accounting_library() -> Any:
    """Import the module of dp-accounting that composes privacy loss distributions."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as err:
        raise UsageError(
            f"sums over sampled rows need dp-accounting, which is not installed ({err}): "
            "pip install 'fedtrees[neural]'"
        ) from err
    return privacy_loss_distribution


#: A Gaussian sum and how often it was released: noise multiplier, sampling rate, steps.
Steps = tuple[float, float, int]


class OpacusEpsilons(NamedTuple):
    """Upper bounds on the epsilon of the same releases, in nats.

    Attributes
    ----------
    prv : float
        By privacy loss random variables (Gopi et al. 2021), composed with an error of at most 0.01.
    rdp : float
        By Renyi differential privacy (Mironov 2017).
    """

    prv: float
    rdp: float


def opacus_epsilons(history: Sequence[Steps], delta: float) -> OpacusEpsilons:
    """Return the epsilons of both accountants of opacus.

    Parameters
    ----------
    history : sequence of (float, float, int)
        Noise scale divided by sensitivity, sampling rate, and number of releases.
    delta : float
        In (0, 1).

    Raises
    ------
    UsageError
        If opacus is not installed.
    """
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError as err:
        raise UsageError(
            f"engine=opacus needs opacus, which is not installed ({err}): {INSTALL['opacus']}"
        ) from err
    epsilons = []
    # At a sampling rate of 1 opacus computes log(0), and a large order may be the best one.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)
        for accountant in (PRVAccountant(), RDPAccountant()):
            accountant.history = list(history)
            epsilons.append(float(accountant.get_epsilon(delta)))
    return OpacusEpsilons(*epsilons)


def epsilons_of_events(events: Iterable[BudgetEvent], delta: float) -> OpacusEpsilons:
    """Return the epsilons of the party with the largest ones, given all Gaussian sums of a run.

    Parties have disjoint rows, so that their epsilons do not add up.
    """
    by_party: Mapping[str, dict[tuple[float, float], int]] = defaultdict(lambda: defaultdict(int))
    for event in events:
        by_party[event.party][event.scale / event.l2, event.rate] += event.count
    # Parties with equal histories have equal epsilons, which are computed once.
    histories = {tuple((*key, n) for key, n in steps.items()) for steps in by_party.values()}
    epsilons = [opacus_epsilons(history, delta) for history in histories]
    return OpacusEpsilons(max(e.prv for e in epsilons), max(e.rdp for e in epsilons))
