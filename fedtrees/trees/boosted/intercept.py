"""Where XGBoost starts boosting by itself, also where an owner lacks a class."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.losses import Logistic, Objective, Softmax, log_shares, sigmoid

INTERCEPTS = ("mean", "newton")

# What XGBoost keeps a probability from 0 and 1 by before it takes log-odds.
_LEAST = np.float32(1e-6)


def estimated_score(
    objective: Objective, sums: NDArray[np.float64], how: str = "mean"
) -> NDArray[np.float32]:
    """Return the base score XGBoost estimates from labels, in its units, float32, shape (K,).

    A probability for ``binary:logistic``, 0 and 1 included; margins otherwise.

    Raises `DataError` if there is no row of any weight.

    `sums`: float64 array, shape (m,). `Objective.target_sums`.
    `how`: {"mean", "newton"}. The label mean as XGBoost 3.2 takes it (of more than two classes, the
    centred logarithms of their shares), or one Newton step from margin 0 as 2.1 does (more than
    two classes: 0.5).
    """
    if not sums[1:].sum() > 0:
        raise DataError("no training row, or none of any weight; there is no base score to take")
    if isinstance(objective, Logistic):
        mean = sums[2] / sums[1:].sum()
        if how == "newton":
            return sigmoid(np.array([4 * (mean - 0.5)], dtype=np.float32))
        return np.array([mean], dtype=np.float32)
    if isinstance(objective, Softmax):
        if how == "newton":
            return np.full(objective.n_outputs, 0.5, dtype=np.float32)
        return log_shares(sums[1:])
    return objective.start(sums)


def start_margin(objective: Objective, score: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the margins of a base score in XGBoost's units, float32, shape (K,).

    As in XGBoost, a probability of 0 or 1 is taken for one of 1e-6 from it: log-odds of -13.8 or
    13.8.
    """
    if isinstance(objective, Logistic):
        score = np.clip(score, _LEAST, np.float32(1) - _LEAST)
    return objective.base_margin(score)
