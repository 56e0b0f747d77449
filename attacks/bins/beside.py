"""Estimate true bins under randomised response from rows with similar values in other columns."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.statistics import middle_ranks

Floats = NDArray[np.float64]
#: Number of columns that are tried, most correlated ones first.
_COLUMNS = 3
#: Neighbours of a row, in halves of a bin's rows; widths of the kernel over bins; weights of the
#: overall distribution.
_ROWS, _SPREADS, _SHARES = (1, 2, 4), (0.01, 1.0, 2.0), (0.02, 0.1, 0.3)
_FEWEST = 5


def likeliest(said: NDArray[np.int64], bins: int, odds: float, own: Floats) -> NDArray[np.int64]:
    """Return the most probable true bin of every row, given the reported bins.

    The prior of a row's bin is a mixture of two distributions, both corrected for randomised
    response: that of rows with similar values in one other column, and that of all rows. The column
    and the mixture that maximise the likelihood of the reports are used.

    Parameters
    ----------
    said : int64 array, shape (n,)
        Reported bins, 0 to `bins` - 1.
    bins : int
        Number of bins.
    odds : float
        Odds of reporting the true bin against each other bin.
    own : float64 array, shape (n, c)
        Other columns of the same rows.
    """
    n = len(said)
    all_rows = _true(np.bincount(said, minlength=bins)[None] / n, odds)
    rows, answer = np.arange(n), np.ones((n, bins))
    answer[rows, said] = odds
    best, most_probable = -np.inf, np.zeros(n, dtype=np.int64)
    for expected in (np.repeat(all_rows, n, axis=0), *_beside(said, bins, odds, own, all_rows)):
        expected_reports = expected[rows, said]
        likelihood = float(np.log(odds * expected_reports + 1 - expected_reports).sum())
        if likelihood > best:
            best, most_probable = likelihood, (answer * expected).argmax(axis=1)
    return most_probable


def _beside(
    reported: NDArray[np.int64], bins: int, odds: float, features: Floats, all_rows: Floats
) -> Iterator[Floats]:
    """Yield candidate prior distributions of the true bins, shape (n, bins)."""
    n, ranks = len(reported), np.array([middle_ranks(x) for x in features.T if np.ptp(x) > 0])
    along = np.abs(
        [np.corrcoef(rank, reported)[0, 1] for rank in ranks] if np.ptp(reported) else []
    )
    one_hot = np.eye(bins)[reported]
    apart = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    for rank in ranks[np.argsort(-along)[:_COLUMNS]]:
        order, place = np.argsort(rank, kind="stable"), np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        reached = np.vstack([np.zeros(bins), one_hot[order].cumsum(axis=0)])
        for times in _ROWS:
            m = max(n * times // (2 * bins), _FEWEST)
            low, high = np.maximum(place - m, 0), np.minimum(place + m + 1, n)
            near = _true(
                (reached[high] - reached[low] - one_hot) / np.maximum(high - low - 1, 1)[:, None],
                odds,
            )
            for spread in _SPREADS:
                weight = np.exp(-0.5 * (apart / spread) ** 2)
                smooth = near @ (weight / weight.sum(axis=0)).T
                for share in _SHARES:
                    yield (1 - share) * smooth + share * all_rows


def _true(reported: Floats, odds: float) -> Floats:
    """Return the distribution of true bins for that of reported bins, shape (k, bins)."""
    true = np.maximum((reported * (odds + reported.shape[1] - 1) - 1) / (odds - 1), 1e-12)
    return np.asarray(true / true.sum(axis=1, keepdims=True))
