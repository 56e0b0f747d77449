"""Combine noisy counts of a column's cells with prior knowledge."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.allocation import project_to_sum, share_out

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


def likely_counts(
    noisy: Longs, local_counts: Longs, n: int, variance: float
) -> tuple[Longs, float]:
    """Return the likely number of rows in every cell, and the reliability of the counts.

    The prior shares of the cells are those of the local rows plus one row that is spread over all
    cells. With m such rows, a count has the prior variance ``n p (1-p) (1 + n/m)``. The noisy count
    is weighted by the share of this variance in the sum of prior variance and noise variance. The
    result is projected to non-negative counts with sum n (Wang et al. 2020, Norm-Sub).

    The noisy counts are those of the n victims' rows whose value is present, and the local counts
    are not contained in them (int64, shape (k,) each). ``variance`` is that of the noise on one
    count, in squared rows.

    Returns
    -------
    counts : int64 array, shape (k,)
        Counts with sum n.
    reliability : float
        Mean weight of the noisy counts over rows, 0 to 1.
    """
    m = int(local_counts.sum()) + 1
    # one additional row, spread over all cells, excludes zero probabilities
    p = (local_counts + 1 / len(local_counts)) / m
    spread = n * p * (1 - p) * (1 + n / m)
    believed = spread / np.maximum(spread + variance, np.finfo(np.float64).tiny)
    mean = n * p + believed * (noisy - n * p)
    return share_out(project_to_sum(mean, n), n), float(p @ believed)
