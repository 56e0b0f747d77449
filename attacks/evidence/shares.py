"""What each worker brought to a sum over a ring, as far as somebody saw enough hops of it."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.captured import HistogramSegment

#: How far numbers of rows and of positives may be from whole ones, in rows.
WHOLE = 0.02


def shares(segments: Iterable[HistogramSegment]) -> dict[str, NDArray[np.float64]]:
    """Return each worker's own numbers of one histogram, NaN where they do not follow.

    Of every part of a histogram, sums over some workers are seen: what one has more than another is
    of the workers that it has more, and of one alone if that is one.
    """
    segments = list(segments)
    ends = sorted({e for one in segments for e in (one.first, one.first + len(one.sums))})
    seen: dict[int, dict[frozenset[str], NDArray[np.float64]]] = defaultdict(dict)
    for one in segments:
        whose, parts = frozenset(one.parties.split(",")), [e for e in ends if e >= one.first]
        for first, end in pairwise(parts):
            if end <= one.first + len(one.sums):
                seen[first][whose] = one.sums[first - one.first : end - one.first]
    found: dict[str, NDArray[np.float64]] = {}
    for first, sums in seen.items():
        part = {frozenset[str](): np.zeros(1), **sums}
        for less, more in permutations(sorted(part, key=len), 2):
            if less < more and len(alone := more - less) == 1:
                own = found.setdefault(*alone, np.full(ends[-1], np.nan))
                span = slice(first, first + len(part[more]))
                if np.isnan(own[span]).any():
                    own[span] = part[more] - part[less]
    return found


def counts(own: NDArray[np.float64], start: float) -> NDArray[np.int64]:
    """Return rows and positives of every bin of a first tree's root, int64, (bins, 2); -1: unknown.

    Every row's gradient is then `start` less its label, and its hessian start (1 - start).

    `own`: float64 array, shape (2 bins,). Gradient and hessian of each bin, NaN where not seen.
    """
    g, h = own.reshape(-1, 2).T
    with np.errstate(over="ignore", invalid="ignore"):  # of sums that were garbled
        rows = h / (start * (1 - start))
        positives = rows * start - g
        told = np.stack([rows, positives], axis=1)
        near = np.rint(np.nan_to_num(told, nan=-1.0))
        sure = (np.abs(told - near) < WHOLE).all(axis=1)
    sure &= (near[:, 1] >= 0) & (near[:, 1] <= near[:, 0]) & (near[:, 0] < 1 << 40)
    return np.where(sure[:, None], near, -1).astype(np.int64)
