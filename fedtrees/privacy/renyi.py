"""Rényi differential privacy of noisy releases, and the (epsilon, delta) that it comes to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, check_share
from fedtrees.core.transcript import BudgetEvent
from fedtrees.privacy.accounting import compose_pure, pure_epsilon

#: Orders alpha that are tried; what is between them costs little.
ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(12, 65), 2.0 ** np.arange(7, 15)])


def rdp(event: BudgetEvent, orders: NDArray[np.float64] = ORDERS) -> NDArray[np.float64]:
    """Return the Rényi divergence that a release is bounded by, in nats, at every order.

    ``laplace`` is Mironov (2017), table II; of a vector, its l1 is taken to be in one number, which
    is the worst. ``geometric`` is summed exactly. ``gaussian`` and ``discrete-gaussian`` are
    ``alpha l2^2 / (2 scale^2)`` (Canonne, Kamath and Steinke 2020, theorem 4). What is known to be
    purely private and no more costs what randomised response does, which is the worst of these.

    Parameters
    ----------
    event : BudgetEvent
    orders : float array, shape (k,)
        Above 1.
    """
    if event.mechanism in ("gaussian", "discrete-gaussian"):
        one = orders * event.l2**2 / (2 * event.scale**2)
    elif event.mechanism == "laplace":
        one = _laplace(event.l1 / event.scale, orders)
    elif event.mechanism == "geometric":
        one = _geometric(event.l1, event.scale, orders)
    else:
        one = _pure(pure_epsilon(event) / event.count, orders)
    return event.count * one


def renyi_epsilon(events: Iterable[BudgetEvent], delta: float) -> float:
    """Return the epsilon, in nats, at which releases together are (epsilon, delta)-DP.

    The least over all orders (Canonne, Kamath and Steinke 2020, proposition 12), and of the pure
    composition where that is less. Releases by one party add up, parties hold disjoint rows.

    Parameters
    ----------
    events : iterable of BudgetEvent
    delta : float
        Between 0 and 1.

    Raises
    ------
    UsageError
        If delta is no such number.
    """
    check_share("delta", delta)
    by_party: dict[str, list[BudgetEvent]] = defaultdict(list)
    for event in events:
        by_party[event.party].append(event)
    return max((_epsilon(own, delta) for own in by_party.values()), default=0.0)


def _epsilon(events: list[BudgetEvent], delta: float) -> float:
    divergence = np.sum([rdp(event) for event in events], axis=0)
    a = ORDERS
    found = divergence + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return min(max(float(found.min()), 0.0), compose_pure(events))


def noise_multiplier(epsilon: float, delta: float, times: float) -> float:
    """Return the scale, over l2, of Gaussian noise in so many releases that cost (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        Of all releases together.
    times : float
        How many there are.

    Raises
    ------
    UsageError
        If no scale up to a million is proven to be enough.
    """
    low, high = 1e-6, 1e6
    least = _epsilon([BudgetEvent("", "gaussian", 0.0, high, "", l2=math.sqrt(times))], delta)
    if least > epsilon:
        raise UsageError(
            f"epsilon={epsilon:g}: {times:g} releases with noise of a million times their "
            f"sensitivity are still ({least:.3g}, {delta:g})-DP; give a larger epsilon or delta"
        )
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        event = BudgetEvent("", "gaussian", 0.0, middle, "", l2=math.sqrt(times))
        low, high = (middle, high) if _epsilon([event], delta) > epsilon else (low, middle)
    return high


def _laplace(shift: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    a = orders
    both = np.logaddexp(
        np.log(a / (2 * a - 1)) + (a - 1) * shift, np.log((a - 1) / (2 * a - 1)) - a * shift
    )
    return np.asarray(both / (a - 1))


def _geometric(steps: float, scale: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum ``P(k)^alpha P(k - steps)^(1 - alpha)`` over the whole numbers k."""
    if steps != int(steps):
        return np.full(len(orders), math.inf)
    e, a = 1 / scale, orders
    below = e * steps * (a - 1) - math.log(-math.expm1(-e))
    above = -e * steps * a - math.log(-math.expm1(-e))
    total = np.logaddexp(below, above)
    if steps > 1:
        r = e * (2 * a - 1)  # a geometric series of what lies between
        inside = -r + np.log(-np.expm1(-r * (steps - 1))) - np.log(-np.expm1(-r))
        total = np.logaddexp(total, e * steps * (a - 1) + inside)
    constant = math.log(math.tanh(e / 2))
    return np.asarray((total + constant) / (a - 1))


def _pure(epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence of randomised response (Mironov 2017, table II)."""
    if math.isinf(epsilon):
        return np.full(len(orders), math.inf)
    a, p = orders, -math.log1p(math.exp(-epsilon))  # of the truth; of the lie: p - epsilon
    both = np.logaddexp(
        a * p + (1 - a) * (p - epsilon), a * (p - epsilon) + (1 - a) * p
    )  # fmt: skip
    return np.asarray(both / (a - 1))
