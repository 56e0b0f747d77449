"""Scores of rows that an attack returns as certain, compared with the victims' rows bin by bin.

The metric `returned-rows` (`fedtrees.metrics.victims_rows`) uses them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts, bin_rows

#: Largest error of a numeric target in a returned row, as a share of the range of true targets.
TARGET_ERROR = 1e-4


@dataclass(frozen=True)
class ReturnedRows:
    """Scores of returned rows, matched one to one by all bins and the label.

    Attributes
    ----------
    right : float
        Share of the true rows that were returned.
    wrong : float or None
        Share of the returned rows that match no true row, or only true rows that are matched
        already. None if no row was returned.
    owned : float or None
        Share of the true rows that were returned with their owner. None if no owners were claimed.
    returned : int
        Number of returned rows.
    """

    right: float
    wrong: float | None
    owned: float | None
    returned: int


def score_returned_rows(
    returned: Table,
    truth: Mapping[str, Table],
    cuts: Cuts,
    owner: Sequence[str] | None = None,
) -> ReturnedRows:
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
    scores : ReturnedRows
        Shares of true and of returned rows.

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
    return ReturnedRows(right / n, wrong, owned, len(keys))


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
