"""Which way rows go at a split, by the training rows that are most like them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NEAREST = 15
_PSEUDO_ROWS = 2.0  # of all that came by, beside the nearest
_MOST_ROWS = 4000  # training rows that are looked at


class NearRows:
    """Training rows, the nearest first, by columns that one party has of them and of others.

    Columns are scaled to deviation 1; what is missing is the mean.

    `train`: float32 array, shape (N, c). Of more than 4,000 every so manieth is taken.
    `asked`: float32 array, shape (n, c).
    `weight`: float array, shape (c,). Of each column in squared distances; None: 1.
    """

    def __init__(
        self,
        train: NDArray[np.floating[Any]],
        asked: NDArray[np.floating[Any]],
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        self.taken = np.arange(0, len(train), max(len(train) // _MOST_ROWS, 1))
        some = train[self.taken].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            centre, scale = np.nanmean(some, axis=0), np.nanstd(some, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        if weight is not None:
            scale /= np.sqrt(weight)
        a, b = (np.nan_to_num((X - centre) / scale) for X in (some, asked.astype(np.float64)))
        apart = (b**2).sum(1)[:, None] - 2 * b @ a.T + (a**2).sum(1)
        self.order = np.argsort(apart, axis=1, kind="stable")

    def left(self, goes: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return the probability that each row goes left if it comes by, float64, shape (n,).

        `goes`: int8 array, shape (N,). 1: a training row went left; 0: right; -1: was not there.
        """
        there = goes >= 0
        share = float((goes[there] == 1).mean()) if there.any() else 0.5
        found = goes[self.taken][self.order]
        near = (found >= 0) & (np.cumsum(found >= 0, axis=1) <= _NEAREST)
        lefts = (near & (found == 1)).sum(axis=1)
        odds: NDArray[np.float64] = (lefts + _PSEUDO_ROWS * share) / (
            near.sum(axis=1) + _PSEUDO_ROWS
        )
        return odds
