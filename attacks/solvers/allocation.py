"""Distribute totals: integers in proportion to weights, and vectors of a given sum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def largest_remainder(weights: Floats, total: int) -> Ints:
    """Distribute the integer ``total`` in proportion to ``weights`` (largest remainder method).

    Negative weights count as 0. If all weights are 0, the parts are equal. For example,
    ``largest_remainder(np.array([1.0, 1.0, 2.0]), 5)`` gives 1, 1 and 3.
    """
    w = np.maximum(weights, 0.0)
    if total <= 0 or w.shape[0] == 0:
        return np.zeros(w.shape[0], dtype=np.int64)
    top = float(w.max())
    # normalise first, because very small weights would overflow below
    w = w / top if top > 1e-300 else np.ones_like(w)
    w = w * (total / w.sum())
    low = np.floor(w).astype(np.int64)
    rest = int(total - low.sum())
    low[np.argsort(-(w - low), kind="stable")[:rest]] += 1
    return low


def project_to_sum(x: Floats, n: float) -> Floats:
    """Return the closest non-negative vector of positive sum n (Held, Wolfe and Crowder 1974)."""
    down = np.sort(x)[::-1]
    excess = (np.cumsum(down) - n) / np.arange(1, len(x) + 1)
    return np.maximum(x - excess[np.flatnonzero(down - excess > 0)[-1]], 0.0)
