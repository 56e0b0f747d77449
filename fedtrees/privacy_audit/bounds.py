"""Audits of differential privacy: a lower bound on epsilon, and the amount of noise in a run.

For the bound, the auditor includes each row by a coin flip, trains, and guesses from scores which
rows were included. The bound holds with the stated confidence for any scores. Bad scores only make
it smaller.

For the amount of noise, an auditor that knows all rows computes the exact sums, and compares the
deviations of the noisy sums with the claimed standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_share

#: Shares of the rows that are guessed, those with the largest absolute score first. The risk of an
#: error is divided among the shares.
_GUESSED = (1.0, 0.4, 0.15, 0.05)
#: With a delta, a single share is used, or as many rows as are necessary to show an epsilon of this
#: much more than claimed. The term for delta grows with the number of rows, and would use up a
#: divided risk.
_ALONE, _BEYOND = 0.05, 1.5


def bound_of_guesses(
    scores: NDArray[np.float64],
    present: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    claimed: float = 1.0,
) -> float:
    """Return a lower bound on epsilon from the guesses about rows of one or several runs.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: apart from delta, the number of right guesses
    among r is at most binomial with r trials of probability ``e^epsilon / (1 + e^epsilon)``.
    Guesses of several runs can be pooled if the runs flip independent coins. Without a delta,
    several numbers of guesses are tried, each with its share of the risk.

    Parameters
    ----------
    scores : float array, shape (m,)
        Positive if the row seems to be included, negative if not, 0 for no guess. Guesses with
        larger absolute scores are more certain.
    present : bool array, shape (m,)
        Whether the row was included, by a fair coin flip.
    confidence : float
        Probability, in (0, 1), that the bound is correct.
    delta : float
        Delta of the guarantee.
    claimed : float
        Claimed epsilon, known before the experiment. With a delta, more rows are guessed if it is
        larger.

    Returns
    -------
    epsilon : float
        In nats, 0 or more.
    """
    counts = count_guesses(scores, present, confidence=confidence, delta=delta, claimed=claimed)
    return bound_of_counts(counts, len(scores), confidence=confidence, delta=delta)


def count_guesses(
    scores: NDArray[np.float64],
    present: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    claimed: float = 1.0,
) -> list[tuple[int, int]]:
    """Return (number of correct guesses, number of guesses) for every share of the rows.

    The parameters are those of `bound_of_guesses`. Without a delta there are four pairs, and one
    with a delta, so that the pairs of independent audits can be added up in their order.
    """
    check_share("confidence", confidence)
    order = np.argsort(-np.abs(scores), kind="stable")
    # A score of 0 is no guess.
    order = order[scores[order] != 0]
    correct = ((scores > 0) == present)[order]
    n = len(correct)
    n_guesses = [math.ceil(share * n) for share in _GUESSED]
    if delta:
        needed = math.ceil(-math.log(1 - confidence) * math.exp(min(claimed, 30) + _BEYOND))
        n_guesses = [min(max(math.ceil(_ALONE * n), needed), n)]
    return [(int(correct[:guesses].sum()), guesses) for guesses in n_guesses]


def bound_of_counts(
    counts: Sequence[tuple[int, int]], m: int, *, confidence: float = 0.95, delta: float = 0.0
) -> float:
    """Return a lower bound on epsilon from numbers of correct guesses.

    Parameters
    ----------
    counts : sequence of tuple of int
        Pairs of `count_guesses`, or their sums over independent audits.
    m : int
        Number of canaries of all audits.
    confidence, delta : float
        As in `bound_of_guesses`.

    Returns
    -------
    epsilon : float
        In nats, 0 or more.
    """
    check_share("confidence", confidence)
    distinct = dict.fromkeys(counts)
    risk, bounds = (1 - confidence) / len(distinct), [0.0]
    for correct, guesses in distinct:
        if guesses:
            bounds.append(_largest(guesses, correct, m, risk, delta))
    return max(bounds)


def most_of_guesses(m: int, *, delta: float = 0.0, claimed: float = 1.0) -> float:
    """Return the largest bound that m rows can show: the bound of m correct guesses."""
    present = np.ones(m, dtype=bool)
    return bound_of_guesses(np.ones(m), present, delta=delta, claimed=claimed)


def _largest(guesses: int, right: int, m: int, risk: float, delta: float) -> float:
    """Return the largest epsilon at which the guesses have at most probability `risk`."""
    from scipy.special import betaincinv, logit

    if not right:
        return 0.0
    high = max(float(logit(betaincinv(right, guesses - right + 1, risk))), 0.0)
    low = 0.0 if delta else high  # without delta the binomial tail gives the bound directly
    for _ in range(40 if delta else 0):
        middle = (low + high) / 2
        likely = _chance(guesses, right, m, middle, delta) > risk
        low, high = (low, middle) if likely else (middle, high)
    return low


def _chance(guesses: int, right: int, m: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of `right` or more correct guesses (Theorem 5.2)."""
    from scipy.stats import binom

    p = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, p))
    more = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return float(binom.sf(right - 1, guesses, p)) + 2 * m * delta * more


#: Kurtosis of Laplace noise, the noise in use with the heaviest tails. The mean of n squared
#: standardised deviations has the standard error ``sqrt((6 - 1) / n)``.
_KURTOSIS = 6.0
#: A measured variance this many standard errors below the claim refutes it. This happens in one of
#: 300,000 honest runs.
_FAR = 4.5


@dataclass(frozen=True)
class NoiseFound:
    """Noise that an auditor measured in a run.

    Attributes
    ----------
    share : float
        Measured standard deviation divided by the claimed one.
    least : float
        Smallest share that is consistent with the claim. 0 if there are too few sums to refute it.
    sums : int
        Number of noisy sums.
    """

    share: float
    least: float
    sums: int

    @property
    def too_little(self) -> bool:
        """Whether the measurement refutes the claim."""
        return self.share < self.least


def noise_found(residuals: NDArray[np.float64]) -> NoiseFound | None:
    """Measure the noise in standardised residuals.

    Parameters
    ----------
    residuals : float64 array, shape (m,)
        Deviations from the exact sums, in standard deviations of the claimed noise.

    Returns
    -------
    noise : NoiseFound or None
        None if there are no residuals.
    """
    m = len(residuals)
    if not m:
        return None
    least = 1 - _FAR * math.sqrt((_KURTOSIS - 1) / m)
    return NoiseFound(float(np.sqrt(np.mean(residuals**2))), math.sqrt(max(least, 0.0)), m)
