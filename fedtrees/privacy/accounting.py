"""Composition of noisy releases into one epsilon. What is not known costs infinity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from fedtrees.core.guarantee import Guarantee, PureDP, Structural
from fedtrees.core.messages import Message
from fedtrees.core.transcript import BudgetEvent, Transcript


def compose_pure(events: Iterable[BudgetEvent]) -> float:
    """Return the pure epsilon, in nats, that a sequence of releases costs one row.

    Releases by one party add up (adaptive sequential composition, Dwork et al. 2006); parties
    hold disjoint rows, so the largest party counts (parallel composition). Gaussian noise has no
    finite pure epsilon (`fedtrees.privacy.renyi`).

    Parameters
    ----------
    events : iterable of BudgetEvent
    """
    by_party: dict[str, float] = defaultdict(float)
    for event in events:
        by_party[event.party] += pure_epsilon(event)
    return max(by_party.values(), default=0.0)


def pure_epsilon(event: BudgetEvent) -> float:
    """Return the pure epsilon of a release, in nats."""
    if not event.scale > 0:
        return math.inf
    if event.mechanism in ("laplace", "geometric", "exponential"):
        return event.count * event.l1 / event.scale
    if event.mechanism == "truncated-laplace":
        # Of each number that a row moves by 1: noise 1 is half as likely again beside noise 0.
        return event.count * event.l1 * (1 / event.scale + math.log(2))
    return math.inf


def spent_on_cuts(kind: type[Message], transcript: Transcript) -> Guarantee:
    """Return what the noisy summaries of one type cost, as pure DP of the cut points alone.

    Where none crossed nobody was asked, and nothing private went into the cut points.
    """
    events = [e for e in transcript.events if e.what == kind.__name__]
    if not events:
        return Structural()
    return PureDP(compose_pure(events), unit="cuts", trusted=trusted_with(events))


def trusted_with(events: Iterable[BudgetEvent], *others: str) -> str:
    """Name on whom noise depends, of these releases and in a protocol's own words, joined by +."""
    return "+".join(sorted({e.trusted for e in events} | {*others} - {""}))


def histogram_sensitivity(features: int, gradient_bound: float, hessian_bound: float) -> float:
    """Return the L1 sensitivity of one level's histograms to adding or removing a row.

    A row is in one node per level and in one bin of every feature, so the number of bins and
    of nodes does not matter.

    Parameters
    ----------
    features : int
        Number of features histogrammed (a node total counts as one more).
    gradient_bound, hessian_bound : float
        Bounds on one row's absolute gradient and hessian.
    """
    return features * (gradient_bound + hessian_bound)
