"""Enumeration of all small tables that are vertically partitioned among several parties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.bounds.tables import MOST_TABLES, TinyTables
from fedtrees.core.errors import check_whole
from fedtrees.core.guess import ColumnBins, Guess, Labels
from fedtrees.core.local_data import LocalData


@dataclass(frozen=True)
class AlignedTables(TinyTables):
    """All tables of binary columns that several parties share by columns, aligned by row ids.

    An adversary with columns guesses row by row: the labels if it has none, and otherwise the
    columns of the remaining parties. An adversary without data, for example a coordinator, guesses
    complete rows without their order, as in `TinyTables`.

    Further parameters and errors are those of `TinyTables`.

    Parameters
    ----------
    rows : tuple of int
        The number n of rows, from 1 to 12, as a tuple with one element.
    names : tuple of str
        Names of the parties. The first one has the labels and the last columns. The remaining
        parties have the first columns, in this order.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("columns", self.columns, 1, 6)
        (n,) = self.rows
        check_whole("rows", n, 1, 12)
        check_whole("tables", 2 ** ((self.columns + 1) * n), 1, MOST_TABLES)

    @property
    def holders(self) -> int:
        """Number of parties with data."""
        return len(self.names)

    @cached_property
    def held(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows of each of the T tables, in the order of the row ids."""
        return [(rows,) for rows in product(range(len(self.types)), repeat=self.rows[0])]

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.asarray(self.prior[self._types].prod(axis=1), dtype=np.float64)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        """Types of all rows, shape (T, n)."""
        return np.array(self.held)[:, 0]

    @cached_property
    def _columns_of_party(self) -> dict[str, NDArray[np.intp]]:
        """Columns of each party. The number ``self.columns`` denotes the label."""
        # The last part of the columns goes to the party with the labels, together with the label.
        first, *other_parties = self.names
        *parts, last = np.array_split(np.arange(self.columns), len(self.names))
        return {
            first: np.append(last, self.columns),
            **dict(zip(other_parties, parts, strict=True)),
        }

    def local_data(self, table: int) -> Mapping[str, LocalData]:
        """Return the local data of each party for one table."""
        rows, ids, parts = self.types[self._types[table]], np.arange(self.rows[0]), {}
        for name, columns in self._columns_of_party.items():
            features = columns[columns < self.columns]
            y = None if len(features) == len(columns) else rows[:, -1]
            parts[name] = LocalData(ids, features, rows[:, features].astype(np.float32), y)
        return parts

    def places(self, principals: Sequence[str]) -> int:
        """Return the number of rows that the principals know by id, 0 if they have no data."""
        return self.rows[0] if {*principals} & {*self.names} else 0

    def _guessed_columns(self, principals: Sequence[str]) -> NDArray[np.intp]:
        """Return the columns that the principals guess: only the label if they do not have it."""
        local_columns = [
            self._columns_of_party[n] for n in principals if n in self._columns_of_party
        ]
        unknown = np.setdiff1d(np.arange(self.columns + 1), np.concatenate(local_columns))
        return unknown[-1:] if self.columns in unknown else unknown

    def _coded(self, columns: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the columns of every row as one binary number, shape (T, n)."""
        powers: NDArray[np.int64] = 2 ** np.arange(len(columns))[::-1]
        return np.asarray((self.types[:, columns] @ powers)[self._types], dtype=np.int64)

    def victims(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the true values of the guessed columns in one-hot coding, int64, shape (T, V).

        Each row has one block of ``V / n`` entries with a single 1. If the principals have no data,
        the entries are the numbers of rows of each type, as in `TinyTables.victims`.
        """
        if not self.places(principals):
            return super().victims(principals)
        columns = self._guessed_columns(principals)
        codes = self._coded(columns)[:, :, None] == np.arange(2 ** len(columns))
        return np.asarray(codes.reshape(len(codes), -1), dtype=np.int64)

    def own(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the columns of the principals in every row as one number, int64, shape (T, n)."""
        local_columns = [
            self._columns_of_party[n] for n in principals if n in self._columns_of_party
        ]
        return self._coded(np.concatenate([np.zeros(0, dtype=np.intp), *local_columns]))

    def named(
        self, principals: Sequence[str], guess: Guess, blind: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Convert the claims of an attack to the coding of `victims`.

        The result, int64 of shape (V,), contains one guess for every row.

        Parameters
        ----------
        principals : sequence of str
            Parties of the adversary.
        guess : Guess
            Claims `Labels` and `ColumnBins` are used.
        blind : float64 array, shape (V,)
            Posterior probabilities given only the local data of the principals. They determine the
            rows and columns without a claim, and the class of a cluster without probabilities.
        """
        columns = self._guessed_columns(principals)
        # Start with the most probable value of every row, and overwrite it by the claims.
        chance = blind.reshape(self.rows[0], -1)
        code = chance.argmax(axis=1)
        for labels in guess.all(Labels):
            code[labels.ids] = _classes_of_clusters(labels, np.log(chance + 1e-12))
        for bins in (b for b in guess.all(ColumnBins) if b.feature in columns):
            bit = 2 ** int(len(columns) - 1 - np.searchsorted(columns, bins.feature))
            ids = bins.ids[bins.bin >= 0]
            code[ids] = code[ids] & ~bit | bit * (bins.bin[bins.bin >= 0] > 0)
        return np.asarray((code[:, None] == np.arange(chance.shape[1])).ravel(), dtype=np.int64)


def _classes_of_clusters(labels: Labels, log_blind: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the claimed class of every row.

    If the claim has no probabilities, each cluster gets the class that is most likely given the
    local data.
    """
    if labels.probability is not None:
        return np.asarray(labels.probability.argmax(axis=1), dtype=np.int64)
    classes = np.zeros(len(labels.ids), dtype=np.int64)
    for cluster in np.unique(labels.cluster):
        members = labels.cluster == cluster
        classes[members] = log_blind[labels.ids[members]].sum(axis=0).argmax()
    return classes
