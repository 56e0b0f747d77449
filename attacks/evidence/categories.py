"""Shares of a column's categories, from numbers that a mechanism drew between their codes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, softmax

from fedtrees.attacks.evidence.counts import share_out

Floats = NDArray[np.float64]

ROUNDS, DRAWS = 5, 30  # of shares: each round draws around what the one before found likely
NARROWER = 5.0  # Up to so many times as narrowly: a sharp law leaves a round one draw.
STAND_FOR_ALL = 100  # values of a column whose law is asked


def likely_shares(
    log_chance: Callable[[Floats, float], float], known: Floats, n: int, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Return the mean shares of categories, given what was drawn, and how far it told them.

    Before, shares have a Dirichlet distribution; its draws are weighted by the law of what was
    drawn, and drawn again around their mean (adaptive importance sampling, Cappe et al. 2008).

    `log_chance`: Log probability of what was drawn, given values of a column and the rows each
    stands for.
    `known`: float64 array, shape (k,). Rows known of every category; one more is taken to be of
    each.
    `n`: Rows of the column.

    Returns
    -------
    float64 array, shape (k,)
    float
        Share of the variance before that is not left, 0 to 1.
    """
    k, fewer = len(known), min(n, STAND_FOR_ALL)
    if k < 2 or n < 1:
        return np.full(k, 1.0 / max(k, 1)), 1.0
    before = known + 1.0
    codes = np.arange(k, dtype=np.float64)
    around = before
    for _ in range(ROUNDS):
        p = np.maximum(rng.dirichlet(around, DRAWS), 1e-9)
        told = [log_chance(np.repeat(codes, share_out(x, fewer)), n / fewer) for x in p]
        weight = softmax(np.array(told) + _density(p, before) - _density(p, around))
        mean = np.maximum(weight @ p, 1e-9)
        left = float(weight @ ((p - mean) ** 2).sum(axis=1))
        rows = float(mean @ (1 - mean)) / max(left, 1e-12) - 1
        around = np.maximum(mean * np.clip(rows, 0.5, NARROWER * around.sum()), 0.02)
    total = before.sum()
    usual = float((before / total) @ (1 - before / total)) / (total + 1)
    return mean / mean.sum(), float(np.clip(1 - left / usual, 0.0, 1.0))


def _density(p: Floats, rows: Floats) -> Floats:
    """Return the log density of shares (m, k) in a Dirichlet distribution."""
    whole = gammaln(rows.sum()) - gammaln(rows).sum()
    return np.asarray(whole + np.log(p) @ (rows - 1))
