"""The accountant: it composes the privacy loss of noisy releases, against each adversary.

A defense or protocol enters each noisy release into a ledger (`BudgetEvent`). This module composes
the ledger into an epsilon. There are two neighbouring relations: one row is added or removed, or
one row is replaced. The result also depends on the adversary, if clients share the noise: each
client knows its share of the noise, and colluding clients know several shares, so that less noise
protects the rows of the remaining clients (`epsilon_by_adversary`). A mechanism that the accountant
does not know costs an infinite epsilon.

`node_information` is a separate measure. It bounds the information about a label that membership in
a node reveals (Takahashi et al. 2023, Corollary 1).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, rel_entr

from fedtrees.core.channel import Floats
from fedtrees.core.errors import check_share
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP, Structural
from fedtrees.core.messages import Message
from fedtrees.core.transcript import BudgetEvent, Transcript
from fedtrees.privacy.gaussian_dp import delta_of, least_epsilon, sampled_epsilon, tail
from fedtrees.privacy.mechanisms import count_losses, pure_loss

_GAUSSIAN = ("gaussian", "discrete-gaussian")
#: Smallest scale, in grid steps, from which on `gaussian_mu` replaces discrete Gaussian noise by
#: continuous Gaussian noise that is rounded at random. Below it, epsilon is infinite.
_MIN_DISCRETE_SCALE = 8.0
#: Standard deviation, in grid steps, of this random rounding.
_ROUNDING_SCALE = 2.0
#: Largest number of outcomes of a composed loss distribution. If a composition would have more,
#: both distributions are first coarsened to `_COARSE_OUTCOMES` outcomes.
_MAX_OUTCOMES, _COARSE_OUTCOMES = 1 << 18, 1 << 9

DP = TypeVar("DP", PureDP, ApproximateDP)


@dataclass(frozen=True)
class AdversaryEpsilon:
    """Privacy loss of one row against one adversary in a run.

    Attributes
    ----------
    adversary : str
        ``outsider`` (a recipient of the released model), ``1 client``, ``2 clients``, ...
        (colluding clients, which know their shares of the noise, and the server that opens the
        sums), or the role of a trusted party.
    epsilon : float
        In nats, for one row added or removed.
    replaced : float
        In nats, for one row replaced by another. nan if it is not computed.
    """

    adversary: str
    epsilon: float
    replaced: float


def compose_releases(
    events: Iterable[BudgetEvent],
    delta: float = 0.0,
    *,
    colluders: int | None = None,
    replaced: bool = False,
) -> float:
    """Compose the releases of all parties into one epsilon, in nats.

    A row is in the releases of one party only, because parties have disjoint rows. The result is
    therefore the largest epsilon of any party (parallel composition, Dwork et al. 2006).

    Without a delta, the epsilons of the releases of one party add up. This holds although each
    release can depend on the earlier ones (adaptive composition). For example, the gradients of a
    tree depend on the trees before it, which were computed from earlier releases.

    With a delta, the composition depends on the mechanism:

    - Gaussian noise composes exactly (`fedtrees.privacy.gaussian_dp`).
    - Shared discrete Laplace noise on counts composes by its privacy loss distribution
      (`fedtrees.privacy.mechanisms`).
    - Any other mechanism with a pure epsilon composes like randomised response, which is the worst
      mechanism with this epsilon (Kairouz, Oh and Viswanath 2015).
    - If a release with Gaussian noise samples its rows, dp-accounting composes all releases.

    Parameters
    ----------
    events : iterable of BudgetEvent
    delta : float
        0: the sum of pure epsilons, which is infinite if there is Gaussian noise. Otherwise below
        1.
    colluders : int, optional
        Number of colluding clients, each of which knows its share of the noise. None: as many as
        the noise is calibrated for.
    replaced : bool
        Whether neighbours differ in one replaced row. Twice the sensitivity is then charged.

    Returns
    -------
    epsilon : float
        The releases together are (epsilon, delta)-DP for one row. 0 if there are no releases.

    Raises
    ------
    UsageError
        If delta is not in [0, 1), or if a release samples its rows and dp-accounting is missing.
    """
    if delta != 0:
        check_share("delta", delta)
    by_party: dict[str, list[BudgetEvent]] = defaultdict(list)
    for event in events:
        by_party[event.party].append(_for_replaced_row(event) if replaced else event)
    # The epsilon does not depend on the name of the party, so that parties with equal releases are
    # composed once.
    unnamed = {
        tuple(replace(e, party="") for e in releases): None for releases in by_party.values()
    }
    return max((_of_party(releases, delta, colluders) for releases in unnamed), default=0.0)


def for_each_party(
    everyone: Iterable[BudgetEvent], single: Sequence[BudgetEvent]
) -> list[BudgetEvent]:
    """Return the events of each party, with those that concern the rows of all parties.

    Parameters
    ----------
    everyone : iterable of BudgetEvent
        Releases of sums over the rows of all parties.
    single : sequence of BudgetEvent
        Releases that concern the rows of the party that entered them.
    """
    parties = sorted({e.party for e in single}) or [""]
    shared = [replace(e, party=party) for e in everyone for party in parties]
    return [*shared, *single]


def epsilon_by_adversary(
    events: Sequence[BudgetEvent], delta: float = 0.0
) -> tuple[AdversaryEpsilon, ...]:
    """Return the privacy loss of one row against each adversary.

    The epsilon against colluding clients also holds against a coalition of the server and these
    clients, because every sum that the server opens contains the noise shares of at least as many
    clients as the ledger states (`BudgetEvent.shares`).

    Parameters
    ----------
    events : sequence of BudgetEvent
    delta : float
        As in `compose_releases`.

    Returns
    -------
    tuple of AdversaryEpsilon
        The outsider, then growing coalitions of clients if clients share noise, then the roles that
        must be trusted, with an infinite epsilon.
    """
    clients = max((e.shares for e in events), default=0)
    rows = [_against("outsider", 0, events, delta)]
    for c in range(1, clients):
        rows.append(_against(f"{c} client{'s' * (c > 1)}", c, events, delta))
    roles = {role for e in events for role in e.trusted.split("+")} - {"", "clients"}
    return (*rows, *(AdversaryEpsilon(role, math.inf, math.inf) for role in sorted(roles)))


def _against(
    adversary: str, colluders: int, events: Sequence[BudgetEvent], delta: float
) -> AdversaryEpsilon:
    epsilon = compose_releases(events, delta, colluders=colluders)
    return AdversaryEpsilon(adversary, epsilon, _epsilon_of_replacement(events, delta, colluders))


def _epsilon_of_replacement(
    events: Sequence[BudgetEvent], delta: float, colluders: int | None
) -> float:
    """Return the epsilon for a replaced row. nan if rows are sampled: no bound is known then."""
    if any(e.rate < 1 for e in events):
        return math.nan
    return compose_releases(events, delta, colluders=colluders, replaced=True)


def with_adversaries(guarantee: DP, events: Sequence[BudgetEvent]) -> DP:
    """Return a guarantee with its colluders, and its epsilon for other adversaries and relations.

    Parameters
    ----------
    guarantee : PureDP or ApproximateDP
        Its epsilon is that of `compose_releases` at the number of colluders that the noise is
        calibrated for.
    events : sequence of BudgetEvent
        The releases that it is composed of.
    """
    if math.isinf(guarantee.epsilon) or not events:
        return guarantee
    terms: dict[str, Any] = {}
    delta = 0.0
    if isinstance(guarantee, ApproximateDP):  # a pure epsilon is exactly twice as much
        delta = guarantee.delta
        twice = _epsilon_of_replacement(events, delta, None)
        terms["replaced"] = 0.0 if math.isnan(twice) else twice
    clients = max(e.shares for e in events)
    if clients >= 2:
        terms["colluders"] = min(e.shares - e.calibrated for e in events if e.shares)
        outsider = compose_releases(events, delta, colluders=0)
        coalition = compose_releases(events, delta, colluders=clients - 1)
        terms["outsider"] = outsider if outsider < guarantee.epsilon else 0.0
        terms["coalition"] = coalition if coalition > guarantee.epsilon else 0.0
    return replace(guarantee, **terms)


def _for_replaced_row(event: BudgetEvent) -> BudgetEvent:
    """Return the event with the sensitivity to a replaced row: one is removed, another is added."""
    if _counts_with_shares(event):  # the two rows change different counts, each by 1
        return replace(event, count=2 * event.count)
    return replace(event, l1=2 * event.l1, l2=2 * event.l2)


@lru_cache(256)
def _of_party(events: tuple[BudgetEvent, ...], delta: float, colluders: int | None) -> float:
    """Return the composed epsilon of the releases of one party.

    The results are cached, because a bench states the epsilon of a training with each of its
    attacks, and a composition of many releases takes up to a second.
    """
    # An adversary that knows all shares knows the noise.
    if any(_unknown_share_ratio(e, colluders) <= 0 for e in events):
        return math.inf
    gaussian = [e for e in events if e.mechanism in _GAUSSIAN]
    pure = [e for e in events if e.mechanism not in _GAUSSIAN]
    pure_sum = sum(e.count * pure_epsilon(e, colluders) for e in pure)
    if delta == 0 or math.isinf(pure_sum):
        return math.inf if gaussian else pure_sum
    counts = [e for e in pure if _counts_with_shares(e)]
    n_by_epsilon = Counter[float]()
    for e in pure:
        if not _counts_with_shares(e):
            n_by_epsilon[pure_epsilon(e, colluders)] += e.count
    # dp-accounting composes subsampled Gaussian noise. Counts enter it by their pure epsilon.
    if any(e.rate < 1 for e in gaussian):
        for e in counts:
            n_by_epsilon[pure_epsilon(e, colluders)] += e.count
        noise = [(gaussian_mu(e, colluders), e.rate, e.count) for e in gaussian]
        return sampled_epsilon(noise, n_by_epsilon, delta)
    mu = math.sqrt(sum(e.count * gaussian_mu(e, colluders) ** 2 for e in gaussian))
    if math.isinf(mu):
        return math.inf
    # Gaussian noise is not discretised: `delta_of` is exact at every outcome of the losses.
    losses, probabilities, infinite = _add_count_losses(
        *_randomised_response_losses(n_by_epsilon), counts, colluders
    )

    def delta_at(epsilon: float) -> float:
        return float(probabilities @ delta_of(epsilon - losses, mu)) + infinite

    return least_epsilon(delta_at, delta, pure_sum + tail(mu, delta))


def _counts_with_shares(event: BudgetEvent) -> bool:
    """Return whether an event is about counts with shared noise that a row changes by 1."""
    return event.mechanism == "geometric" and event.shares > 0 and event.l1 == 1


def _unknown_share_ratio(event: BudgetEvent, colluders: int | None) -> float:
    """Return the ratio of unknown noise shares to those that the noise is calibrated for."""
    if colluders is None or not event.shares:
        return 1.0
    return (event.shares - colluders) / event.calibrated


def _randomised_response_losses(n_by_epsilon: Mapping[float, int]) -> tuple[Floats, Floats]:
    """Return the privacy losses of randomised responses, in nats, and their probabilities.

    `n_by_epsilon` contains the number of responses by their epsilon.
    """
    losses, probabilities = np.zeros(1), np.ones(1)
    if n_by_epsilon:  # importing scipy.stats takes half a second
        from scipy.stats import binom  # exact to the last digit: the result is an upper bound
    for epsilon, count in n_by_epsilon.items():
        k = np.arange(count + 1)
        loss = np.asarray((2 * k - count) * epsilon, dtype=np.float64)
        probability = np.asarray(binom.pmf(k, count, expit(epsilon)), dtype=np.float64)
        losses, probabilities = _convolve(losses, probabilities, loss, probability)
    return losses, probabilities


def _add_count_losses(
    losses: Floats, probabilities: Floats, counts: Sequence[BudgetEvent], colluders: int | None
) -> tuple[Floats, Floats, float]:
    """Add the losses of counts, and return the probability of an infinite loss."""
    counts_by_noise = Counter[tuple[float, float]]()
    for e in counts:
        counts_by_noise[e.scale, _unknown_share_ratio(e, colluders)] += e.count
    infinite = 0.0
    for (scale, draws), count in counts_by_noise.items():
        count_loss, probability, infinite_here = count_losses(scale, draws, count)
        losses, probabilities = _convolve(losses, probabilities, count_loss, probability)
        infinite += infinite_here
    return losses, probabilities, infinite


def _convolve(a: Floats, p: Floats, b: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Return the summed losses of two independent releases, and their probabilities.

    The first release has the losses a with the probabilities p, the second one b with q.
    """
    if len(a) * len(b) > _MAX_OUTCOMES:
        a, p = _rounded_up(a, p)
        b, q = _rounded_up(b, q)
    return np.add.outer(a, b).ravel(), np.multiply.outer(p, q).ravel()


def _rounded_up(losses: Floats, probabilities: Floats) -> tuple[Floats, Floats]:
    """Coarsen a loss distribution, rounding every loss up.

    The grid covers ten standard deviations on either side of the mean. Losses above it are charged
    as the largest loss.
    """
    if len(losses) == 1:
        return losses, probabilities
    mean = float(probabilities @ losses)
    reach = 10 * math.sqrt(float(probabilities @ (losses - mean) ** 2))
    step = max(2 * reach / _COARSE_OUTCOMES, 1e-300)
    up = np.ceil(np.maximum(losses, mean - reach) / step) * step
    grid, where = np.unique(np.where(up > mean + reach, losses.max(), up), return_inverse=True)
    return grid, np.bincount(where, probabilities).astype(np.float64)


def pure_epsilon(event: BudgetEvent, colluders: int | None = None) -> float:
    """Return the pure epsilon of each release of an event, in nats.

    Parameters
    ----------
    event : BudgetEvent
    colluders : int, optional
        As in `compose_releases`.

    Returns
    -------
    epsilon : float
        Infinite if the mechanism has no pure epsilon or is unknown, or if all noise shares are
        known.
    """
    draws = _unknown_share_ratio(event, colluders)
    if not event.scale > 0 or draws <= 0:
        return math.inf
    if event.mechanism == "geometric":
        return event.l1 * (1 / event.scale if draws == 1 else pure_loss(event.scale, draws))
    if event.mechanism in ("laplace", "exponential", "randomised-response"):
        return event.l1 / event.scale if draws >= 1 else math.inf
    if event.mechanism == "truncated-laplace":
        # Noise 0 is twice as likely as in the two-sided geometric distribution, for each number
        # that a row changes by 1.
        return event.l1 * (1 / event.scale + math.log(2))
    return math.inf


def gaussian_mu(event: BudgetEvent, colluders: int | None = None) -> float:
    """Return the mu of each of an event's releases with Gaussian noise (`gaussian_dp`).

    Discrete Gaussian noise of scale s on integers is distributed like continuous Gaussian noise of
    variance ``s^2 - 4`` that is then rounded at random: y is rounded to the integer k with a
    probability proportional to ``exp(-(k - y)^2 / 8)``. Rounding is post-processing, so that the
    discrete noise has at most the privacy loss of the continuous noise.

    The two distributions are not exactly equal, because the normalising constant of the rounding,
    ``sum_k exp(-(k - y)^2 / 8)``, depends on y. It varies by a factor of less than
    ``1 + 4 exp(-8 pi^2)`` (Poisson summation), which is 1 + 2e-34. The error of the privacy loss is
    therefore below 1e-15 even for 10^18 released numbers.

    Parameters
    ----------
    event : BudgetEvent
    colluders : int, optional
        As in `compose_releases`. The remaining shares are discrete Gaussians of at least 8 grid
        steps, whose sum is a discrete Gaussian to a double's precision.
    """
    variance = event.scale**2 * max(_unknown_share_ratio(event, colluders), 0.0)
    if event.mechanism == "discrete-gaussian":
        is_wide = variance >= _MIN_DISCRETE_SCALE**2
        variance = variance - _ROUNDING_SCALE**2 if is_wide else 0.0
    return event.l2 / math.sqrt(variance) if variance > 0 else math.inf


def spent_on_cuts(kind: type[Message], transcript: Transcript) -> Guarantee:
    """Return the privacy loss of the noisy summaries of one type, as pure DP of the cut points.

    If no such summary was sent, no private data entered the cut points.

    Parameters
    ----------
    kind : type of Message
        Type of the summaries.
    transcript : Transcript
    """
    events = [e for e in transcript.events if e.what == kind.__name__]
    if not events:
        return Structural()
    spent = PureDP(compose_releases(events), unit="cuts", trusted=trusted_with(events))
    return with_adversaries(spent, events)


def trusted_with(events: Iterable[BudgetEvent], *roles: str) -> tuple[str, ...]:
    """Return the roles that releases and a protocol rely on for their noise."""
    return tuple(sorted({*roles, *(role for e in events for role in e.trusted.split("+"))} - {""}))


def histogram_sensitivity(n_sums: int, gradient_bound: float, hessian_bound: float) -> float:
    """Return the L1 sensitivity of histograms to adding or removing a row.

    A row is in one node of each level and in one bin of every feature, so that neither the number
    of bins nor that of nodes matters.

    Parameters
    ----------
    n_sums : int
        Number of pairs of a gradient sum and a hessian sum that contain a row. For the histograms
        of one level this is the number d of features. For a tree with L levels it is ``L d + 1``,
        where 1 is the total of the root.
    gradient_bound, hessian_bound : float
        Bounds on the absolute gradient and hessian of one row.
    """
    return n_sums * (gradient_bound + hessian_bound)


def node_information(counts: NDArray[Any], totals: NDArray[Any]) -> NDArray[np.float64]:
    """Bound the mutual information of a row's label and its membership in a node.

    The bound is the larger one of two Kullback-Leibler divergences from the label distribution of
    all rows: that of the rows in the node, and that of the rows outside.

    Parameters
    ----------
    counts : int array, shape (..., K)
        Number of rows of each class in the nodes.
    totals : int array, shape (K,)
        Number of all training rows of each class.

    Returns
    -------
    bound : float64 array, shape (...)
        In nats. A node or complement without rows has divergence 0.
    """
    prior = totals / totals.sum()
    largest = np.zeros(counts.shape[:-1])
    for rows in (counts, totals - counts):
        n = rows.sum(axis=-1, keepdims=True)
        shares = rows / np.maximum(n, 1)
        divergence = np.zeros(largest.shape)
        for k, share in enumerate(prior):  # in this order, so that rounding is the same everywhere
            divergence += rel_entr(shares[..., k], share)
        np.maximum(largest, np.where(n[..., 0] > 0, divergence, 0.0), out=largest)
    return largest
