"""Others' rows as a threat tells them: all but one attribute."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.core.view import View


@dataclass(frozen=True, eq=False)
class Told:
    """Others' rows as a threat tells them.

    `rows`: n rows with labels, missing values in the sensitive attribute.
    `ids`: int64 array, shape (n,).
    `columns`: Of the attribute.
    """

    rows: Table
    ids: NDArray[np.int64]
    columns: tuple[int, ...]

    @staticmethod
    def of(view: View) -> "Told | None":
        """Return what a view tells, None unless all attributes but one and all labels are."""
        if view.entries is None or view.known is None or not len(view.entries):
            return None
        given, X = view.entries.of_all_rows
        ids = np.unique(view.entries.ids)
        left = [a for a in view.schema.attributes if not np.isin(a, given).any()]
        order = np.argsort(view.known.ids)
        if len(left) != 1 or not np.array_equal(view.known.ids[order], ids):
            return None
        whole = np.full((len(ids), len(view.schema.features)), np.nan, dtype=np.float32)
        whole[:, given] = X
        return Told(Table(whole, view.known.table.y[order]), ids, left[0])
