"""Epsilon of sums over sampled rows by the accountants of opacus, for comparison.

`fedtrees.privacy.gaussian_dp` composes privacy loss distributions with dp-accounting, which
gives the smallest of the three bounds. It calibrates the noise. The accountants of opacus are
reported next to it, because reports of opacus trainings state their epsilons.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtrees.core.errors import INSTALL, UsageError
from fedtrees.core.transcript import BudgetEvent

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
