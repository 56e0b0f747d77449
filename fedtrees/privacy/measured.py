"""Lower bounds on epsilon that an audit finds, from many runs or from one.

A bound holds with the stated confidence whatever the scores are made of: bad scores lower it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_share

#: Shares of the canaries that are guessed, the surest first; the confidence is split over them.
_GUESSED = (1.0, 0.5, 0.25, 0.1)


def bound_of_runs(
    present: NDArray[np.float64],
    absent: NDArray[np.float64],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> float:
    """Return a lower bound on epsilon from scores of many runs with a row and as many without.

    Half of the runs choose a threshold; on the other half the chances of a score beyond it are
    bounded exactly (Clopper and Pearson 1934), and ``epsilon >= ln((p - delta) / q)`` (Jagielski,
    Ullman and Oprea 2020).

    Parameters
    ----------
    present, absent : float array, shape (n,), (m,)
        A score for each run, in the order in which they were made; larger where the row seems
        present.
    confidence : float
        Between 0 and 1.
    delta : float

    Returns
    -------
    float
        In nats, 0 or more.
    """
    check_share("confidence", confidence)
    (p_try, p_rest), (q_try, q_rest) = (np.array_split(s, 2) for s in (present, absent))
    best, bound = -math.inf, 0.0
    for sign in (1, -1):  # more where it is present, or where it is absent
        one, other = (p_try, q_try) if sign > 0 else (-q_try, -p_try)
        for level in np.unique(np.concatenate([one, other])):
            expected = _ratio(one >= level, other >= level, confidence, delta)
            if expected > best:
                best = expected
                first, second = (p_rest, q_rest) if sign > 0 else (-q_rest, -p_rest)
                bound = _ratio(first >= level, second >= level, confidence, delta)
    return max(bound, 0.0)


def _ratio(
    often: NDArray[np.bool_], seldom: NDArray[np.bool_], confidence: float, delta: float
) -> float:
    """Bound the log of the ratio of two chances, each at half of what is left to go wrong."""
    from scipy.special import betaincinv

    k, n = int(often.sum()), len(often)
    j, m = int(seldom.sum()), len(seldom)
    risk = (1 - confidence) / 2
    low = float(betaincinv(k, n - k + 1, risk)) if k else 0.0
    high = float(betaincinv(j + 1, m - j, 1 - risk)) if j < m else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf


def bound_of_one_run(
    scores: NDArray[np.float64],
    present: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> float:
    """Return a lower bound on epsilon from one run with many rows that are there by a coin flip.

    Steinke, Nasr and Jagielski (2023), theorem 5.2: of r guesses, more are right than of a
    binomial of r and ``e^epsilon / (1 + e^epsilon)`` only by chance, and delta. Several r are
    tried, each at its share of the risk.

    Parameters
    ----------
    scores : float array, shape (m,)
        Above 0 where a row seems present, below where absent; the farther, the surer.
    present : bool array, shape (m,)
    confidence, delta : float

    Returns
    -------
    float
        In nats, 0 or more.
    """
    check_share("confidence", confidence)
    order = np.argsort(-np.abs(scores), kind="stable")
    order = order[scores[order] != 0]
    right = ((scores > 0) == present)[order]
    risk, m = (1 - confidence) / len(_GUESSED), len(scores)
    found = [0.0]
    for share in _GUESSED:
        guesses = math.ceil(share * len(right))
        if guesses:
            found.append(_largest(guesses, int(right[:guesses].sum()), m, risk, delta))
    return max(found)


def _largest(guesses: int, right: int, m: int, risk: float, delta: float) -> float:
    """Return the largest epsilon at which so many right guesses are still that unlikely."""
    from scipy.special import betaincinv, logit

    if not right:
        return 0.0
    high = max(float(logit(betaincinv(right, guesses - right + 1, risk))), 0.0)
    low = 0.0 if delta else high  # without delta the binomial tail alone decides
    for _ in range(40 if delta else 0):
        middle = (low + high) / 2
        likely = _chance(guesses, right, m, middle, delta) > risk
        low, high = (low, middle) if likely else (middle, high)
    return low


def _chance(guesses: int, right: int, m: int, epsilon: float, delta: float) -> float:
    from scipy.stats import binom

    p = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, p))
    more = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return float(binom.sf(right - 1, guesses, p)) + 2 * m * delta * more
