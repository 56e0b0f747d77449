"""Estimate the share of each category if a mechanism released numbers instead of category codes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, softmax

from fedtrees.attacks.evidence.allocation import share_out

Floats = NDArray[np.float64]

ROUNDS, DRAWS = 5, 30  # importance sampling: rounds, and draws of the shares per round
NARROWER = 5.0  # largest concentration step: a sharp law would leave one draw with weight
STAND_FOR_ALL = 100  # number of values for which the likelihood is computed


def likely_shares(
    log_chance: Callable[[Floats, float], float],
    known_counts: Floats,
    n: int,
    rng: np.random.Generator,
) -> tuple[Floats, float]:
    """Return posterior mean shares of categories and how strongly the data determine them.

    The prior of the shares is a Dirichlet distribution. Draws are weighted by the likelihood of the
    released values, and drawn again around their weighted mean (adaptive importance sampling, Cappe
    et al. 2008).

    Parameters
    ----------
    log_chance : callable
        ``log_chance(values, rows_per_value)`` returns the log probability of the released values
        (nats) for a column with these codes.
    known_counts : float64 array, shape (k,)
        Known number of rows of each category. The prior adds one row to each.
    n : int
        Number of rows of the column.
    rng : numpy.random.Generator
        Randomness of the draws.

    Returns
    -------
    shares : float64 array, shape (k,)
        Posterior means, sum 1.
    reliability : float
        Share of the prior variance that the released values removed, 0 to 1.
    """
    k, fewer = len(known_counts), min(n, STAND_FOR_ALL)
    if k < 2 or n < 1:
        return np.full(k, 1.0 / max(k, 1)), 1.0
    before = known_counts + 1.0
    codes = np.arange(k, dtype=np.float64)
    around = before
    for _ in range(ROUNDS):
        p = np.maximum(rng.dirichlet(around, DRAWS), 1e-9)
        log_likelihood = [log_chance(np.repeat(codes, share_out(x, fewer)), n / fewer) for x in p]
        weight = softmax(np.array(log_likelihood) + _density(p, before) - _density(p, around))
        # the share 0 is excluded, because no later draw could recover the category
        mean = np.maximum(weight @ p, 1e-9)
        posterior_variance = float(weight @ ((p - mean) ** 2).sum(axis=1))
        # concentration of the Dirichlet distribution with this mean and variance
        rows = float(mean @ (1 - mean)) / max(posterior_variance, 1e-12) - 1
        around = np.maximum(mean * np.clip(rows, 0.5, NARROWER * around.sum()), 0.02)
    total = before.sum()
    prior_variance = float((before / total) @ (1 - before / total)) / (total + 1)
    return mean / mean.sum(), float(np.clip(1 - posterior_variance / prior_variance, 0.0, 1.0))


def _density(p: Floats, rows: Floats) -> Floats:
    """Return the log density of shares, shape (m, k), in a Dirichlet distribution."""
    constant = gammaln(rows.sum()) - gammaln(rows).sum()
    return np.asarray(constant + np.log(p) @ (rows - 1))
