"""Randomised response among the likeliest labels (Ghazi et al. 2021), in exact arithmetic.

The defenses `lp-1st`, `lp-mst` and `grafting-ldp` use this module.
"""

import math
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import check_positive

# Draws are integers below (odds + K - 1) times the denominator, which must fit into int64. The odds
# are therefore limited to 56 bits, of which at most 40 are fractional.
_ROOM = 56
_FINEST = 40


@cache
def odds_within(epsilon: float) -> Fraction:
    """Return odds of at most ``e^epsilon``, as a fraction whose draws fit into int64.

    The exponential series is truncated. All of its terms are positive, so that the partial sum is
    too small. It is rounded down to a multiple of a power of 1/2, which loses less than 1e-11.

    Parameters
    ----------
    epsilon : float
        In nats, above 0.

    Raises
    ------
    UsageError
        If epsilon is not above 0.
    """
    check_positive("epsilon", epsilon)
    # A large epsilon leaves no bits for the fraction of the odds.
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


def rank_labels(
    prior: NDArray[np.float64], odds: Fraction
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Order labels by their prior, and choose the number k of candidates.

    k maximises ``odds / (odds + k - 1)`` times the prior of the k likeliest labels, which is the
    probability that the response is true (Ghazi et al. 2021, Algorithm 3 and Theorem 3). The
    smallest such k is chosen.

    Parameters
    ----------
    prior : float64 array, shape (n, K)
        Prior of every row's label. It must not depend on this label.
    odds : Fraction
        `odds_within` an epsilon.

    Returns
    -------
    order : intp array, shape (n, K)
        Labels, the likeliest first.
    among : intp array, shape (n,)
        k of each row.
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
    """Draw a response for every label: RRTop-k of Ghazi et al. (2021), Algorithms 2 and 3.

    A label among the k likeliest stays, with the given odds against each of the k - 1 other
    candidates. Any other label is replaced by one of the k, all with the same probability. The
    draws are integers, so that the probabilities are exact.

    Parameters
    ----------
    y : int64 array, shape (n,)
        Labels, 0 to K - 1.
    prior : float64 array, shape (n, K)
        As in `rank_labels`.
    odds : Fraction
        `odds_within` an epsilon.
    rng : Generator
    published : bool
        Replace a label outside the k likeliest by one of all K, as the code of Takahashi et al.
        (2023) does. **No epsilon bounds the privacy loss then.**

    Returns
    -------
    labels : int64 array, shape (n,)
    """
    K = prior.shape[1]
    order, among = rank_labels(prior, odds)
    rank = (order == y[:, None]).argmax(axis=1)
    response_rank = np.empty_like(rank)
    for k in np.unique(among).tolist():
        (rows,) = np.nonzero(among == k)
        truthful, unit = odds.numerator, odds.denominator
        inside = rng.integers(0, truthful + (k - 1) * unit, len(rows))
        # Drawn for all rows, so that the number of draws does not depend on the labels.
        outside = rng.integers(0, K if published else k, len(rows))
        label_rank = rank[rows]
        other_rank = (inside - truthful) // unit  # one of the k - 1 remaining candidates
        candidate_rank = np.where(
            inside < truthful, label_rank, other_rank + (other_rank >= label_rank)
        )
        response_rank[rows] = np.where(label_rank < k, candidate_rank, outside)
    return np.take_along_axis(order, response_rank[:, None], axis=1)[:, 0].astype(np.int64)


def true_shares(reported: NDArray[np.float64], odds: Fraction) -> NDArray[np.float64]:
    """Estimate the shares of true labels from shares of responses over all K classes.

    The matrix of response probabilities is inverted. Negative results are set to 0, and the shares
    of a row are normalised.

    Parameters
    ----------
    reported : float64 array, shape (n, K)
        Shares of the responses.
    odds : Fraction
        Above 1.

    Returns
    -------
    shares : float64 array, shape (n, K)
    """
    r, total = float(odds), np.zeros((len(reported), 1))
    # A response of class c has the share ((r - 1) s_c + 1) / (r + K - 1) for a true share s_c.
    shares = np.maximum((reported * (r + reported.shape[1] - 1) - 1) / (r - 1), 0.0)
    for k in range(reported.shape[1]):
        total[:, 0] += shares[:, k]
    return np.asarray(shares / total)
