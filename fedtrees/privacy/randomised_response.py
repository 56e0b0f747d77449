"""Randomised response among the likeliest labels (Ghazi et al. 2021), in exact arithmetic."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_positive

# Draws are whole numbers below (odds + K - 1) times the denominator, which int64 must hold.
_ROOM = 56
_FINEST = 40


@cache
def odds_within(epsilon: float) -> Fraction:
    """Return odds of at most ``e^epsilon``, as a fraction whose draws fit into int64.

    The exponential series is cut off, all of whose terms are positive, and the sum is rounded down
    to a multiple of a power of 1/2: less than 1e-11 of it is lost.

    `epsilon`: In nats, above 0.

    Raises `UsageError`.
    """
    check_positive("epsilon", epsilon)
    bits = int(_ROOM - epsilon / math.log(2))
    if bits < 0:
        return Fraction(2**_ROOM)
    exact = Fraction(epsilon)
    total = term = Fraction(1)
    for i in range(1, 40 + 4 * math.ceil(epsilon)):
        term *= exact / i
        total += term
    unit = 2 ** min(bits, _FINEST)
    return Fraction(math.floor(total * unit), unit)


def ranked(prior: NDArray[np.float64], odds: Fraction) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return labels from the likeliest on, intp (n, K), and among how many is answered, intp (n,).

    Among the k that make ``odds / (odds + k - 1)`` times their prior greatest: then an answer is
    likeliest to be true (Ghazi et al. 2021, Algorithm 3 and Theorem 3). Of equals the first counts.

    `prior`: float64 array, shape (n, K). What is believed of every row's label without having
    looked at it.
    """
    order = np.argsort(-prior, axis=1, kind="stable")
    within = np.cumsum(np.take_along_axis(prior, order, axis=1), axis=1)
    r = float(odds)
    truthful = within * (r / (r + np.arange(prior.shape[1])))
    return order, truthful.argmax(axis=1) + 1


def respond(
    y: NDArray[np.int64],
    prior: NDArray[np.float64],
    odds: Fraction,
    rng: np.random.Generator,
    *,
    published: bool = False,
) -> NDArray[np.int64]:
    """Answer with a label for every row: RRTop-k of Ghazi et al. (2021), Algorithms 2 and 3.

    A label among the k likeliest stays with odds against each other one of these; any other gives
    way to one of the k, all equally likely. Drawn are whole numbers, so that the probabilities are
    those of `matrix` exactly.

    `y`: int64 array, shape (n,). Labels, 0 to K - 1.
    `prior`: float64 array, shape (n, K).
    `odds`: `odds_within` an epsilon.
    `published`: In place of a label that is none of the k put one of all K, as the code of
    Takahashi et al. (2023) does: **no epsilon bounds what that gives away**.

    Returns: int64 array, shape (n,).
    """
    K = prior.shape[1]
    order, among = ranked(prior, odds)
    rank = (order == y[:, None]).argmax(axis=1)
    said = np.empty_like(rank)
    for k in np.unique(among).tolist():
        (rows,) = np.nonzero(among == k)
        kept, unit = odds.numerator, odds.denominator
        inside = rng.integers(0, kept + (k - 1) * unit, len(rows))
        outside = rng.integers(0, K if published else k, len(rows))
        own = rank[rows]
        other = (inside - kept) // unit  # of the k - 1 others, in order
        moved = np.where(inside < kept, own, other + (other >= own))
        said[rows] = np.where(own < k, moved, outside)
    return np.take_along_axis(order, said[:, None], axis=1)[:, 0].astype(np.int64)


def true_shares(said: NDArray[np.float64], odds: Fraction) -> NDArray[np.float64]:
    """Return the shares of true labels where answers among all K classes have such shares.

    The matrix of `respond` is inverted; what comes out negative is 0.

    `said`: float64 array, shape (n, K)
    `odds`: Above 1.

    Returns: float64 array, shape (n, K).
    """
    r, total = float(odds), np.zeros((len(said), 1))
    found = np.maximum((said * (r + said.shape[1] - 1) - 1) / (r - 1), 0.0)
    for k in range(said.shape[1]):
        total[:, 0] += found[:, k]
    return np.asarray(found / total)
