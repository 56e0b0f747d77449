"""Score rows that an attack returns as certain: how many are right, how many are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts, bin_rows


@dataclass(frozen=True)
class ReturnedRows:
    """Returned rows against true ones, matched one to one on every bin and the label.

    Attributes
    ----------
    right : float
        Share of the true rows that were returned, right in every bin and the label.
    wrong : float or None
        Share of the returned rows that match no true row (left); None where none was returned.
    owned : float or None
        Share of the true rows that were returned with their owner; None where no owner was named.
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
    """Match returned rows with the victims' on (bins, label).

    Parameters
    ----------
    returned : Table
        m rows.
    truth : mapping of str to Table
        Rows of every victim by party name.
    cuts : Cuts
        Bins of the training run; a missing value is a bin of its own.
    owner : sequence of str, length m, optional
        Who is said to hold each returned row.

    Raises
    ------
    DataError
        If there is no true row, or not one owner per row.
    """
    n = sum(map(len, truth.values()))
    if n == 0:
        raise DataError("no true rows to score against")
    if owner is not None and len(owner) != len(returned):
        raise DataError(f"{len(owner)} owners for {len(returned)} returned rows")
    keys = _keys(returned, cuts)
    held = [(name, key) for name, table in truth.items() for key in _keys(table, cuts)]
    right = (Counter(keys) & Counter(key for _, key in held)).total()
    owned = None
    if owner is not None:
        owned = (Counter(zip(owner, keys, strict=True)) & Counter(held)).total() / n
    wrong = 1 - right / len(keys) if keys else None
    return ReturnedRows(right / n, wrong, owned, len(keys))


def _keys(table: Table, cuts: Cuts) -> list[bytes]:
    """Return bins and label of every row as bytes."""
    codes = bin_rows(table.X, cuts).codes.astype(np.int64)
    missing = np.isnan(table.X)
    rows = np.column_stack([np.where(missing, -1, codes), table.y.astype(np.int64)])
    return [row.tobytes() for row in rows]
