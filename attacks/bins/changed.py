"""Bins of rows off sums that a passive party's defenses changed: noisy, or suppressed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve

from fedtrees.attacks.evidence.subsets import Column
from fedtrees.core.channel import Change, chained

SWEEPS = 12
_STEP = 0.5  # of what a sweep finds anew: nodes of few rows would swing otherwise
_LEAST = 1e-6  # of a variance, in units of gradients
Floats = NDArray[np.float64]


def shares_of_changed(
    column: Column, changes: Sequence[Change], unit: float, sweeps: int = SWEEPS
) -> Floats:
    """Return the shares of all rows in bins, float64, (N, B + 1), last: no value.

    Least squares over all nodes of all trees, weighted by the variance that the channel states, and
    from there, in sweeps, what is expected of a row that is in one bin alone (mean field). Cells of
    zeros say nothing where few rows are suppressed.

    `unit`: Of sums.
    """
    law = chained(changes)
    n = len(column.allowed)
    A = np.zeros((len(column.nodes), n, column.nodes[0].brings.shape[1]))
    for at, node in enumerate(column.nodes):
        A[at, node.rows] = node.brings / unit
    told = np.stack([node.sums[:-1] for node in column.nodes]) / unit  # (nodes, B, s)
    mean, variance = (told, np.zeros(told.shape)) if law is None else law.error(told)
    weight = 1 / np.maximum(variance, _LEAST)
    if law is None or law.hides or len(changes) > 1:
        weight = weight * (told != 0).any(axis=2, keepdims=True)
    start = column.allowed[:, :-1] / column.allowed[:, :-1].sum(axis=1, keepdims=True)
    shares = np.clip(_least_squares(A, mean, weight, start), 1e-4, None) * (start > 0)
    shares /= shares.sum(axis=1, keepdims=True)
    brings = [np.ascontiguousarray(A[:, :, s]) for s in range(A.shape[2])]
    parts = [(a, a**2) for a in brings]
    for _ in range(sweeps):
        found = np.where(start > 0, _odds(parts, mean, weight, shares), -np.inf)
        now = np.exp(found - found.max(axis=1, keepdims=True))
        shares += _STEP * (now / now.sum(axis=1, keepdims=True) - shares)
    return np.column_stack([shares, np.zeros(n)])


def _least_squares(A: Floats, mean: Floats, weight: Floats, start: Floats) -> Floats:
    """Return what is expected of shares that vary about `start` as one draw of a bin does."""
    out, flat = start.copy(), A.transpose(0, 2, 1).reshape(-1, A.shape[1])  # (nodes s, n)
    before = gram = np.zeros(0)
    for b in range(start.shape[1]):
        w = weight[:, b].reshape(-1)
        free = np.maximum(start[:, b] * (1 - start[:, b]), 1e-9)
        if not np.array_equal(w, before):
            said = w > 0
            before, gram = w, (flat[said] * w[said, None]).T @ flat[said]
        off = flat.T @ (w * (mean[:, b].reshape(-1) - flat @ start[:, b]))
        out[:, b] += solve(gram + np.diag(1 / free), off, assume_a="pos")
    return out


def _odds(
    parts: Sequence[tuple[Floats, Floats]], mean: Floats, weight: Floats, p: Floats
) -> Floats:
    """Return log odds that rows are in bins, (n, B), given what is thought of the others.

    `parts`: What rows bring to nodes, (nodes, n), and its square, of every statistic.
    """
    found = np.zeros(p.shape)
    for s, (a, square) in enumerate(parts):
        rest = mean[:, :, s] - a @ p  # (nodes, B)
        with np.errstate(divide="ignore"):
            w = 1 / (1 / weight[:, :, s] + square @ (p * (1 - p)))
        found += a.T @ (w * rest) + square.T @ w * (p - 0.5)
    return found
