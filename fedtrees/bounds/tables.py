"""Enumeration of all tables with a few rows of binary columns, with their prior probabilities."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

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
    def held(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows of every client, for each of the T tables."""
        types = range(len(self.types))
        return list(product(*(combinations_with_replacement(types, n) for n in self.rows)))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows of every type at every client, int64, shape (T, n_clients, V)."""
        V = len(self.types)
        counted = [[np.bincount(part, minlength=V) for part in table] for table in self.held]
        return np.array(counted, dtype=np.int64)

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.array([prod(map(self._chance, table)) for table in self.held])

    def _chance(self, part: Sequence[int]) -> float:
        # Multinomial probability: the number of distinct orders times the probability of one.
        orders = factorial(len(part)) // prod(factorial(k) for k in Counter(part).values())
        return orders * float(self.prior[list(part)].prod())

    def local_data(self, table: int) -> Mapping[str, LocalData]:
        """Return the local data of each client for one table."""
        return over_clients([self.table_of(part) for part in self.held[table]])

    def table_of(self, part: Sequence[int]) -> Table:
        """Return a table with one row for each of the given types."""
        rows = self.types[list(part)]
        return Table(rows[:, :-1].astype(np.float32), rows[:, -1])

    def types_of(self, table: Table) -> NDArray[np.int64]:
        """Return the nearest type of every row, int64, shape (n,). A missing value counts as 0."""
        rows = np.column_stack([np.nan_to_num(table.X) > 0.5, table.y > 0.5])
        powers: NDArray[np.int64] = 2 ** np.arange(self.columns + 1)[::-1]
        return np.asarray(rows @ powers, dtype=np.int64)

    def places(self, principals: Sequence[str]) -> int:
        """Return the number of rows that the principals know by id, which is 0."""
        return 0

    def victims(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of the victims' rows of every type, int64, shape (T, V)."""
        victim_indices = [
            k for k, n in enumerate(client_names(len(self.rows))) if n not in principals
        ]
        return np.asarray(self.counts[:, victim_indices].sum(axis=1), dtype=np.int64)

    def own(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of the principals' rows of every type, int64, shape (T, V)."""
        return np.asarray(self.counts.sum(axis=1) - self.victims(principals), dtype=np.int64)


def _multisets(types: int, rows: int) -> int:
    """Return the number of multisets of `rows` elements of `types` types."""
    return prod(range(types, types + rows)) // factorial(rows)
