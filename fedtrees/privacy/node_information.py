"""What membership in a node tells of a row's label (Takahashi et al. 2023, Corollary 1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr


def node_information(counts: NDArray[Any], totals: NDArray[Any]) -> NDArray[np.float64]:
    """Return the bound on the information that membership in nodes gives, nats, shape (...).

    `counts`: int array, shape (..., K). Rows of each class in the nodes.
    `totals`: int array, shape (K,). All training rows of each class.
    """
    prior = totals / totals.sum()
    worst = np.zeros(counts.shape[:-1])
    for rows in (counts, totals - counts):
        n = rows.sum(axis=-1, keepdims=True)
        shares = rows / np.maximum(n, 1)
        divergence = np.zeros(worst.shape)
        for k, share in enumerate(prior):  # one after the other, on every processor
            divergence += rel_entr(shares[..., k], share)
        np.maximum(worst, np.where(n[..., 0] > 0, divergence, 0.0), out=worst)
    return worst
