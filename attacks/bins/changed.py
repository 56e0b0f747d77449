"""Bins of rows off sums that a passive party's defenses changed: noisy, or suppressed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.subsets import Column, NodeSums
from fedtrees.core.channel import Change, chained

SWEEPS = 30
#: Of what a sweep finds anew: nodes of one row each would swing otherwise.
STEP = 0.5
Floats = NDArray[np.float64]


def shares_of_changed(column: Column, changes: Sequence[Change], unit: float) -> Floats:
    """Return the shares of all rows in bins, float64, (N, B + 1), last: no value.

    Expectation propagation in its simplest form: the sum of a cell, less what the other rows are
    expected to bring, is normal about what a row brings if it is there, else about 0. The variance
    is the channel's, and what is open of the others. Cells of zeros, where few rows are suppressed,
    say nothing.

    `unit`: Of sums.
    """
    law = chained(changes)
    hides = law is None or law.hides or len(changes) > 1
    shares = column.allowed / column.allowed.sum(axis=1, keepdims=True)
    logs = np.log(np.maximum(shares, 1e-300))
    told = []
    for node in column.nodes:
        sums, brings = node.sums[:-1] / unit, node.brings / unit
        mean, variance = (sums, np.zeros(sums.shape)) if law is None else law.error(sums)
        silent = (sums == 0).all(axis=1) if hides else np.zeros(len(sums), dtype=bool)
        told.append((node, brings, mean, variance + 1e-9, silent))
    for _ in range(SWEEPS):
        found = logs.copy()
        for node, brings, mean, variance, silent in told:
            found[node.rows, :-1] += _odds(
                shares[node.rows, :-1], brings, mean, variance, silent
            )
        found -= found.max(axis=1, keepdims=True)
        now = np.exp(found)
        now /= now.sum(axis=1, keepdims=True)
        shares = shares + STEP * (now - shares)
    return shares


def _odds(p: Floats, brings: Floats, mean: Floats, variance: Floats, silent: Floats) -> Floats:
    """Return log odds that rows of a node are in its bins, (m, B).

    `p`: What is thought so far, (m, B).
    """
    expected = np.einsum("mb,ms->bs", p, brings)
    open_ = np.einsum("mb,ms->bs", p * (1 - p), brings**2)
    x = brings[:, None, :]
    rest = mean - expected + p[..., None] * x
    spread = variance + np.maximum(open_ - (p * (1 - p))[..., None] * x**2, 0.0)
    found = ((rest - x / 2) * x / spread).sum(axis=-1)
    return np.where(silent, 0.0, found)
