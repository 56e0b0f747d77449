"""Enumeration of all tables with a few rows of binary columns, with their prior probabilities.

Tables are distributed by rows over clients, or partitioned vertically among several parties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.claims import ColumnBins, Guess, Labels
from fedtrees.core.errors import check_whole
from fedtrees.core.local_data import LocalData, client_names, over_clients
from fedtrees.core.schema import Feature, Schema, Table

#: Probability that the label equals the first column. Columns are 0 or 1 with equal probability.
#: Because label and column are dependent, an adversary without a view can predict something, as
#: with every real table.
AGREES = 0.65
#: Largest number of tables. The enumeration of more tables would take hours.
MOST_TABLES = 20_000


@dataclass(frozen=True)
class TinyTables:
    """All T tables of binary columns and a binary label that are partitioned among clients by rows.

    Rows are independent and identically distributed. Tables that differ only in the order of the
    rows of a client are enumerated once.

    Parameters
    ----------
    columns : int
        Number of binary columns, from 1 to 6. A row has one of V = 2^(columns + 1) types.
    rows : tuple of int
        Number of rows of each client, from 1 to 6.
    agrees : float
        Probability that the label equals the first column.

    Raises
    ------
    UsageError
        If the number of columns or rows is out of range, or there are more than `MOST_TABLES`
        tables.

    Examples
    --------
    Two clients with one row each, of one column and a label, have 4 * 4 tables:

    >>> tables = TinyTables(columns=1, rows=(1, 1))
    >>> len(tables.weight), round(float(tables.weight.sum()), 12)
    (16, 1.0)
    """

    columns: int = 2
    rows: tuple[int, ...] = (2, 2)
    agrees: float = AGREES

    def __post_init__(self) -> None:
        check_whole("columns", self.columns, 1, 6)
        for n in self.rows:
            check_whole("rows", n, 1, 6)
        sizes = [_multisets(2 ** (self.columns + 1), n) for n in self.rows]
        check_whole("tables", prod(sizes), 1, MOST_TABLES)

    @property
    def holders(self) -> int:
        """Number of parties with data."""
        return len(self.rows)

    @property
    def schema(self) -> Schema:
        """Schema with binary columns, which is public, and a label of two classes."""
        binary = {"categories": ("0", "1"), "low": 0, "high": 1, "complete": True}
        columns = (Feature(f"x{c}", "categorical", **binary) for c in range(self.columns))  # type: ignore[arg-type]
        return Schema(tuple(columns), "y")

    @cached_property
    def types(self) -> NDArray[np.int64]:
        """Columns and label of every row type, int64, shape (V, columns + 1)."""
        return np.array(list(product((0, 1), repeat=self.columns + 1)))

    @cached_property
    def prior(self) -> NDArray[np.float64]:
        """Probability of every row type, float64, shape (V,)."""
        same = self.types[:, 0] == self.types[:, -1]
        chance = np.where(same, self.agrees, 1 - self.agrees)
        return np.asarray(chance / 2**self.columns, dtype=np.float64)

    @cached_property
    def row_types(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows of every client, for each of the T tables."""
        types = range(len(self.types))
        return list(product(*(combinations_with_replacement(types, n) for n in self.rows)))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows of every type at every client, int64, shape (T, n_clients, V)."""
        V = len(self.types)
        counted = [[np.bincount(part, minlength=V) for part in table] for table in self.row_types]
        return np.array(counted, dtype=np.int64)

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.array([prod(map(self._chance, table)) for table in self.row_types])

    def _chance(self, part: Sequence[int]) -> float:
        # Multinomial probability: the number of distinct orders times the probability of one.
        orders = factorial(len(part)) // prod(factorial(k) for k in Counter(part).values())
        return orders * float(self.prior[list(part)].prod())

    def local_data(self, table: int) -> Mapping[str, LocalData]:
        """Return the local data of each client for one table."""
        return over_clients([self.table_of(part) for part in self.row_types[table]])

    def table_of(self, part: Sequence[int]) -> Table:
        """Return a table with one row for each of the given types."""
        rows = self.types[list(part)]
        return Table(rows[:, :-1].astype(np.float32), rows[:, -1])

    def places(self, principals: Sequence[str]) -> int:
        """Return the number of rows that the principals know by id, which is 0."""
        return 0

    def victims(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of the victims' rows of every type, int64, shape (T, V)."""
        victim_indices = [
            k for k, n in enumerate(client_names(len(self.rows))) if n not in principals
        ]
        return np.asarray(self.counts[:, victim_indices].sum(axis=1), dtype=np.int64)

    def encode_local_data(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of the principals' rows of every type, int64, shape (T, V)."""
        return np.asarray(self.counts.sum(axis=1) - self.victims(principals), dtype=np.int64)


def _multisets(types: int, rows: int) -> int:
    """Return the number of multisets of `rows` elements of `types` types."""
    return prod(range(types, types + rows)) // factorial(rows)


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
    def row_types(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows of each of the T tables, in the order of the row ids."""
        return [(rows,) for rows in product(range(len(self.types)), repeat=self.rows[0])]

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.asarray(self.prior[self._types].prod(axis=1), dtype=np.float64)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        """Types of all rows, shape (T, n)."""
        return np.array(self.row_types)[:, 0]

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

    def _encode_columns(self, columns: NDArray[np.intp]) -> NDArray[np.int64]:
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
        codes = self._encode_columns(columns)[:, :, None] == np.arange(2 ** len(columns))
        return np.asarray(codes.reshape(len(codes), -1), dtype=np.int64)

    def encode_local_data(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the columns of the principals in every row as one number, int64, shape (T, n)."""
        local_columns = [
            self._columns_of_party[n] for n in principals if n in self._columns_of_party
        ]
        return self._encode_columns(np.concatenate([np.zeros(0, dtype=np.intp), *local_columns]))

    def encode_claims(
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
