"""Label spreading: propagate the known labels of a few rows over the record-id graph."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.twins import Twins

ALPHA = 0.99
STEPS = 50


def spread(twins: Twins, known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return class shares of every group by label spreading (Zhou et al. 2004, random walk).

    Parameters
    ----------
    twins : Twins
        The record-id graph with S groups of rows.
    known : float64 array, shape (S, K)
        Number of known rows of each class in each group.

    Returns
    -------
    float64 array, shape (S, K)
        Shares that add up to 1. They are equal if no known row is connected to the group. All
        classes have the same total weight, independently of the number of their known rows.
    """
    K = known.shape[1]
    # Normalise per class, so that a frequent class does not dominate.
    source = known / np.maximum(known.sum(axis=0), 1.0) / twins.weight[:, None]
    seen = twins.leaf >= 0
    inverse = 1.0 / np.maximum(twins.degree, 1.0)[:, None]
    scores = source.copy()
    for _ in range(STEPS):
        per_leaf = twins.per_leaf(twins.weight[:, None] * scores) * twins.eta[twins.tree][:, None]
        per_leaf = np.vstack([per_leaf, np.zeros((1, K))])
        walked = per_leaf[np.where(seen, twins.leaf, len(twins.tree))].sum(axis=1) * inverse
        scores = ALPHA * walked + (1 - ALPHA) * source
    total = scores.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, scores / np.where(total > 0, total, 1.0), 1.0 / K))
