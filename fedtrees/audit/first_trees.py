"""Rows and labels per leaf of a tree that every row entered with the same prediction p.

That is the first tree of a model or, in bagging, of every client. Its leaves have
``H = N s p(1-p)`` and ``G = N p - N1`` with whole N and N1 (Di Gennaro et al. 2025, Eqs. 4-9).
Hardly anything else has, so the tree itself tells whether it is one, and its p.
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
CHANCE = 1e-6  # largest probability at which statistics count as no coincidence
CLEAR = 0.25  # rows: a count whose error is larger is not rounded to a whole one
LEAST_SHARE = 0.0025  # base scores between this and 1 - this are searched for
MOST_CLASS_COUNTS = 4000  # whole N1 tried around one N; p near 1/2 follows badly from H
MOST_SCORES = 20_000  # base scores tried for one tree, in about a second


@dataclass(frozen=True, eq=False)
class LeafStatistics:
    """Sums of gradients and hessians over the rows of each leaf, and their errors, shape (J,).

    A row's hessian is ``scale * p (1 - p)``: scale is 1, or 2 for XGBoost's softmax. Unless
    `unshrunk`, an L1 penalty may have moved G towards 0.
    """

    g: Floats | None  # None where eta is unknown, as g_error
    h: Floats
    g_error: Floats | None
    h_error: Floats
    scale: float = 1.0
    unshrunk: bool = True
    step: Floats | None = None  # absolute Newton steps of the leaves, where eta is known
    cut: NDArray[np.bool_] | None = None  # leaves whose step a limit may have cut off


@dataclass(frozen=True, eq=False)
class FirstTree:
    """Counts that agree with the statistics of a tree, int64, shape (J,)."""

    p: float  # base score: what every row was predicted before the tree
    n: Ints  # `UNKNOWN` where the errors of the sums leave a choice
    n1: Ints  # rows of the tree's class
    chance: float  # bound on the probability that unrelated statistics agree so well


def counts_at(statistics: LeafStatistics, p: float, tries: float = 1.0) -> FirstTree | None:
    """Return the counts of a tree grown from base score p, None where none agree with it.

    Each of the `tries`, base scores that were tried, raises the chance that one agrees.
    """
    s, h = statistics, statistics.scale * p * (1 - p)
    n = np.maximum(np.rint(s.h / h), 0).astype(np.int64)
    n1 = np.clip(np.rint(n * p - s.g), 0, n).astype(np.int64)
    n_error = s.h_error / h + 2 * ROUNDING * n + 1e-9
    n1_error = s.g_error + p * n_error + ROUNDING * n
    off = np.abs(s.h / h - n), np.abs(n * p - s.g - n1)
    clear = np.maximum(n_error, n1_error) < CLEAR
    if not clear.any() or ((off[0] > n_error) | (off[1] > n1_error) | (n < 1))[clear].any():
        return None
    chance = tries * float(np.prod(2 * n_error[clear]) * np.prod(2 * n1_error[clear]))
    n, n1 = np.where(clear, n, UNKNOWN), np.where(clear, n1, UNKNOWN)
    return FirstTree(p, n, n1, chance) if chance < CHANCE else None


def find_first_tree(statistics: LeafStatistics) -> FirstTree | None:
    """Return the counts of a tree with unknown base score, None unless exactly one fits.

    1, 2, 3, ... rows are tried in the smallest leaf. Each choice gives the hessian of a row and the
    rows of all leaves, which must be whole; root G then gives p. Nothing is looked for among more
    than `MOST_SCORES` choices, which leaves of about the same H leave.
    """
    s = statistics
    if len(s.h) < 2 or not (s.h > 0).all():
        return None
    rows, tries = _whole_rows(s)
    scores = list(islice(_base_scores(s, rows), MOST_SCORES + 1))
    found: list[FirstTree] = []
    for p in scores if len(scores) <= MOST_SCORES else ():
        fit = counts_at(s, p, tries)
        if fit is not None and not any(
            np.array_equal(fit.n, f.n) and np.array_equal(fit.n1, f.n1) for f in found
        ):
            found.append(fit)
    return found[0] if len(found) == 1 else None


def _whole_rows(s: LeafStatistics) -> tuple[Floats, float]:
    """Return rows of the root for which every leaf's are whole, and how many choices were tried.

    The rows tried in the smallest leaf are those some base score allows, and no more than leave the
    rows of every leaf `CLEAR`: a million at most.
    """
    least, low = int(np.argmin(s.h)), s.scale * LEAST_SHARE * (1 - LEAST_SHARE)
    ratio, relative = s.h / s.h[least], s.h_error / s.h
    error = ratio * (relative[least] + relative + 2 * ROUNDING)  # for each row of the smallest leaf
    first = max(int(np.floor(s.h[least] / (0.25 * s.scale) * (1 - 1e-5))), 1)
    most = int(min(s.h[least] / low + 1, CLEAR / error.max()))
    tried = np.arange(first, most + 1, dtype=np.float64)
    rows, fits = np.zeros(len(tried)), tried
    for j in np.argsort(s.h):  # each leaf leaves fewer choices
        n = np.rint(ratio[j] * fits)
        whole = np.abs(ratio[j] * fits - n) <= error[j] * fits + 1e-9
        rows, fits = (rows + n)[whole], fits[whole]
    return rows, float(len(tried))


def _base_scores(s: LeafStatistics, rows: Floats) -> Iterator[float]:
    """Yield p for which the hessian of a row and the root's N1 fit its rows.

    ``scale p (1-p)`` is the root's H over its rows within its error, and N1 is whole.
    """
    g, variance = float(s.g.sum()), s.h.sum() / rows / s.scale
    error = variance * (float(s.h_error.sum() / s.h.sum()) + 2 * ROUNDING)
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
