"""Label information that membership in a node reveals (Takahashi et al. 2023, Corollary 1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr


def node_information(counts: NDArray[Any], totals: NDArray[Any]) -> NDArray[np.float64]:
    """Bound the mutual information of a row's label and its membership in a node.

    The bound is the larger one of two Kullback-Leibler divergences from the label distribution of
    all rows: that of the rows in the node, and that of the rows outside.

    Parameters
    ----------
    counts : int array, shape (..., K)
        Number of rows of each class in the nodes.
    totals : int array, shape (K,)
        Number of all training rows of each class.

    Returns
    -------
    bound : float64 array, shape (...)
        In nats. A node or complement without rows has divergence 0.
    """
    prior = totals / totals.sum()
    largest = np.zeros(counts.shape[:-1])
    for rows in (counts, totals - counts):
        n = rows.sum(axis=-1, keepdims=True)
        shares = rows / np.maximum(n, 1)
        divergence = np.zeros(largest.shape)
        for k, share in enumerate(prior):  # in this order, so that rounding is the same everywhere
            divergence += rel_entr(shares[..., k], share)
        np.maximum(largest, np.where(n[..., 0] > 0, divergence, 0.0), out=largest)
    return largest
