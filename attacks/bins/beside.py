"""Which bins rows have that are next to one another in another column."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.statistics import middle_ranks

Floats = NDArray[np.float64]
#: Columns that are tried, those that go along most first.
_COLUMNS = 3
#: Rows beside one, in half of a bin's; bins over which theirs are spread; shares of all rows' bins.
_ROWS, _SPREADS, _SHARES = (1, 2, 4), (0.01, 1.0, 2.0), (0.02, 0.1, 0.3)
_FEWEST = 5


def likeliest(said: NDArray[np.int64], bins: int, odds: float, own: Floats) -> NDArray[np.int64]:
    """Return the likeliest true bin of every row, given those that were told.

    A row's bin is expected to be as those of the rows next to it in one column, less what
    randomised response adds, and as those of all. Column and shares are those under which each
    row's answer is likeliest by the others'.

    Parameters
    ----------
    said : int64 array, shape (n,)
        Bins that were told, 0 to `bins` - 1.
    odds : float
        Of the true bin against each other one, in an answer.
    own : float64 array, shape (n, c)
        Other columns of the same rows.
    """
    n = len(said)
    all_rows = _true(np.bincount(said, minlength=bins)[None] / n, odds)
    rows, answer = np.arange(n), np.ones((n, bins))
    answer[rows, said] = odds
    best, found = -np.inf, np.zeros(n, dtype=np.int64)
    for expected in (np.repeat(all_rows, n, axis=0), *_beside(said, bins, odds, own, all_rows)):
        told = expected[rows, said]
        likelihood = float(np.log(odds * told + 1 - told).sum())
        if likelihood > best:
            best, found = likelihood, (answer * expected).argmax(axis=1)
    return found


def _beside(
    said: NDArray[np.int64], bins: int, odds: float, own: Floats, all_rows: Floats
) -> Iterator[Floats]:
    """Yield shares of true bins that are expected of every row, shape (n, bins)."""
    n, ranks = len(said), np.array([middle_ranks(x) for x in own.T if np.ptp(x) > 0])
    along = np.abs([np.corrcoef(rank, said)[0, 1] for rank in ranks] if np.ptp(said) else [])
    told = np.eye(bins)[said]
    apart = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    for rank in ranks[np.argsort(-along)[:_COLUMNS]]:
        order, place = np.argsort(rank, kind="stable"), np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        reached = np.vstack([np.zeros(bins), told[order].cumsum(axis=0)])
        for times in _ROWS:
            m = max(n * times // (2 * bins), _FEWEST)
            low, high = np.maximum(place - m, 0), np.minimum(place + m + 1, n)
            near = _true(
                (reached[high] - reached[low] - told) / np.maximum(high - low - 1, 1)[:, None], odds
            )
            for spread in _SPREADS:
                weight = np.exp(-0.5 * (apart / spread) ** 2)
                smooth = near @ (weight / weight.sum(axis=0)).T
                for share in _SHARES:
                    yield (1 - share) * smooth + share * all_rows


def _true(told: Floats, odds: float) -> Floats:
    """Return shares of true bins, given those of answers, shape (k, bins)."""
    true = np.maximum((told * (odds + told.shape[1] - 1) - 1) / (odds - 1), 1e-12)
    return np.asarray(true / true.sum(axis=1, keepdims=True))
