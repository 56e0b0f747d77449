"""Privacy loss of Gaussian noise: on all rows in closed form, on sampled rows by dp-accounting.

Gaussian differential privacy (Dong, Roth and Su 2022): a release of L2 sensitivity D with Gaussian
noise of scale s is mu-GDP with ``mu = D / s``. Several releases, each chosen after the earlier
ones, are together exactly ``sqrt(sum of mu^2)``-GDP.

For sums over sampled rows, dp-accounting composes the privacy loss distributions (Koskela et al.
2020, Doroshenko et al. 2022). They are discretised so that every loss is rounded up. The defense
`dp-sgd` calibrates its noise with them.

The two accountants of opacus give larger bounds for the same sums (`opacus_epsilons`). They are
reported for comparison, because reports of opacus trainings state them.

`row_bound` and `leaf_scales` calibrate Gaussian noise on the sums of gradients and hessians in
leaves, which share one budget. The protocol `dp-gbdt` uses them: its splits do not depend on the
data, so that only the sums in the leaves need noise.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


_SHARE = 0.2  # share of the budget for hessians that are not bounded by gradients


@dataclass(frozen=True)
class RowBound:
    """Joint bound on the gradients and hessians of a row in one round.

    For all rows ``|g|^2 + |h / ratio|^2 <= norm^2``.

    Attributes
    ----------
    norm : float
        In the unit of the gradient. Infinite: there is no bound.
    ratio : float
        Ratio of the noise scale of hessians to that of gradients.
    """

    norm: float
    ratio: float


def row_bound(
    norms: tuple[float, float], *, largest: float, free: float, share: float | None
) -> RowBound:
    """Return the joint bound on the gradients and hessians of a row.

    A row with the largest possible gradient has a hessian close to 0:
    ``|h|^2 <= free^2 (largest^2 - |g|^2)``. Hessians with a noise scale of `free` times that of the
    gradients therefore do not increase the sensitivity.

    Parameters
    ----------
    norms : tuple of float
        Bounds on the Euclidean norm of a row's gradients, clipped or not, and of its hessians, over
        the trees of a round.
    largest : float
        Bound on the norm of gradients that are not clipped.
    free : float
        `Objective.free`. Infinite: hessians and gradients are bounded independently.
    share : float or None
        Share of the budget that is spent on hessians. None: no share if `free` is finite, else a
        fifth.
    """
    g, h = norms
    if share is None and math.isfinite(free):
        ratio = free
    else:
        share = _SHARE if share is None else share
        # Distributes the squared mu in the ratio share to (1 - share) at the largest g and h.
        ratio = h / g * math.sqrt((1 - share) / share)
    independent_norm = math.hypot(g, h / ratio)
    if math.isinf(free):
        return RowBound(independent_norm, ratio)
    excess = max(1 / ratio**2 - 1 / free**2, 0.0)
    return RowBound(min(math.hypot(largest, h * math.sqrt(excess)), independent_norm), ratio)


def clipped_row_bound(
    norms: tuple[float, float], *, free: float, noisy: bool, clip: float | None, share: float | None
) -> RowBound:
    """Return the bound to which each client scales a row's gradients and hessians of one round.

    Parameters
    ----------
    norms, free : float
        `Objective.norms` and `Objective.free` of the loss.
    noisy : bool
        Whether noise is added. Without noise only `clip` bounds a row.
    clip : float or None
        Declared bound on the Euclidean norm of a row's gradients. None: the bound of the loss.
    share : float or None
        As in `row_bound`.
    """
    g, h = norms if noisy else (math.inf, math.inf)
    g = g if clip is None else min(g, clip)
    if math.isinf(g):
        return RowBound(math.inf, 1.0)
    return row_bound((g, h), largest=norms[0], free=free, share=share)


def leaf_scales(
    bound: RowBound, *, epsilon: float, delta: float, rounds: int
) -> tuple[float, float]:
    """Return the noise scales of the sums of gradients and of hessians in the leaves.

    A row is in one leaf of each tree of a round, so that the number of leaves does not matter.
    Splits do not matter if they do not depend on the data. Gaussian noise composes exactly, and
    every round has the same share of the squared mu.

    Parameters
    ----------
    bound : RowBound
    epsilon, delta : float
        Budget of all releases together, epsilon in nats. Infinite: no noise.
    rounds : int
        Number of rounds.

    Returns
    -------
    scales : tuple of float
        In the unit of the gradient. Zeros if there is no noise.
    """
    if math.isinf(epsilon):
        return 0.0, 0.0
    scale = bound.norm * math.sqrt(rounds) / mu_of(epsilon, delta)
    return scale, bound.ratio * scale
