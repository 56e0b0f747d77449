"""Derive rows and labels per leaf of a tree that every row entered with the same prediction p.

This is the first tree of a model or, in bagging, the first tree of every client. Its leaves satisfy
``H = N s p(1-p)`` and ``G = N p - N1`` with integers N (rows) and N1 (rows of class 1) and the
scale s of the hessians (Di Gennaro et al. 2025, Eqs. 4-9). Sums of other trees hardly ever satisfy
these equations. The statistics of a tree therefore show whether it is a first tree, and they
determine its p.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.exposure import UNKNOWN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Relative error of a sum over rows whose gradients are float32, and of its float32 storage.
ROUNDING = 2.0**-23
CHANCE = 1e-6  # largest accepted probability that unrelated statistics agree by coincidence
CLEAR = 0.25  # a count with a larger error (in rows) is not rounded to an integer
LEAST_SHARE = 0.0025  # the search covers base scores between this and 1 - this
# Largest number of integers N1 that are tried for one N. H is flat in p near 1/2, so that it admits
# a wide interval of p there.
MOST_CLASS_COUNTS = 4000
MOST_SCORES = 20_000  # largest number of base scores tried for one tree, in about a second


@dataclass(frozen=True, eq=False)
class LeafStatistics:
    """Sums of gradients and hessians over the rows of each leaf, and their errors, shape (J,).

    The hessian of a row is ``scale * p (1 - p)``. The scale is 1, or 2 for XGBoost's softmax. If
    `unshrunk` is False, an L1 penalty may have moved G towards 0.
    """

    g: Floats | None  # None if eta is unknown, like g_error
    h: Floats
    g_error: Floats | None
    h_error: Floats
    scale: float = 1.0
    unshrunk: bool = True
    step: Floats | None = None  # absolute Newton steps of the leaves, None if eta is unknown
    cut: NDArray[np.bool_] | None = None  # leaves whose step a limit may have truncated


@dataclass(frozen=True, eq=False)
class FirstTree:
    """Counts that agree with the statistics of a tree, int64, shape (J,)."""

    p: float  # base score: the prediction of every row before the tree
    n: Ints  # number of rows, `UNKNOWN` if the errors of the sums allow several numbers
    n1: Ints  # number of rows of the tree's class, also `UNKNOWN` in this case
    chance: float  # bound on the probability that unrelated statistics agree equally well


def counts_at(statistics: LeafStatistics, p: float, tries: float = 1.0) -> FirstTree | None:
    """Return the counts of a tree that was grown from base score p.

    Parameters
    ----------
    statistics : LeafStatistics
        Sums of the leaves, with G.
    p : float
        Base score.
    tries : float
        Number of base scores that were tried. Each of them increases the probability that one
        agrees by chance.

    Returns
    -------
    first_tree : FirstTree or None
        None if no counts agree with the statistics, or if they agree by chance with probability
        `CHANCE` or more.
    """
    s, h = statistics, statistics.scale * p * (1 - p)
    n = np.maximum(np.rint(s.h / h), 0).astype(np.int64)
    n1 = np.clip(np.rint(n * p - s.g), 0, n).astype(np.int64)
    n_error = s.h_error / h + 2 * ROUNDING * n + 1e-9
    n1_error = s.g_error + p * n_error + ROUNDING * n
    # Only leaves with small errors are tested, because an integer always lies within a large error.
    off = np.abs(s.h / h - n), np.abs(n * p - s.g - n1)
    clear = np.maximum(n_error, n1_error) < CLEAR
    if not clear.any() or ((off[0] > n_error) | (off[1] > n1_error) | (n < 1))[clear].any():
        return None
    chance = tries * float(np.prod(2 * n_error[clear]) * np.prod(2 * n1_error[clear]))
    n, n1 = np.where(clear, n, UNKNOWN), np.where(clear, n1, UNKNOWN)
    return FirstTree(p, n, n1, chance) if chance < CHANCE else None


def find_first_tree(statistics: LeafStatistics) -> FirstTree | None:
    """Return the counts of a tree with unknown base score, None unless exactly one solution fits.

    The function tries 1, 2, 3, ... rows in the smallest leaf. Each choice gives the hessian of a
    row and the rows of all leaves, which must be integers. G of the root then gives p. If more than
    `MOST_SCORES` base scores remain, the function returns None. This happens if all leaves have
    about the same H.
    """
    s = statistics
    if len(s.h) < 2 or not (s.h > 0).all():
        return None
    rows, tries = _whole_rows(s)
    scores = list(islice(_base_scores(s, rows), MOST_SCORES + 1))
    fitting: list[FirstTree] = []
    for p in scores if len(scores) <= MOST_SCORES else ():
        fit = counts_at(s, p, tries)
        if fit is not None and not any(
            np.array_equal(fit.n, f.n) and np.array_equal(fit.n1, f.n1) for f in fitting
        ):
            fitting.append(fit)
    return fitting[0] if len(fitting) == 1 else None


def _whole_rows(s: LeafStatistics) -> tuple[Floats, float]:
    """Return the possible numbers of rows of the root, and how many choices were tried.

    In each returned choice, the rows of every leaf are integers. The smallest leaf is tried with
    the numbers of rows that some base score allows and for which the error of each leaf's rows is
    at most `CLEAR`.
    """
    least, low = int(np.argmin(s.h)), s.scale * LEAST_SHARE * (1 - LEAST_SHARE)
    ratio, relative = s.h / s.h[least], s.h_error / s.h
    error = ratio * (relative[least] + relative + 2 * ROUNDING)  # for each row of the smallest leaf
    first = max(int(np.floor(s.h[least] / (0.25 * s.scale) * (1 - 1e-5))), 1)
    largest = int(min(s.h[least] / low + 1, CLEAR / error.max()))
    tried = np.arange(first, largest + 1, dtype=np.float64)
    rows, fits = np.zeros(len(tried)), tried
    for j in np.argsort(s.h):  # each leaf eliminates some of the choices
        n = np.rint(ratio[j] * fits)
        integral = np.abs(ratio[j] * fits - n) <= error[j] * fits + 1e-9
        rows, fits = (rows + n)[integral], fits[integral]
    return rows, float(len(tried))


def _base_scores(s: LeafStatistics, rows: Floats) -> Iterator[float]:
    """Yield each p for which the hessian of a row and N1 of the root agree with the number of rows.

    ``scale p (1-p)`` equals the root's H divided by its rows within the error, and N1 is an
    integer.
    """
    g, variance = float(s.g.sum()), s.h.sum() / rows / s.scale
    error = variance * (float(s.h_error.sum() / s.h.sum()) + 2 * ROUNDING)
    # p (1 - p) = v has the solutions 1/2 - sqrt(1/4 - v) and 1/2 + sqrt(1/4 - v). The error of v
    # turns each of them into an interval.
    inner, outer = (np.sqrt(np.maximum(0.25 - variance + x, 0.0)) for x in (-error, error))
    low = np.stack([0.5 - outer, 0.5 + inner], axis=1)
    high = np.stack([0.5 - inner, 0.5 + outer], axis=1)
    first = np.ceil(rows[:, None] * low - g - 1e-3)
    last = np.floor(rows[:, None] * high - g + 1e-3)
    usable = (first <= last) & (last - first <= MOST_CLASS_COUNTS)
    for k, side in np.argwhere(usable):
        for n1 in np.arange(first[k, side], last[k, side] + 1):
            p = float((n1 + g) / rows[k])
            if 0 < p < 1:
                yield p
