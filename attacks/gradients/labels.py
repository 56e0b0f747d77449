"""Count the rows of each class in a batch from the gradient of the output bias."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def restored_counts(bias: NDArray[Any], probability: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """Return the number of rows of each class, int64, shape (K,), with sum `rows`.

    For example, a mean probability of 0.5 and a bias gradient of -0.25 give a share of 0.75, and 6
    of 8 rows.

    Parameters
    ----------
    bias : float array, shape (K,)
        Gradient of the output bias: mean probability less share of rows, for each class.
    probability : float array, shape (K,)
        Mean prediction of the network, for likely rows or for found rows.
    rows : int
        Number of rows of the batch.

    Notes
    -----
    Yin et al. (2021) count labels in this way, with a bound in place of the predictions.
    """
    share = np.clip(np.asarray(probability, np.float64) - np.asarray(bias, np.float64), 0, None)
    exact = rows * share / max(share.sum(), 1e-12)
    counts = np.floor(exact).astype(np.int64)
    # largest remainders, so that the counts add up
    behind = np.argsort(-(exact - counts), kind="stable")
    counts[behind[: rows - counts.sum()]] += 1
    return counts
