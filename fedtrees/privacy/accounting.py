"""The accountant: what noisy releases together cost one row, whatever mechanisms made them.

Mechanisms enter what they release into a ledger (`BudgetEvent`), and nothing but this module says
what that comes to. Neighbours differ in one row added or removed. The unknown costs infinity.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.special import expit

from fedtrees.core.channel import Floats
from fedtrees.core.errors import check_share
from fedtrees.core.guarantee import Guarantee, PureDP, Structural
from fedtrees.core.messages import Message
from fedtrees.core.transcript import BudgetEvent, Transcript
from fedtrees.privacy.gaussian_dp import delta_of, least_epsilon, tail
from fedtrees.privacy.sampled_gaussian import sampled_epsilon

_NORMAL = ("gaussian", "discrete-gaussian")
#: Grid steps: discrete noise that is wider is Gaussian noise, that much less, rounded at random.
_WIDE, _ROUNDING = 8.0, 2.0
_EXACT, _ROUNDED = 1 << 18, 1 << 9  # outcomes that pure releases may have together


def composed(events: Iterable[BudgetEvent], delta: float = 0.0) -> float:
    """Return the epsilon, in nats, at which releases together are (epsilon, delta)-DP for one row.

    Releases by one party add up, whatever each of them was chosen by; parties hold disjoint rows,
    so the largest party counts (Dwork et al. 2006). With a delta, Gaussian noise composes exactly
    (`fedtrees.privacy.gaussian_dp`), and pure releases as randomised response does, which is the
    worst of them (Kairouz, Oh and Viswanath 2015); where a release draws its rows, dp-accounting
    composes.

    `delta`: 0: of pure epsilons the sum, infinite under Gaussian noise. Else below 1.

    Raises `UsageError` if delta is no such number, or a release draws its rows and dp-accounting is
    missing.
    """
    if delta != 0:
        check_share("delta", delta)
    by_party: dict[str, list[BudgetEvent]] = defaultdict(list)
    for event in events:
        by_party[event.party].append(event)
    return max((_of_party(own, delta) for own in by_party.values()), default=0.0)


def _of_party(events: Sequence[BudgetEvent], delta: float) -> float:
    normal = [e for e in events if e.mechanism in _NORMAL]
    others = [e for e in events if e.mechanism not in _NORMAL]
    pure = sum(e.count * pure_epsilon(e) for e in others)
    if delta == 0 or math.isinf(pure):
        return math.inf if normal else pure
    each = Counter[float]()
    for e in others:
        each[pure_epsilon(e)] += e.count
    if any(e.rate < 1 for e in normal):
        noise = [(gaussian_mu(e), e.rate, e.count) for e in normal]
        return sampled_epsilon(noise, each, delta)
    mu = math.sqrt(sum(e.count * gaussian_mu(e) ** 2 for e in normal))
    if math.isinf(mu):
        return math.inf
    losses, chances = _losses(each)
    left = lambda epsilon: float(chances @ delta_of(epsilon - losses, mu))  # noqa: E731
    return least_epsilon(left, delta, pure + tail(mu, delta))


def _losses(each: Mapping[float, int]) -> tuple[Floats, Floats]:
    """Return the privacy losses, in nats, that randomised responses have, and their chances."""
    from scipy.stats import binom  # to the last digit: what is spent is an upper bound

    losses, chances = np.zeros(1), np.ones(1)
    for epsilon, count in each.items():
        k = np.arange(count + 1)
        one = np.asarray((2 * k - count) * epsilon, dtype=np.float64)
        chance = np.asarray(binom.pmf(k, count, expit(epsilon)), dtype=np.float64)
        if len(losses) * len(one) > _EXACT:
            losses, chances = _rounded_up(losses, chances)
            one, chance = _rounded_up(one, chance)
        losses = np.add.outer(losses, one).ravel()
        chances = np.multiply.outer(chances, chance).ravel()
    return losses, chances


def _rounded_up(losses: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """Return fewer losses, none of them less: ten deviations on either side are told apart."""
    mean = float(chances @ losses)
    reach = 10 * math.sqrt(float(chances @ (losses - mean) ** 2))
    step = max(2 * reach / _ROUNDED, 1e-300)
    up = np.ceil(np.maximum(losses, mean - reach) / step) * step
    found, where = np.unique(np.where(up > mean + reach, losses.max(), up), return_inverse=True)
    return found, np.bincount(where, chances).astype(np.float64)


def pure_epsilon(event: BudgetEvent) -> float:
    """Return the pure epsilon of each of an event's releases, in nats."""
    if not event.scale > 0:
        return math.inf
    if event.mechanism in ("laplace", "geometric", "exponential", "randomised-response"):
        return event.l1 / event.scale
    if event.mechanism == "truncated-laplace":
        # Of each number that a row moves by 1: noise 1 is half as likely again beside noise 0.
        return event.l1 * (1 / event.scale + math.log(2))
    return math.inf


def gaussian_mu(event: BudgetEvent) -> float:
    """Return the mu of each of an event's releases with Gaussian noise (`gaussian_dp`).

    Discrete noise of scale s on whole numbers is continuous noise of variance ``s^2 - 4``, rounded
    at random: to k with a chance in proportion to ``exp(-(k - y)^2 / 8)``. The sums of these over k
    differ by a factor of less than ``1 + 4 exp(-8 pi^2)`` for all y (Poisson summation), so that
    less than 1e-15 is left out for 10^18 numbers.
    """
    variance = event.scale**2
    if event.mechanism == "discrete-gaussian":
        variance = variance - _ROUNDING**2 if event.scale >= _WIDE else 0.0
    return event.l2 / math.sqrt(variance) if variance > 0 else math.inf


def spent_on_cuts(kind: type[Message], transcript: Transcript) -> Guarantee:
    """Return what the noisy summaries of one type cost, as pure DP of the cut points alone.

    Where none crossed nobody was asked, and nothing private went into the cut points.
    """
    events = [e for e in transcript.events if e.what == kind.__name__]
    if not events:
        return Structural()
    return PureDP(composed(events), unit="cuts", trusted=trusted_with(events))


def trusted_with(events: Iterable[BudgetEvent], *others: str) -> str:
    """Name on whom noise depends, of these releases and in a protocol's own words, joined by +."""
    return "+".join(sorted({*others, *(e.trusted for e in events)} - {""}))


def histogram_sensitivity(features: int, gradient_bound: float, hessian_bound: float) -> float:
    """Return the L1 sensitivity of one level's histograms to adding or removing a row.

    A row is in one node per level and in one bin of every feature, so the number of bins and
    of nodes does not matter.

    `features`: Number of features histogrammed (a node total counts as one more).
    `gradient_bound, hessian_bound`: Bounds on one row's absolute gradient and hessian.
    """
    return features * (gradient_bound + hessian_bound)
