"""Merge independent reconstructions: match them row to row, and vote on every value.

Chains share the label and the first tree's leaf of every row, so rows are matched inside those
blocks. Consensus raises matched scores without any information (about two points on random
draws), so it must be compared with a blind adversary that uses it too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.timberstrike.prior import Prior
from fedtrees.core.schema import Schema, Table

Floats = NDArray[np.float64]

TOLERANCE = 0.319  # of sigma: the tolerance of the reconstruction accuracy (Vero et al. 2023)
ROUNDS = 2
LARGEST_BLOCK = 500  # larger blocks are matched in parts; the order inside a block is random


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

    Parameters
    ----------
    samples : list of Table
        n rows each, row ``i`` of every table in the same block and with the same label.
    block : int64 array, shape (n,)
    tolerance : float64 array, shape (d,)
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
            cost = np.zeros((X.shape[1], X.shape[1]))
            for f in range(X.shape[2]):
                a, b = reference[:, None, f], X[s][None, :, f]
                gap = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b) / scale[f])
                cost += np.minimum(np.nan_to_num(gap, nan=1.0), 1.0)
            matched[s] = X[s][linear_sum_assignment(cost)[1]]
        reference = _vote(matched, tolerance)
    return reference


def _vote(X: Floats, tolerance: Floats) -> Floats:
    """Return per slot and feature the value with most others within the tolerance."""
    votes = np.zeros(X.shape)
    for other in X:
        votes += (np.abs(X - other) <= tolerance) | (np.isnan(X) & np.isnan(other))
    best = votes.argmax(axis=0)
    return np.take_along_axis(X, best[None], axis=0)[0]
