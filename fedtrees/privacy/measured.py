"""Lower bounds on epsilon that an audit finds from guesses of which rows took part.

A bound holds with the stated confidence whatever the scores are made of: bad scores lower it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_share

#: Shares of the rows that are guessed, the surest first; the confidence is split over them.
_GUESSED = (1.0, 0.4, 0.15, 0.05)
#: With a delta one share alone is, or as many rows as could show so much more than is claimed:
#: delta is a part of the risk that grows with rows, and would leave little of one that is split.
_ALONE, _BEYOND = 0.05, 1.5


def bound_of_guesses(
    scores: NDArray[np.float64],
    present: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    claimed: float = 1.0,
) -> float:
    """Return a lower bound on epsilon from rows of one run or several, there by a coin flip each.

    Steinke, Nasr and Jagielski (2023), theorem 5.2: of r guesses, more are right than of a
    binomial of r and ``e^epsilon / (1 + e^epsilon)`` only by chance, and delta. Runs that share no
    coin are together as private of a row as its own, so that their guesses add up. Without delta
    several r are tried, each at its share of the risk.

    `scores`: float array, shape (m,). Above 0 where a row seems present, below where absent; the
    farther, the surer.
    `present`: bool array, shape (m,)
    `claimed`: Epsilon, known before: with a delta more rows are guessed where it is large.

    Returns: In nats, 0 or more.
    """
    check_share("confidence", confidence)
    order = np.argsort(-np.abs(scores), kind="stable")
    order = order[scores[order] != 0]
    right = ((scores > 0) == present)[order]
    n, m = len(right), len(scores)
    asked = {math.ceil(share * n) for share in _GUESSED}
    if delta:
        least = math.ceil(-math.log(1 - confidence) * math.exp(min(claimed, 30) + _BEYOND))
        asked = {min(max(math.ceil(_ALONE * n), least), n)}
    risk, found = (1 - confidence) / len(asked), [0.0]
    for guesses in asked - {0}:
        found.append(_largest(guesses, int(right[:guesses].sum()), m, risk, delta))
    return max(found)


def most_of_guesses(m: int, *, delta: float = 0.0, claimed: float = 1.0) -> float:
    """Return the largest bound that so many rows can show: that of right guesses throughout."""
    there = np.ones(m, dtype=bool)
    return bound_of_guesses(np.ones(m), there, delta=delta, claimed=claimed)


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
