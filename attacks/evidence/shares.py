"""Separate the contributions of single workers from the partial sums of a ring reduction."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.captured import HistogramSegment

#: Largest distance of counts of rows and positives from integers, in rows.
WHOLE = 0.02


def shares(segments: Iterable[HistogramSegment]) -> dict[str, NDArray[np.float64]]:
    """Return each worker's numbers in one histogram, NaN where they cannot be determined.

    The observed messages contain sums over some of the workers. If the workers of one sum are those
    of another plus one, the difference is the contribution of this one worker.
    """
    segments = list(segments)
    ends = sorted({e for one in segments for e in (one.first, one.first + len(one.sums))})
    seen: dict[int, dict[frozenset[str], NDArray[np.float64]]] = defaultdict(dict)
    for one in segments:
        whose, parts = frozenset(one.parties.split(",")), [e for e in ends if e >= one.first]
        for first, end in pairwise(parts):
            if end <= one.first + len(one.sums):
                seen[first][whose] = one.sums[first - one.first : end - one.first]
    contributions: dict[str, NDArray[np.float64]] = {}
    for first, sums in seen.items():
        part = {frozenset[str](): np.zeros(1), **sums}
        for less, more in permutations(sorted(part, key=len), 2):
            if less < more and len(single := more - less) == 1:
                worker_sums = contributions.setdefault(*single, np.full(ends[-1], np.nan))
                span = slice(first, first + len(part[more]))
                if np.isnan(worker_sums[span]).any():
                    worker_sums[span] = part[more] - part[less]
    return contributions


def counts(bin_sums: NDArray[np.float64], start: float) -> NDArray[np.int64]:
    """Return rows and positives of every bin of the root of the first tree.

    The gradient of every row is then `start` less its label, and its hessian start (1 - start).

    Parameters
    ----------
    bin_sums : float64 array, shape (2 bins,)
        Gradient and hessian sums of each bin, NaN where they are not known.
    start : float
        Initial probability.

    Returns
    -------
    int64 array, shape (bins, 2)
        -1 where the sums are not known or do not give integers.
    """
    g, h = bin_sums.reshape(-1, 2).T
    with np.errstate(over="ignore", invalid="ignore"):  # of sums that were garbled
        rows = h / (start * (1 - start))
        positives = rows * start - g
        solved = np.stack([rows, positives], axis=1)
        # unknown sums become -1, which is rejected below
        near = np.rint(np.nan_to_num(solved, nan=-1.0))
        sure = (np.abs(solved - near) < WHOLE).all(axis=1)
    sure &= (near[:, 1] >= 0) & (near[:, 1] <= near[:, 0]) & (near[:, 0] < 1 << 40)
    return np.where(sure[:, None], near, -1).astype(np.int64)
