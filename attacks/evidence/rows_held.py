"""Estimate the number of rows of the victims."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedtrees.attacks.evidence.column import Column, fullest
from fedtrees.core.view import View


def not_held_out(view: View, n_local: int) -> int:
    """Return the estimated number of victims' rows that are not held out for validation."""
    return round((view.n_rows - n_local) * (1 - float(view.parameters["validation_fraction"])))


def victims_rows(view: View) -> int:
    """Return the number of rows of all victims together, as declared.

    The result is 0, meaning unknown, with early stopping, because rows are then held out.
    """
    if view.parameters.get("early_stopping_rounds"):
        return 0
    return view.n_rows - (0 if view.rows is None else len(view.rows))


def owners_rows(columns: Mapping[str, Sequence[Column]], together: int = 0) -> dict[str, int]:
    """Return an estimate of the number of rows of each owner.

    It is the number of values of its fullest column, plus a share of the remaining rows in the same
    proportion. ``together`` is the known number of rows of all owners, 0 if it is unknown.
    """
    counted_rows = np.array([fullest(parts) for parts in columns.values()], dtype=np.int64)
    rest = max(together - int(counted_rows.sum()), 0) if counted_rows.sum() else 0
    more = np.diff(
        np.rint(rest * np.cumsum(counted_rows) / max(counted_rows.sum(), 1)), prepend=0.0
    )
    return dict(zip(columns, (counted_rows + more.astype(np.int64)).tolist(), strict=True))
