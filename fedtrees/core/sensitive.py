"""Background knowledge of attribute inference: the victims' rows without one attribute."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.core.view import View


@dataclass(frozen=True, eq=False)
class Told:
    """Rows of the victims of which the threat model declares all attributes but one known.

    Attributes
    ----------
    rows : Table
        n rows with labels. The values of the sensitive attribute are missing.
    ids : int64 array, shape (n,)
        Ids of the rows.
    columns : tuple of int
        Columns of the sensitive attribute.
    """

    rows: Table
    ids: NDArray[np.int64]
    columns: tuple[int, ...]

    @staticmethod
    def of(view: View) -> "Told | None":
        """Return the declared rows of a view.

        None unless the labels and exactly all attributes but one are declared for the same rows.
        """
        if view.entries is None or view.known is None or not len(view.entries):
            return None
        known_columns, X = view.entries.of_all_rows
        ids = np.unique(view.entries.ids)
        unknown_attributes = [
            a for a in view.schema.attributes if not np.isin(a, known_columns).any()
        ]
        order = np.argsort(view.known.ids)
        if len(unknown_attributes) != 1 or not np.array_equal(view.known.ids[order], ids):
            return None
        values = np.full((len(ids), len(view.schema.features)), np.nan, dtype=np.float32)
        values[:, known_columns] = X
        return Told(Table(values, view.known.table.y[order]), ids, unknown_attributes[0])
