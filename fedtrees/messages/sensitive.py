"""Rows that are told but for one attribute, and what is guessed of it without a transcript."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.guess import Entries
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.tolerance import SIGMA_SHARE
from fedtrees.trees.imputer import Imputer, decoded


@dataclass(frozen=True, eq=False)
class Told:
    """Others' rows as a threat tells them.

    Attributes
    ----------
    rows : Table
        n rows with labels, missing values in the sensitive attribute.
    ids : int64 array, shape (n,)
    columns : tuple of int
        Of the attribute.
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

    def claimed(
        self, view: View, chances: NDArray[np.float64], values: NDArray[np.float32]
    ) -> Entries:
        """Return the values that chances make likely; numbers may be off as `entries_close` is."""
        several = len(self.columns) > 1 or view.schema.categorical[self.columns[0]]
        guess = decoded(chances, values, 0.0 if several else SIGMA_SHARE)
        c = len(self.columns)
        return Entries("", np.repeat(self.ids, c), np.tile(self.columns, len(self.ids)),
                       guess.reshape(-1).astype(np.float64))  # fmt: skip


def imputed(view: View) -> Entries | None:
    """Return what own rows alone say of the sensitive attribute, None where none is."""
    told = Told.of(view)
    if told is None:
        return None
    imputer = Imputer(view.rows, view.schema, told.columns)
    return told.claimed(view, imputer.chances(told.rows, imputer.values), imputer.values)
