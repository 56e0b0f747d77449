"""Combine several restarts into one batch, with the confidence of every cell."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.search import Found
from fedtrees.core.schema import Table
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.tolerance import SIGMA_SHARE
from fedtrees.neural.encoding import Encoding

#: Restarts whose loss exceeds this multiple of the best one are left out.
_STUCK = 1.5


def pooled(
    found: Found, encoding: Encoding, labels: NDArray[np.int64]
) -> tuple[Table, NDArray[np.float64]]:
    """Match the rows of all good restarts with those of the best one and vote for each cell.

    Parameters
    ----------
    found : Found
        Results of the restarts.
    encoding : Encoding
        Conversion of rows to inputs.
    labels : int64 array, shape (B,)
        Rows are matched with rows of the same label.

    Returns
    -------
    table : Table
        B rows.
    confidence : float64 array, shape (B, features)
        In schema order. For a category, 1 less the entropy of the mean shares relative to its
        largest value. For a number, exp(-s), with s its standard deviation over restarts.
    """
    order = np.argsort(found.loss, kind="stable")
    good = order[found.loss[order] <= _STUCK * max(found.loss[order[0]], 1e-6)]
    p, x = matched(found.weights[good], found.numbers[good], labels)
    tables = [
        Table(encoding.decode(codes_of(q, encoding), z), labels) for q, z in zip(p, x, strict=True)
    ]
    table = matched_consensus(
        tables, accepted(encoding), rounds=1, block=len(labels), groups=labels, start=tables[0]
    )
    confidence, mean = np.empty((len(labels), len(encoding.coded))), p.mean(axis=0)
    for g in encoding.groups:
        q = np.clip(mean[:, g], 1e-12, 1)
        share = -(q * np.log(q)).sum(axis=1) / np.log(max(len(g), 2))
        confidence[:, encoding.feature[g[0]]] = 1 - np.minimum(share, 1)
    k = encoding.feature[encoding.continuous]
    confidence[:, k] = np.exp(-x.std(axis=0))
    return Table(table.X, labels), confidence


def codes_of(shares: NDArray[np.float32], encoding: Encoding) -> NDArray[np.int64]:
    """Return the largest category of every group, int64, shape (B, categorical features)."""
    codes = np.empty((len(shares), len(encoding.groups)), dtype=np.int64)
    for k, g in enumerate(encoding.groups):
        codes[:, k] = shares[:, g].argmax(axis=1)
    return codes


def accepted(encoding: Encoding) -> NDArray[np.float64]:
    """Return the accepted error of each feature, float64, shape (d,). It is 0 for categories."""
    width = np.zeros(len(encoding.coded))
    k = encoding.continuous
    width[encoding.feature[k]] = SIGMA_SHARE * encoding.std[k]
    return width


def matched(
    weights: NDArray[np.float32], numbers: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return shares and numbers of all restarts, with rows in the order of the first one's.

    Parameters
    ----------
    weights : float32 array, shape (R, B, D)
        Shares of the categories.
    numbers : float32 array, shape (R, B, continuous features)
        Standardised numbers.
    labels : int64 array, shape (B,)
        Only rows of the same label are matched.
    """
    p, x = weights.copy(), numbers.copy()
    for r in range(1, len(p)):
        order = np.empty(len(labels), dtype=np.intp)
        for y in np.unique(labels):
            rows = np.flatnonzero(labels == y)
            shares = -(p[0][rows] @ p[r][rows].T)
            # a number counts no more than a category
            apart = np.abs(x[0][rows][:, None] - x[r][rows][None]).clip(max=1).sum(axis=2)
            a, b = linear_sum_assignment(shares + apart)
            order[rows[a]] = rows[b]
        p[r], x[r] = p[r][order], x[r][order]
    return p, x
