"""How many rows of each class a batch has, off the gradient of the output bias."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def restored_counts(bias: NDArray[Any], probability: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """Return the number of rows of each class, int64, shape (K,), `rows` in all.

    `bias`: float array, shape (K,). Gradient of the output bias: mean probability less share of
    rows, class by class.
    `probability`: float array, shape (K,). What the network predicts on average: of rows as they
    may be, or as they were found.

    Notes
    -----
    As Yin et al. (2021) count labels, with predictions in place of a bound on them.
    """
    share = np.clip(np.asarray(probability, np.float64) - np.asarray(bias, np.float64), 0, None)
    exact = rows * share / max(share.sum(), 1e-12)
    counts = np.floor(exact).astype(np.int64)
    behind = np.argsort(-(exact - counts), kind="stable")
    counts[behind[: rows - counts.sum()]] += 1
    return counts
