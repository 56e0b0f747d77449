"""One batch out of several restarts, and how far they agree on every cell of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.search import Found
from fedtrees.neural.encoding import Encoding


def pooled(
    found: Found, encoding: Encoding, labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64]]:
    """Match the rows of all restarts with those of the best one and take medians cell by cell.

    Parameters
    ----------
    found : Found
    encoding : Encoding
    labels : int64 array, shape (B,)
        Rows are matched with rows of the same label.

    Returns
    -------
    codes : int64 array, shape (B, categorical features)
    numbers : float32 array, shape (B, continuous features)
        Standardised.
    confidence : float64 array, shape (B, features)
        In schema order: of a category 1 less the entropy of the shares' mean in units of its
        largest value; of a number exp(-s), s its standard deviation over restarts.
    """
    p, x = matched(found, labels)
    middle, mean = np.median(p, axis=0), p.mean(axis=0)
    codes = (
        np.stack([middle[:, g].argmax(axis=1) for g in encoding.groups], axis=1)
        if (encoding.groups)
        else np.zeros((len(labels), 0), np.int64)
    )
    confidence = np.empty((len(labels), len(encoding.coded)))
    for g in encoding.groups:
        q = np.clip(mean[:, g], 1e-12, 1)
        share = -(q * np.log(q)).sum(axis=1) / np.log(max(len(g), 2))
        confidence[:, encoding.feature[g[0]]] = 1 - np.minimum(share, 1)
    k = encoding.feature[encoding.continuous]
    confidence[:, k] = np.exp(-x.std(axis=0))
    return codes, np.median(x, axis=0).astype(np.float32), confidence


def matched(
    found: Found, labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return shares and numbers of all restarts, rows in the order of the best one's."""
    best = int(np.argmin(found.loss))
    p, x = found.weights.copy(), found.numbers.copy()
    for r in range(len(p)):
        if r == best:
            continue
        order = np.empty(len(labels), dtype=np.intp)
        for y in np.unique(labels):
            rows = np.flatnonzero(labels == y)
            a, b = linear_sum_assignment(_apart(found, best, r, rows))
            order[rows[a]] = rows[b]
        p[r], x[r] = p[r][order], x[r][order]
    return p, x


def _apart(found: Found, best: int, other: int, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return how far rows of two restarts are apart, shape (n, n)."""
    p, q = found.weights[best][rows], found.weights[other][rows]
    x, y = found.numbers[best][rows], found.numbers[other][rows]
    shares = -(p @ q.T)
    return np.asarray(shares + np.abs(x[:, None] - y[None]).clip(max=1).sum(axis=2))
