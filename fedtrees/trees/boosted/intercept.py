"""The base score that XGBoost estimates from labels, also for a party that lacks a class."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.losses import Logistic, Objective, Softmax, log_shares, sigmoid

INTERCEPTS = ("mean", "newton")

# XGBoost's smallest distance of a probability from 0 and 1 before it computes log-odds.
_LEAST = np.float32(1e-6)


def estimated_score(
    objective: Objective, sums: NDArray[np.float64], how: str = "mean"
) -> NDArray[np.float32]:
    """Return the base score that XGBoost estimates from labels, in its units, float32, shape (K,).

    It is a probability for ``binary:logistic``, possibly 0 or 1. For further objectives it consists
    of margins.

    Parameters
    ----------
    objective : Objective
        The objective.
    sums : float64 array, shape (m,)
        Result of `Objective.target_sums`, summed over parties.
    how : {"mean", "newton"}
        - ``mean``: the label mean, as in XGBoost 3.2. With more than two classes, the centred
          logarithms of the class shares.
        - ``newton``: one Newton step from margin 0, as in XGBoost 2.1. With more than two classes,
          0.5.

    Raises
    ------
    DataError
        If no row has a positive weight.
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

    As in XGBoost, a probability of 0 or 1 is replaced by one at a distance of 1e-6. The log-odds
    are then -13.8 or 13.8.
    """
    if isinstance(objective, Logistic):
        score = np.clip(score, _LEAST, np.float32(1) - _LEAST)
    return objective.base_margin(score)
