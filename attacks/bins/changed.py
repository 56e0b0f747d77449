"""Infer bins of rows from sums that a passive party's defenses made noisy or suppressed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from fedtrees.attacks.evidence.subsets import Column
from fedtrees.core.channel import Change, chained

SWEEPS = 12
_STEP = 0.5  # damping of a sweep, without which nodes of few rows oscillate
_LEAST = 1e-6  # smallest variance, in squared gradients
Floats = NDArray[np.float64]


def shares_of_changed(
    column: Column, changes: Sequence[Change], unit: float, sweeps: int = SWEEPS
) -> Floats:
    """Return the probability of every bin for every row.

    The start is a least-squares solution over all nodes of all trees, weighted by the variance that
    the channel states. Sweeps of a mean-field approximation then use that a row is in exactly one
    bin. Cells of zeros are ignored if bins of few rows are suppressed.

    Parameters
    ----------
    column : Column
        Sums of one column.
    changes : sequence of Change
        Mechanisms applied to the sums.
    unit : float
        Number of units per gradient.
    sweeps : int
        Number of mean-field sweeps.

    Returns
    -------
    float64 array, shape (N, B + 1)
        The last column, no value, is 0.
    """
    law = chained(changes)
    n = len(column.allowed)
    A = np.zeros((len(column.nodes), n, column.nodes[0].brings.shape[1]))
    for at, node in enumerate(column.nodes):
        A[at, node.rows] = node.brings / unit
    sums = np.stack([node.sums[:-1] for node in column.nodes]) / unit  # (nodes, B, s)
    mean, variance = (sums, np.zeros(sums.shape)) if law is None else law.error(sums)
    weight = 1 / np.maximum(variance, _LEAST)
    if law is None or law.hides or len(changes) > 1:
        weight = weight * (sums != 0).any(axis=2, keepdims=True)
    start = column.allowed[:, :-1] / column.allowed[:, :-1].sum(axis=1, keepdims=True)
    shares = np.clip(_least_squares(A, mean, weight, start), 1e-4, None) * (start > 0)
    shares /= shares.sum(axis=1, keepdims=True)
    statistics = [np.ascontiguousarray(A[:, :, s]) for s in range(A.shape[2])]
    parts = [(a, a**2) for a in statistics]
    for _ in range(sweeps):
        log_odds = np.where(start > 0, _odds(parts, mean, weight, shares), -np.inf)
        now = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
        shares += _STEP * (now / now.sum(axis=1, keepdims=True) - shares)
    return np.column_stack([shares, np.zeros(n)])


def _least_squares(A: Floats, mean: Floats, weight: Floats, start: Floats) -> Floats:
    """Return the posterior mean of shares whose prior variance is that of one draw of a bin."""
    out, flat = start.copy(), A.transpose(0, 2, 1).reshape(-1, A.shape[1])  # (nodes s, n)
    before = gram = np.zeros(0)
    for b in range(start.shape[1]):
        w = weight[:, b].reshape(-1)
        free = np.maximum(start[:, b] * (1 - start[:, b]), 1e-9)
        if not np.array_equal(w, before):
            is_released = w > 0
            before, gram = w, (flat[is_released] * w[is_released, None]).T @ flat[is_released]
        off = flat.T @ (w * (mean[:, b].reshape(-1) - flat @ start[:, b]))
        out[:, b] += solve(gram + np.diag(1 / free), off, assume_a="pos")
    return out


def _odds(
    parts: Sequence[tuple[Floats, Floats]], mean: Floats, weight: Floats, p: Floats
) -> Floats:
    """Return log odds of rows being in bins, (n, B), given the present shares of other rows.

    `parts` contains the row statistics in each node, (nodes, n), and their squares, for every
    statistic.
    """
    log_odds = np.zeros(p.shape)
    for s, (a, square) in enumerate(parts):
        rest = mean[:, :, s] - a @ p  # (nodes, B)
        with np.errstate(divide="ignore"):
            w = 1 / (1 / weight[:, :, s] + square @ (p * (1 - p)))
        log_odds += a.T @ (w * rest) + square.T @ w * (p - 0.5)
    return log_odds
