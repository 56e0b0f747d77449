"""Merge independent reconstructions: match them row to row, and vote on every value.

Chains share the label and the first tree's leaf of every row, so rows are matched inside those
blocks. Consensus raises matched scores without any information (about two points on random
draws), so it must be compared with a blind adversary that uses it too.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.evidence.prior import Prior
from fedtrees.core.schema import Schema, Table

Floats = NDArray[np.float64]

TOLERANCE = 0.319  # of sigma: the tolerance of the reconstruction accuracy (Vero et al. 2023)
ROUNDS = 2
LARGEST_BLOCK = 60  # as the blind adversary's small blocks; the order inside is random


def chains_for(n: int) -> int:
    """Return how many chains to merge for n rows, so that the work stays bounded."""
    return int(np.clip(100_000 // max(n, 1), 5, 20))


def tolerances(prior: Prior, schema: Schema) -> Floats:
    """Return the difference below which two values count as one, float64, shape (d,).

    From own rows, or from the range where there are none (sigma of a uniform).
    """
    sigma = (prior.high - prior.low) / np.sqrt(12)
    if len(prior.own) > 1:
        known = ~np.isnan(prior.own.X).all(axis=0)
        sigma[known] = np.nanstd(prior.own.X[:, known].astype(np.float64), axis=0)
    return np.where(schema.categorical, 0.0, TOLERANCE * sigma)


def merge(samples: list[Table], block: NDArray[np.int64], tolerance: Floats) -> Table:
    """Return the matched consensus of tables whose rows agree on label and block.

    Row ``i`` is in ``block[i]`` (int64, shape (n,)) in all of them; ``tolerance`` is float64, shape
    (d,).
    """
    if len(samples) == 1 or len(block) == 0:
        return samples[-1]
    X = np.stack([s.X for s in samples]).astype(np.float64)
    out = X[-1].copy()
    for b in np.unique(block):
        rows = np.flatnonzero(block == b)
        for part in np.array_split(rows, -(-len(rows) // LARGEST_BLOCK)):
            out[part] = _merge_block(X[:, part], tolerance)
    return Table(out.astype(np.float32), samples[-1].y)


def _merge_block(X: Floats, tolerance: Floats) -> Floats:
    scale = np.where(tolerance > 0, 2 * tolerance, 1e-9)
    reference = X[-1]
    for _ in range(ROUNDS):
        matched = np.empty_like(X)
        for s in range(len(X)):
            matched[s] = X[s][linear_sum_assignment(_costs(reference, X[s], scale))[1]]
        reference = _vote(matched, tolerance)
    return reference


@njit(cache=True)
def _costs(A, B, scale):  # type: ignore[no-untyped-def]
    """Return the summed distance of rows, each feature capped at 1, shape (len(A), len(B))."""
    out = np.zeros((A.shape[0], B.shape[0]))
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            total = 0.0
            for f in range(A.shape[1]):
                a, b = A[i, f], B[j, f]
                if np.isnan(a) or np.isnan(b):
                    total += 0.0 if np.isnan(a) and np.isnan(b) else 1.0
                else:
                    total += min(abs(a - b) / scale[f], 1.0)
            out[i, j] = total
    return out


@njit(cache=True)
def _vote(X, tolerance):  # type: ignore[no-untyped-def]
    """Return per slot and feature the value with most others within the tolerance."""
    samples, n, d = X.shape
    out = np.empty((n, d))
    for i in range(n):
        for f in range(d):
            best = -1
            for s in range(samples):
                votes = 0
                for t in range(samples):
                    a, b = X[s, i, f], X[t, i, f]
                    votes += abs(a - b) <= tolerance[f] or (np.isnan(a) and np.isnan(b))
                if votes > best:
                    best = votes
                    out[i, f] = X[s, i, f]
    return out
