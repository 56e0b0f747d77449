"""Errors of reconstructed rows one by one: mean, worst, of ordinary and of odd rows."""

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
    """How wrong matched rows are, as Gorgé et al. (2025) count it: labels do not matter."""

    mean: float  # share of wrong cells: the matched Hamming error
    right: float  # share of rows without any
    worst: float  # share of wrong cells of the worst row
    # inliers, outliers: mean over rows that an isolation forest finds ordinary, and over the
    # others; None where there are no such rows
    inliers: float | None
    outliers: float | None


def row_errors(
    guess: Table, truth: Table, inlier: NDArray[np.bool_], told: Sequence[int] = ()
) -> RowErrors:
    """Match guessed with true rows by their features alone, and tell the errors of true rows.

    Raises `DataError`: no true rows, or widths differ.

    `guess`: m rows of zeros and ones, or of codes. Where m > n the first n count.
    `truth`: n rows. One that no guessed row is matched with is wrong throughout.
    `inlier`: bool array, shape (n,). From `inliers`.
    `told`: Columns that were known beforehand: rows are matched by them too, errors are of the
    others.
    """
    if not len(truth):
        raise DataError("no true rows to score against")
    n, d = truth.X.shape
    guessed = guess.X[: min(len(guess), n)]
    cost = mismatch_counts(truth.X, guessed, np.zeros(d))
    pair = assign(cost)
    wrong = np.ones(n)
    matched = pair >= 0
    left = np.setdiff1d(np.arange(d), told)
    if len(left) < d:
        cost = mismatch_counts(truth.X[:, left], guessed[:, left], np.zeros(len(left)))
    wrong[matched] = cost[np.flatnonzero(matched), pair[matched]] / len(left)
    parts = [float(wrong[m].mean()) if m.any() else None for m in (inlier, ~inlier)]
    return RowErrors(
        float(wrong.mean()), float((wrong == 0).mean()), float(wrong.max()), parts[0], parts[1]
    )


def inliers(truth: Table) -> NDArray[np.bool_]:
    """Return which rows an isolation forest of those rows finds ordinary, bool, shape (n,).

    As Gorgé et al. (2025): scikit-learn's defaults, random state 0, decision function above 0.
    """
    return np.frombuffer(_inliers(truth.X.tobytes(), *truth.X.shape, truth.X.dtype.str), dtype=bool)


@lru_cache(maxsize=16)
def _inliers(rows: bytes, n: int, width: int, kind: str) -> bytes:
    """Return them as bytes, kept: every attack of a run is scored against the same rows."""
    from sklearn.ensemble import IsolationForest

    X = np.frombuffer(rows, dtype=kind).reshape(n, width)
    found = IsolationForest(random_state=0).fit(X).decision_function(X)
    return np.asarray(found > 0).tobytes()
