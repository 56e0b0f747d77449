"""Errors of reconstructed rows of categorical tables: mean, worst row, inliers and outliers.

The figures follow Gorgé et al. (2025), who reconstruct binary tables from random forests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.guessing.matching import assign, mismatch_counts


@dataclass(frozen=True, eq=False)
class RowErrors:
    """Errors of matched rows (Gorgé et al. 2025). Labels are not compared.

    Attributes
    ----------
    mean : float
        Share of wrong cells (Hamming error after matching).
    right : float
        Share of rows without a wrong cell.
    worst : float
        Share of wrong cells in the worst row.
    inliers, outliers : float or None
        Share of wrong cells in the inliers and in the outliers of an isolation forest. None if
        there are no such rows.
    """

    mean: float
    right: float
    worst: float
    inliers: float | None
    outliers: float | None


def row_errors(
    guess: Table, truth: Table, inlier: NDArray[np.bool_], told: Sequence[int] = ()
) -> RowErrors:
    """Match guessed with true rows by their features, and compute the errors of the true rows.

    Parameters
    ----------
    guess : Table
        m rows of category codes. Only the first n are used.
    truth : Table
        n true rows. All cells of an unmatched row are wrong.
    inlier : bool array, shape (n,)
        Result of `inliers`.
    told : sequence of int
        Columns that the adversary knew. They are used for the matching, and do not count as errors
        or as cells.

    Returns
    -------
    errors : RowErrors
        Shares of wrong cells.

    Raises
    ------
    DataError
        If there is no true row, or the numbers of columns differ.
    """
    if not len(truth):
        raise DataError("no true rows to score against")
    n, d = truth.X.shape
    guessed = guess.X[: min(len(guess), n)]
    cost = mismatch_counts(truth.X, guessed, np.zeros(d))
    pair = assign(cost)
    wrong = np.ones(n)
    matched = pair >= 0
    unknown_columns = np.setdiff1d(np.arange(d), told)
    # Known columns took part in the matching, and only the remaining columns count as errors.
    if len(unknown_columns) < d:
        cost = mismatch_counts(
            truth.X[:, unknown_columns], guessed[:, unknown_columns], np.zeros(len(unknown_columns))
        )
    wrong[matched] = cost[np.flatnonzero(matched), pair[matched]] / len(unknown_columns)
    parts = [float(wrong[m].mean()) if m.any() else None for m in (inlier, ~inlier)]
    return RowErrors(
        float(wrong.mean()), float((wrong == 0).mean()), float(wrong.max()), parts[0], parts[1]
    )


def inliers(truth: Table) -> NDArray[np.bool_]:
    """Return which rows are inliers of an isolation forest that is fitted to them, bool (n,).

    As in Gorgé et al. (2025), the forest has the default parameters of scikit-learn and the random
    state 0, and inliers have a positive decision function.
    """
    return np.frombuffer(_inliers(truth.X.tobytes(), *truth.X.shape, truth.X.dtype.str), dtype=bool)


@lru_cache(maxsize=16)
def _inliers(rows: bytes, n: int, width: int, kind: str) -> bytes:
    """Compute `inliers` as bytes. The result is cached, because all attacks use the same rows."""
    from sklearn.ensemble import IsolationForest

    X = np.frombuffer(rows, dtype=kind).reshape(n, width)
    decision = IsolationForest(random_state=0).fit(X).decision_function(X)
    return np.asarray(decision > 0).tobytes()
