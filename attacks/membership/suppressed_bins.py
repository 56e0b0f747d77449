"""What histograms reveal although bins of few rows were suppressed.

A defense such as `min-bin` sends the sums of a bin as zeros if its hessian sum is below a limit. A
suppressed bin therefore states that it contains few rows, and a bin that was sent contains at least
as many rows as the limit requires. If several clients suppress their bins, then a sum over clients
lacks the rows of those whose bin was suppressed.

The number of members among the candidates of a bin is binomial before the training is observed.
Below the limit it is a truncated binomial, whose moments are incomplete beta functions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

Floats = NDArray[np.float64]
#: Smallest probability of a suppressed bin, which bounds the evidence of a single one.
_LEAST_PROBABILITY = 1e-12


def truncated_binomial(
    rows: Floats, probability: float, limit: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return probability, mean and variance of a binomial count that is at most `limit`.

    Parameters
    ----------
    rows : float64 array, shape (B,)
        Number of rows, of which each is counted with the same probability.
    probability : float
        Probability that a row is counted.
    limit : float64 array, shape (B,)
        Largest count, 0 or more.

    Returns
    -------
    inside, mean, variance : float64 array, shape (B,)
        Probability of such a count, and its conditional moments.

    Examples
    --------
    Of two rows, each counted with probability 1/2, at most one is counted:

    >>> truncated_binomial(np.array([2.0]), 0.5, np.array([1.0]))[:2]
    (array([0.75]), array([0.66666667]))
    """

    def at_most(k: Floats, n: Floats) -> Floats:
        probabilities = np.where(k < 0, 0.0, 1.0)
        uncertain = (k >= 0) & (k < n)
        # Many bins have the same numbers of rows.
        pairs, place = np.unique(k[uncertain] + 1j * n[uncertain], return_inverse=True)
        distinct = bdtr(pairs.real, pairs.imag.astype(np.int64), probability)
        probabilities[uncertain] = distinct[place]
        return probabilities

    inside = np.maximum(at_most(limit, rows), _LEAST_PROBABILITY)
    mean = rows * probability * at_most(limit - 1, rows - 1) / inside
    mean = np.minimum(mean, limit)
    pairs = rows * (rows - 1) * probability**2 * at_most(limit - 2, rows - 2) / inside
    return inside, mean, np.maximum(pairs + mean - mean**2, 0.0)


@dataclass(frozen=True)
class SuppressedBins:
    """Evidence from the bins of one node, some of which may have been suppressed.

    Parameters
    ----------
    limit : float
        A client suppresses a bin with a smaller hessian sum.
    clients : int
        Number of clients whose bins were suppressed separately and then added up.
    prior : float
        Probability that a candidate is a member.
    """

    limit: float
    clients: int
    prior: float

    def lacking(self, rows: Floats, hessian: Floats, shown: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance of the number of members that sent bins lack.

        Parameters
        ----------
        rows, hessian : float64 array, shape (B,)
            Number of candidates in each bin, and their mean hessian.
        shown : float64 array, shape (B,)
            Hessian sums that were sent. At least one client sent each of them.

        Returns
        -------
        mean, variance : float64 array, shape (B,)
        """
        if self.clients == 1:  # its bins were sent with all rows, or not at all
            return np.zeros(len(rows)), np.zeros(len(rows))
        inside, mean, variance = self._of_one_client(rows, hessian)
        # Each client that sent its bin contributes at least the limit.
        senders = np.clip(np.floor(shown / self.limit + 1e-9), 1, self.clients)
        n_others = self.clients - 1
        p = np.clip(np.maximum((self.clients - senders) / n_others, inside), 0, 1)
        spread = p * (variance + mean**2) - (p * mean) ** 2
        return n_others * p * mean, n_others * spread

    def observations(self, rows: Floats, hessian: Floats) -> tuple[Floats, Floats]:
        """Return a noisy observation of the number of members in each bin that was not sent.

        It is the Gaussian factor that turns mean and variance of the binomial into those of the
        truncated one, as in expectation propagation (Minka 2001).

        Parameters
        ----------
        rows, hessian : float64 array, shape (B,)
            Number of candidates in each bin, and their mean hessian.

        Returns
        -------
        value, variance : float64 array, shape (B,)
            The variance is infinite if the suppression reveals nothing about the bin.
        """
        _, mean, variance = self._of_one_client(rows, hessian)
        mean, variance = self.clients * mean, np.maximum(self.clients * variance, 1e-3)
        before, spread = rows * self.prior, rows * self.prior * (1 - self.prior)
        gained = 1 / variance - 1 / np.maximum(spread, 1e-12)
        gained = np.where(gained * spread > 1e-6, gained, 0.0)  # else nothing is truncated
        informative = gained > 0
        value = (mean / variance - before / np.maximum(spread, 1e-12))[informative] / gained[
            informative
        ]
        values, variances = np.zeros(len(rows)), np.full(len(rows), np.inf)
        values[informative], variances[informative] = value, 1 / gained[informative]
        return values, variances

    def _of_one_client(self, rows: Floats, hessian: Floats) -> tuple[Floats, Floats, Floats]:
        largest_count = np.ceil(self.limit / np.maximum(hessian, 1e-16) - 1e-6) - 1
        return truncated_binomial(rows, self.prior / self.clients, np.maximum(largest_count, 0.0))
