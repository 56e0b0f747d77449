"""Score rows that an attack returns as certain: how many are right, how many are not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts, bin_rows

#: Of the range of numeric targets, how far one may be off that was read off.
TARGET_ERROR = 1e-4


@dataclass(frozen=True)
class ReturnedRows:
    """Returned rows against true ones, matched one to one on every bin and the label."""

    right: float  # share of the true rows that were returned, right in every bin and the label
    # share of the returned rows that match no true row (left); None where none was returned
    wrong: float | None
    # share of the true rows that were returned with their owner; None where no owner was named
    owned: float | None
    returned: int  # number of returned rows


def score_returned_rows(
    returned: Table,
    truth: Mapping[str, Table],
    cuts: Cuts,
    owner: Sequence[str] | None = None,
) -> ReturnedRows:
    """Match returned rows with the victims' on (bins, label).

    Raises `DataError` if there is no true row, or not one owner per row.

    `returned`: m rows.
    `truth`: Rows of every victim by party name.
    `cuts`: Bins of the training run; a missing value is a bin of its own.
    `owner`: Who is said to hold each returned row.
    """
    n = sum(map(len, truth.values()))
    if n == 0:
        raise DataError("no true rows to score against")
    if owner is not None and len(owner) != len(returned):
        raise DataError(f"{len(owner)} owners for {len(returned)} returned rows")
    y = np.unique(np.concatenate([table.y for table in truth.values()]))
    keys = _keys(returned, cuts, y)
    held = [(name, key) for name, table in truth.items() for key in _keys(table, cuts, y)]
    right = (Counter(keys) & Counter(key for _, key in held)).total()
    owned = None
    if owner is not None:
        owned = (Counter(zip(owner, keys, strict=True)) & Counter(held)).total() / n
    wrong = 1 - right / len(keys) if keys else None
    return ReturnedRows(right / n, wrong, owned, len(keys))


def _keys(table: Table, cuts: Cuts, labels: NDArray[Any]) -> list[bytes]:
    """Return bins and label of every row as bytes; of a number, which of the true ones it is."""
    codes = bin_rows(table.X, cuts).codes.astype(np.int64)
    missing = np.isnan(table.X)
    y = table.y if labels.dtype.kind == "i" else _which(table.y.astype(np.float64), labels)
    rows = np.column_stack([np.where(missing, -1, codes), y.astype(np.int64)])
    return [row.tobytes() for row in rows]


def _which(y: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of the true target that each number is, -1 where it is none."""
    at = np.searchsorted((targets[1:] + targets[:-1]) / 2, y)
    return np.where(np.abs(y - targets[at]) <= TARGET_ERROR * np.ptp(targets), at, -1)
