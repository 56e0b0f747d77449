"""What one party holds of a table: some of its rows, some of its columns, perhaps its labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema, Table, read_only


@dataclass(frozen=True, eq=False)
class LocalData:
    """A part of a table, as one party holds it.

    Raises `DataError` if the shapes do not fit, or an id stands twice.

    Attributes
    ----------
    ids : int64 array, shape (n,)
        Which rows: parties that hold other columns of the same rows name them by the same ids.
    columns : intp array, shape (c,)
        Which columns, as positions in the schema.
    X : float32 array, shape (n, c)
        Values; NaN marks a missing one.
    y : int64 or float64 array, shape (n,), or None
        Class codes or a numeric target; None: this party has no labels.
    weight : float32 array, shape (n,), or None
        Sample weights; None: every row counts 1.
    """

    ids: NDArray[np.int64]
    columns: NDArray[np.intp]
    X: NDArray[np.float32]
    y: NDArray[Any] | None = None
    weight: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        n, c = len(self.ids), len(self.columns)
        if np.shape(self.X) != (n, c):
            raise DataError(
                f"local data of {n} rows and {c} columns needs X ({n}, {c}); got {np.shape(self.X)}"
            )
        for name in ("y", "weight"):
            values = getattr(self, name)
            if values is not None and np.shape(values) != (n,):
                raise DataError(f"local data of {n} rows has {name} of shape {np.shape(values)}")
        rising = bool((self.ids[1:] > self.ids[:-1]).all())  # as they mostly are; takes no memory
        if not rising and len(np.unique(self.ids)) != n:
            raise DataError("local data names a row twice; give every row an id of its own")
        kinds = {"ids": np.int64, "columns": np.intp, "X": np.float32, "weight": np.float32}
        if self.y is not None:
            kinds["y"] = np.float64 if np.asarray(self.y).dtype.kind == "f" else np.int64
        for name, kind in kinds.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name), kind))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # arrays come out of a pickle writeable

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(table: Table, ids: NDArray[np.integer[Any]] | None = None) -> LocalData:
        """Return whole rows with labels as local data; ids count from 0 unless given."""
        n, d = table.X.shape
        rows = np.arange(n) if ids is None else ids.astype(np.int64)
        return LocalData(rows, np.arange(d), table.X, table.y, table.weight)

    def covers(self, schema: Schema) -> bool:
        """Tell whether these are whole rows of such a table, with their labels."""
        every = np.arange(len(schema.features))
        return self.y is not None and np.array_equal(self.columns, every)

    @property
    def table(self) -> Table:
        """The rows with their labels.

        Raises `DataError` if it has no labels.
        """
        if self.y is None:
            raise DataError("this party holds no labels; it has columns of rows alone")
        return Table(self.X, self.y, self.weight)


@dataclass(frozen=True, eq=False)
class KnownEntries:
    """Single values of others' training rows, as a threat declares them known.

    Attributes
    ----------
    ids : int64 array, shape (k,)
        Which rows.
    columns : int64 array, shape (k,)
        Positions in the schema.
    values : float32 array, shape (k,)
    """

    ids: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_all_rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns that are known of every row there is a value of, and those values.

        int64, shape (c,), and float32, shape (n, c), rows in the order of their ids.
        """
        rows, row = np.unique(self.ids, return_inverse=True)
        columns, times = np.unique(self.columns, return_counts=True)
        columns = columns[times == len(rows)]
        X = np.empty((len(rows), len(columns)), dtype=np.float32)
        told = np.isin(self.columns, columns)
        X[row[told], np.searchsorted(columns, self.columns[told])] = self.values[told]
        return columns, X


def client_names(count: int) -> list[str]:
    """Return the names of so many clients, in order."""
    return [f"client-{i}" for i in range(count)]


def over_clients(tables: Sequence[Table]) -> dict[str, LocalData]:
    """Return whole rows as local data of ``client-0``, ``client-1``, ...; ids count through."""
    ends = np.cumsum([0, *map(len, tables)])
    ids = [np.arange(a, b) for a, b in pairwise(ends)]
    return {
        name: LocalData.of(table, rows)
        for name, table, rows in zip(client_names(len(tables)), tables, ids, strict=True)
    }


def stacked(local_data: Iterable[LocalData], schema: Schema) -> Table | None:
    """Return whole rows of several parties as one table, None if there is no such party."""
    tables = [h.table for h in local_data if h.covers(schema)]
    return Table.concat(tables) if tables else None


def side_by_side(local_data: Iterable[LocalData], schema: Schema) -> Table | None:
    """Return rows whose columns several parties hold as one table, None if these are no such."""
    parts = list(local_data)
    y = next((h.y for h in parts if h.y is not None), None)
    alike = len({h.ids.tobytes() for h in parts}) == 1
    if y is None or not alike or sum(len(h.columns) for h in parts) != len(schema.features):
        return None
    X = np.empty((len(y), len(schema.features)), dtype=np.float32)
    for held in parts:
        X[:, held.columns] = held.X
    return Table(X, y)


@dataclass(frozen=True)
class Declared:
    """What a party says of its local data, for others to check that together they make a table.

    Attributes
    ----------
    columns : tuple of int
        Which columns, as positions in the schema.
    labels, weighted : bool
        Whether it has labels, and sample weights.
    order : bytes
        Keyed digest of the ids in their order: the same where the rows are, and nobody without the
        key can try out ids.
    """

    rows: int
    columns: tuple[int, ...]
    labels: bool
    weighted: bool
    order: bytes

    @classmethod
    def of(cls, held: LocalData, key: bytes = b"") -> Declared:
        """Return what a party says; ``key`` is what those who hold rows have agreed on."""
        order = hashlib.blake2b(held.ids.tobytes(), key=key, digest_size=16).digest()
        columns = tuple(held.columns.tolist())
        return cls(len(held), columns, held.y is not None, held.weight is not None, order)


def rows_declared(said: Iterable[Declared]) -> int:
    """Return how many different rows are held."""
    return sum({one.order: one.rows for one in said}.values())


def rows_of(local_data: Mapping[str, LocalData]) -> int:
    """Return how many different rows are held, for who has all ids."""
    ids = list({held.ids.tobytes(): held.ids for held in local_data.values()}.values())
    if len(ids) < 2:  # columns of the same rows; local data names no row twice
        return sum(map(len, ids))
    return len(np.unique(np.concatenate(ids)))


def check_own(name: str, held: LocalData, schema: Schema) -> None:
    """Refuse what a party alone sees to be no part of such a table.

    Raises `DataError` if columns stand in another order, or a value is missing of a column that is
    declared complete.
    """
    if not isinstance(held, LocalData):
        raise DataError(f"{name!r} holds a {type(held).__name__}; give it a LocalData")
    if (np.diff(held.columns) <= 0).any():
        raise DataError(f"{name!r} names its columns out of order; sort them as the schema")
    complete = [c < len(schema.features) and schema.features[c].complete for c in held.columns]
    for k in np.flatnonzero(complete):  # column by column: a mask of all is a quarter of the table
        if np.isnan(held.X[:, k]).any():
            column = int(held.columns[k])
            raise DataError(
                f"{name!r} misses a value of {schema.names[column]!r}, which is declared "
                "complete; declare it with complete=False"
            )


def check_together(said: Mapping[str, Declared], schema: Schema) -> None:
    """Refuse what parties say they hold where that does not make up a table.

    Raises `DataError` if rows lack a column, have one twice, or have no label.
    """
    every = list(range(len(schema.features)))
    groups: dict[bytes, list[str]] = {}
    for name, one in said.items():
        if one.rows:
            groups.setdefault(one.order, []).append(name)
    for names in groups.values():
        columns = sorted(c for n in names for c in said[n].columns)
        if columns != every:
            raise DataError(
                f"together {', '.join(names)} hold the columns {columns} of their rows; "
                f"the schema has 0 to {len(every) - 1}, each held once"
            )
        if not any(said[n].labels for n in names):
            raise DataError(f"nobody of {', '.join(names)} holds the labels of their rows")


def check_ids(local_data: Mapping[str, LocalData]) -> None:
    """Refuse ids by which a row is held twice; only whoever has all of them can tell.

    Raises `DataError`.
    """
    held_ids = list({h.ids.tobytes(): h.ids for h in local_data.values()}.values())
    if len(held_ids) > 1 and len(np.unique(np.concatenate(held_ids))) < sum(map(len, held_ids)):
        raise DataError(
            "two parties name some of the same rows, but not all of them in the same order; give "
            "whole rows ids of their own (`over_clients`), or align the columns of the same rows"
        )
