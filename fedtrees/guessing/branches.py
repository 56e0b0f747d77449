"""Predict which way rows go at a split from the most similar training rows.

In vertical federated learning, a party sees the splits of other parties only as a split of the rows
into left and right. It can estimate the branch of a new row from the branches of training rows that
are similar in the columns that it knows. The attack `path-restriction` and the blind baseline of
the metric `branches` use this estimate.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NEAREST = 15
# Weight of the share of all training rows at the node, in rows. It smooths the local share.
_PSEUDO_ROWS = 2.0
_MOST_ROWS = 4000  # the training rows are thinned to about this number


class NearRows:
    """Training rows, sorted by their distance to every row to predict.

    Distances are Euclidean. Columns are scaled to standard deviation 1 over the training rows, and
    missing values are replaced by the mean.

    Parameters
    ----------
    train : float array, shape (N, c)
        Training rows. From 8,000 rows on, only every ``N // 4000``-th row is used.
    asked : float array, shape (n, c)
        Rows to predict.
    weight : float64 array, shape (c,), optional
        Weight of each column. Scales are divided by its square root, so that squared distances are
        multiplied by the weight. None: every weight is 1.
    """

    def __init__(
        self,
        train: NDArray[np.floating[Any]],
        asked: NDArray[np.floating[Any]],
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        self.taken = np.arange(0, len(train), max(len(train) // _MOST_ROWS, 1))
        sample = train[self.taken].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            centre, scale = np.nanmean(sample, axis=0), np.nanstd(sample, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        if weight is not None:
            scale /= np.sqrt(weight)
        a, b = (np.nan_to_num((X - centre) / scale) for X in (sample, asked.astype(np.float64)))
        distance = (b**2).sum(1)[:, None] - 2 * b @ a.T + (a**2).sum(1)
        self.order = np.argsort(distance, axis=1, kind="stable")

    def left(self, goes: NDArray[np.int8]) -> NDArray[np.float64]:
        """Estimate the probability that each row goes left if it reaches a node.

        The estimate, float64 of shape (n,), is the share of the 15 nearest training rows at the
        node that went left, smoothed with the share of all training rows at the node. It is 0.5 if
        no training row reaches the node. `goes`, int8 of shape (N,), is the branch of every
        training row: 1 left, 0 right, -1 if it does not reach the node.
        """
        reached = goes >= 0
        share = float((goes[reached] == 1).mean()) if reached.any() else 0.5
        branch = goes[self.taken][self.order]
        near = (branch >= 0) & (np.cumsum(branch >= 0, axis=1) <= _NEAREST)
        n_left = (near & (branch == 1)).sum(axis=1)
        probability: NDArray[np.float64] = (n_left + _PSEUDO_ROWS * share) / (
            near.sum(axis=1) + _PSEUDO_ROWS
        )
        return probability
