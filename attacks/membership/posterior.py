"""Posterior of membership given released sums that are linear in it.

A released sum, such as the gradient sum of a leaf, adds the contributions of all rows, and noise of
a known variance. If the adversary can compute the contribution of every candidate, then the sums
are linear in the unknown membership indicators. With a Gaussian approximation of the prior this is
a Bayesian linear regression with known noise, whose posterior has a closed form. The attack needs
no reference model. It uses the published noise distribution of a differentially private mechanism
directly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from scipy.special import logsumexp

Floats = NDArray[np.float64]

#: Standard deviations that a sum without noise may be given, as shares of the largest contribution
#: to it. The first only covers rounding (float32 gradients, leaf values of 24 bits). The larger
#: ones are for sums that do not follow the model exactly, for example because the adversary had to
#: estimate where the boosting of a client started.
MISFITS = (1e-3, 1e-2, 1e-1, 0.5)
#: Bounds on the prior probability of membership. Near 0 or 1 the prior would decide everything.
LEAST_PRIOR, GREATEST_PRIOR = 0.05, 0.95


@dataclass(frozen=True, eq=False)
class LinearSums:
    """Released sums, and the contribution of every candidate to them.

    Attributes
    ----------
    contribution : sparse array, shape (n, K)
        Contribution of candidate i to sum k, if it is a member.
    total : float64 array, shape (K,)
        The released sums, without the contributions of rows that the adversary knows to be
        members.
    variance : float64 array, shape (K,)
        Variance of the noise in each sum. It is 0 if the sum is exact, and infinite if the sum is
        to be ignored.
    rows : float
        Number of unknown members whose contributions are in the sums.
    """

    contribution: csr_array
    total: Floats
    variance: Floats
    rows: float


def log_odds(sums: LinearSums) -> Floats:
    """Return the log-odds of membership that the sums add to the prior, nats, shape (n,).

    Let z be the vector of membership indicators with prior variance v = q (1 - q), A the
    contributions, W = A / sd, and r the standardised difference between the released sums and their
    prior mean. The posterior of z has precision P = I / v + W W^T and mean q + P^-1 W r. The prior
    of a single candidate is then divided out, and the remaining Gaussian likelihood is evaluated at
    the only possible values, 0 and 1.

    If there are more unknown members than candidates, then the other members are assumed to be
    distributed like the candidates. Each candidate then represents several rows, whose number has a
    variance above v.

    Parameters
    ----------
    sums : LinearSums
        Sums of K cells over n candidates.

    Returns
    -------
    float64 array, shape (n,)
        Zero for a candidate if the sums contain no information about it.
    """
    n = sums.contribution.shape[0]
    mean = sums.rows / max(n, 1)  # expected number of members per candidate
    prior = float(np.clip(mean if mean < 1 else 0.5, LEAST_PRIOR, GREATEST_PRIOR))
    background = max(mean - prior, 0.0)  # members that are no candidates, per candidate
    spread = prior * (1 - prior) + background

    largest = np.asarray(abs(sums.contribution).max(axis=0).todense()).ravel()
    used = np.flatnonzero((largest > 0) & np.isfinite(sums.variance))
    if not len(used):
        return np.zeros(n)
    columns, largest, noise = sums.contribution[:, used], largest[used], sums.variance[used]
    residual = sums.total[used] - mean * np.asarray(columns.sum(axis=0)).ravel()
    exact = bool((noise < (MISFITS[0] * largest) ** 2).any())
    fits = [
        _solve(columns, residual, np.sqrt(noise + (misfit * largest) ** 2), spread)
        for misfit in (MISFITS if exact else MISFITS[:1])
    ]
    _, shift, variance = max(fits, key=lambda fit: fit[0])

    # Divide the posterior of each candidate by its prior. What remains is a Gaussian likelihood of
    # precision `gained` and mean `shift / variance / gained`, measured from the prior mean.
    gained = np.maximum(1 / variance - 1 / spread, 0.0)
    evidence = shift / variance - gained * (0.5 - prior)
    return np.asarray(evidence / (1 + gained * background), dtype=np.float64)


def _solve(
    columns: csr_array, residual: Floats, deviation: Floats, spread: float
) -> tuple[float, Floats, Floats]:
    """Return the log marginal likelihood, and posterior mean and variance of every candidate."""
    n = columns.shape[0]
    weights = csr_array(columns.multiply(1 / deviation[None, :]))
    standard = residual / deviation
    precision = (weights @ weights.T).toarray()
    precision[np.diag_indices(n)] += 1 / spread
    factor = cho_factor(precision, lower=True, overwrite_a=True)
    weighted = weights @ standard
    shift = cho_solve(factor, weighted)
    variance = np.diag(cho_solve(factor, np.eye(n)))
    log_det = 2 * np.log(np.diag(factor[0])).sum() + n * np.log(spread)
    fit = float(standard @ standard - weighted @ shift + 2 * np.log(deviation).sum() + log_det)
    return -fit / 2, shift, variance


def any_of(parts: Sequence[Floats]) -> Floats:
    """Return the log-odds that a candidate is a member of one of several groups of rows.

    Each group, for example the local data of one client, has separate sums. A member is in exactly
    one group, and in each with the same prior probability.

    Parameters
    ----------
    parts : sequence of float64 array, shape (n,)
        Log-odds of membership in each group, nats.

    Examples
    --------
    Strong evidence for one of two groups counts almost completely, minus log 2:

    >>> any_of([np.array([5.0]), np.array([-5.0])]).round(3).tolist()
    [4.307]
    """
    return np.asarray(logsumexp(parts, axis=0) - np.log(len(parts)), dtype=np.float64)
