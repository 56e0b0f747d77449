"""Errors of reconstructed rows, and scores of rows that an attack returns as certain.

The errors of rows of categorical tables (mean, worst row, inliers and outliers) follow Gorgé et al.
(2025), who reconstruct binary tables from random forests. Rows that are returned as certain are
compared with the victims' rows bin by bin (metric `returned-rows`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.trees.binning import Cuts, bin_rows


def row_errors(
    guess: Table, truth: Table, inlier: NDArray[np.bool_], known_columns: Sequence[int] = ()
) -> dict[str, Any]:
    """Match guessed with true rows by their features (Gorgé et al. 2026), ignoring labels.

    Parameters
    ----------
    guess : Table
        m rows of category codes. Only the first n are used.
    truth : Table
        n true rows. All cells of an unmatched row are wrong.
    inlier : bool array, shape (n,)
        Result of `inliers`.
    known_columns : sequence of int
        Columns that the adversary knew. They are used for the matching, and do not count as errors
        or as cells.

    Returns
    -------
    errors : dict of str to float or None
        ``row_error``: share of wrong cells (Hamming error). ``worst_row``: the same in the worst
        row. ``inlier_error``, ``outlier_error``: the same in inliers and outliers, None if there
        are none. ``right_rows``: share of rows without a wrong cell.

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
    unknown_columns = np.setdiff1d(np.arange(d), known_columns)
    # Known columns took part in the matching, and only the remaining columns count as errors.
    if len(unknown_columns) < d:
        cost = mismatch_counts(
            truth.X[:, unknown_columns], guessed[:, unknown_columns], np.zeros(len(unknown_columns))
        )
    wrong[matched] = cost[np.flatnonzero(matched), pair[matched]] / len(unknown_columns)
    parts = [float(wrong[m].mean()) if m.any() else None for m in (inlier, ~inlier)]
    return {
        "row_error": float(wrong.mean()), "worst_row": float(wrong.max()),
        "inlier_error": parts[0], "outlier_error": parts[1],
        "right_rows": float((wrong == 0).mean()),
    }  # fmt: skip


def inliers(truth: Table) -> NDArray[np.bool_]:
    """Return which rows are inliers of an isolation forest that is fitted to them, bool (n,).

    As in Gorgé et al. (2026), the forest has the default parameters of scikit-learn and the random
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


#: Largest error of a numeric target in a returned row, as a share of the range of true targets.
TARGET_ERROR = 1e-4


def score_returned_rows(
    returned: Table,
    truth: Mapping[str, Table],
    cuts: Cuts,
    owner: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Match returned rows with the victims' rows by all bins and the label.

    Parameters
    ----------
    returned : Table
        m returned rows.
    truth : mapping of str to Table
        True rows by victim.
    cuts : Cuts
        Bins of the training. Missing values form a separate bin.
    owner : sequence of str, length m, optional
        Claimed owner of every returned row.

    Returns
    -------
    scores : dict of str to float or None
        ``returned_rows``: number of returned rows. ``returned_right``: share of the true rows that
        were returned, matched one to one. ``returned_wrong``: share of the returned rows that match
        no true row, or only true rows that are matched already, None if no row was returned.
        ``returned_owned``: share of the true rows that were returned with their owner, None if no
        owners were claimed.

    Raises
    ------
    DataError
        If there is no true row, or the number of owners is not m.
    """
    n = sum(map(len, truth.values()))
    if n == 0:
        raise DataError("no true rows to score against")
    if owner is not None and len(owner) != len(returned):
        raise DataError(f"{len(owner)} owners for {len(returned)} returned rows")
    y = np.unique(np.concatenate([table.y for table in truth.values()]))
    keys = _keys(returned, cuts, y)
    owner_keys = [(name, key) for name, table in truth.items() for key in _keys(table, cuts, y)]
    # The intersection of multisets counts every true row at most once.
    right = (Counter(keys) & Counter(key for _, key in owner_keys)).total()
    owned = None
    if owner is not None:
        owned = (Counter(zip(owner, keys, strict=True)) & Counter(owner_keys)).total() / n
    wrong = 1 - right / len(keys) if keys else None
    return {
        "returned_rows": float(len(keys)), "returned_right": right / n,
        "returned_wrong": wrong, "returned_owned": owned,
    }  # fmt: skip


def _keys(table: Table, cuts: Cuts, labels: NDArray[Any]) -> list[bytes]:
    """Return bins and label of every row as bytes.

    A numeric target is replaced by the index of the true target that it equals.
    """
    codes = bin_rows(table.X, cuts).codes.astype(np.int64)
    # Missing values get the separate bin -1.
    missing = np.isnan(table.X)
    y = table.y if labels.dtype.kind == "i" else _which(table.y.astype(np.float64), labels)
    rows = np.column_stack([np.where(missing, -1, codes), y.astype(np.int64)])
    return [row.tobytes() for row in rows]


def _which(y: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the true target within `TARGET_ERROR` of each number, -1 if none is."""
    # Borders at the midpoints of neighbouring targets give the nearest target of every number.
    nearest = np.searchsorted((targets[1:] + targets[:-1]) / 2, y)
    return np.where(np.abs(y - targets[nearest]) <= TARGET_ERROR * np.ptp(targets), nearest, -1)
