"""Every table that a few rows of binary columns can be, with its probability."""

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

#: The label is the first column with this probability, and columns are 0 or 1 alike: who sees
#: nothing knows something, as with every real table.
AGREES = 0.65
#: Tables of more than which an enumeration would take hours.
MOST_TABLES = 20_000


@dataclass(frozen=True)
class TinyTables:
    """All tables of some binary columns and a label, rows drawn independently over clients.

    Raises `UsageError` if there are no columns or rows, or more than `MOST_TABLES` tables.

    Parameters
    ----------
    columns : int
        Binary columns; a row is one of V = 2^(columns + 1) types.
    rows : tuple of int
        How many rows each client holds.
    agrees : float
        Probability that the label is the first column.
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
        """How many parties hold something."""
        return len(self.rows)

    @property
    def schema(self) -> Schema:
        """Columns of which everybody knows that they are 0 or 1, and a label of two classes."""
        of = {"categories": ("0", "1"), "low": 0, "high": 1, "complete": True}
        columns = (Feature(f"x{c}", "categorical", **of) for c in range(self.columns))  # type: ignore[arg-type]
        return Schema(tuple(columns), "y")

    @cached_property
    def types(self) -> NDArray[np.int64]:
        """Columns and label of every type of row, int64, shape (V, columns + 1)."""
        return np.array(list(product((0, 1), repeat=self.columns + 1)))

    @cached_property
    def prior(self) -> NDArray[np.float64]:
        """Probability of every type of row, float64, shape (V,)."""
        same = self.types[:, 0] == self.types[:, -1]
        chance = np.where(same, self.agrees, 1 - self.agrees)
        return np.asarray(chance / 2**self.columns, dtype=np.float64)

    @cached_property
    def held(self) -> list[tuple[tuple[int, ...], ...]]:
        """Types of the rows of every client, by table: T of them."""
        types = range(len(self.types))
        return list(product(*(combinations_with_replacement(types, n) for n in self.rows)))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of every type, int64, shape (T, clients, V)."""
        V = len(self.types)
        counted = [[np.bincount(part, minlength=V) for part in table] for table in self.held]
        return np.array(counted, dtype=np.int64)

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """Probability of every table, float64, shape (T,)."""
        return np.array([prod(map(self._chance, table)) for table in self.held])

    def _chance(self, part: Sequence[int]) -> float:
        orders = factorial(len(part)) // prod(factorial(k) for k in Counter(part).values())
        return orders * float(self.prior[list(part)].prod())

    def local_data(self, table: int) -> Mapping[str, LocalData]:
        """Return what each client holds of one table."""
        return over_clients([self.table_of(part) for part in self.held[table]])

    def table_of(self, part: Sequence[int]) -> Table:
        """Return rows of these types."""
        rows = self.types[list(part)]
        return Table(rows[:, :-1].astype(np.float32), rows[:, -1])

    def types_of(self, table: Table) -> NDArray[np.int64]:
        """Return the types that rows are nearest to, int64, shape (n,); no number is a 0."""
        rows = np.column_stack([np.nan_to_num(table.X) > 0.5, table.y > 0.5])
        places: NDArray[np.int64] = 2 ** np.arange(self.columns + 1)[::-1]
        return np.asarray(rows @ places, dtype=np.int64)

    def places(self, principals: Sequence[str]) -> int:
        """Return how many rows the principals know by id: none."""
        return 0

    def victims(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of every type that others than the principals hold, (T, V)."""
        others = [k for k, n in enumerate(client_names(len(self.rows))) if n not in principals]
        return np.asarray(self.counts[:, others].sum(axis=1), dtype=np.int64)

    def own(self, principals: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of every type that the principals hold, int64, shape (T, V)."""
        return np.asarray(self.counts.sum(axis=1) - self.victims(principals), dtype=np.int64)


def _multisets(types: int, rows: int) -> int:
    return prod(range(types, types + rows)) // factorial(rows)
