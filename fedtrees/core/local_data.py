"""Local data: the rows and columns of a table that one party has, and perhaps the labels.

In a horizontal federation each client has complete rows. In a vertical federation each party has
some columns of the same rows, which they identify by common ids. This module also checks that the
parts of all parties make up one table.
"""

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
    """The part of a table that one party has.

    Attributes
    ----------
    ids : int64 array, shape (n,)
        Ids of the rows. Parties with other columns of the same rows use the same ids.
    columns : intp array, shape (c,)
        Columns, as positions in the schema.
    X : float32 array, shape (n, c)
        Values. NaN marks a missing value.
    y : int64 or float64 array, shape (n,), or None
        Class codes or a numeric target. None if this party has no labels.
    weight : float32 array, shape (n,), or None
        Sample weights. None if every row counts 1.

    Raises
    ------
    DataError
        If the shapes do not agree, or an id occurs twice.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import LocalData, Table
    >>> table = Table(np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1]))
    >>> LocalData.of(table)
    <LocalData: 3 rows, 2 columns, with labels>
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
        # Ids are usually sorted. This check needs no sorted copy of them.
        rising = bool((self.ids[1:] > self.ids[:-1]).all())
        if not rising and len(np.unique(self.ids)) != n:
            raise DataError("local data contains a row id twice; give every row a different id")
        kinds = {"ids": np.int64, "columns": np.intp, "X": np.float32, "weight": np.float32}
        if self.y is not None:
            kinds["y"] = np.float64 if np.asarray(self.y).dtype.kind == "f" else np.int64
        for name, kind in kinds.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name), kind))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # numpy unpickles arrays as writeable arrays

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        labels = "without" if self.y is None else "with"
        return f"<LocalData: {len(self)} rows, {len(self.columns)} columns, {labels} labels>"

    @staticmethod
    def of(table: Table, ids: NDArray[np.integer[Any]] | None = None) -> LocalData:
        """Return complete rows with labels as local data.

        Parameters
        ----------
        table : Table
            The rows of one party.
        ids : integer array, shape (n,), optional
            Ids of the rows, 0 to n - 1 by default.

        Returns
        -------
        local_data : LocalData
            Local data with all columns of the table.

        Raises
        ------
        DataError
            If there is not one id per row, or an id occurs twice.
        """
        n, d = table.X.shape
        rows = np.arange(n) if ids is None else ids.astype(np.int64)
        return LocalData(rows, np.arange(d), table.X, table.y, table.weight)

    def covers(self, schema: Schema) -> bool:
        """Return whether these are complete rows of a table with this schema, with their labels.

        Parameters
        ----------
        schema : Schema
            Columns of the complete table.

        Returns
        -------
        complete : bool
            False if a column or the labels are missing.
        """
        every = np.arange(len(schema.features))
        return self.y is not None and np.array_equal(self.columns, every)

    @property
    def table(self) -> Table:
        """The rows with their labels.

        Raises
        ------
        DataError
            If the party has no labels.
        """
        if self.y is None:
            raise DataError("this party has no labels, only columns")
        return Table(self.X, self.y, self.weight)


@dataclass(frozen=True, eq=False)
class KnownEntries:
    """Single values of other parties' training rows that a threat model declares known.

    Attributes
    ----------
    ids : int64 array, shape (k,)
        Ids of the rows.
    columns : int64 array, shape (k,)
        Columns, as positions in the schema.
    values : float32 array, shape (k,)
        The values.
    """

    ids: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def of_all_rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns whose value is known for every row, and these values.

        Only rows with at least one known value count. The columns are int64, shape (c,). The values
        are float32, shape (n, c), with the rows in the order of their ids.
        """
        rows, row = np.unique(self.ids, return_inverse=True)
        columns, times = np.unique(self.columns, return_counts=True)
        columns = columns[times == len(rows)]
        X = np.empty((len(rows), len(columns)), dtype=np.float32)
        selected = np.isin(self.columns, columns)
        X[row[selected], np.searchsorted(columns, self.columns[selected])] = self.values[selected]
        return columns, X


def client_names(count: int) -> list[str]:
    """Return the names of the clients of a federation.

    Parameters
    ----------
    count : int
        Number of clients.

    Returns
    -------
    list of str
        ``client-0``, ``client-1``, ...
    """
    return [f"client-{i}" for i in range(count)]


def over_clients(tables: Sequence[Table]) -> dict[str, LocalData]:
    """Return tables as the local data of clients that have different rows.

    Parameters
    ----------
    tables : sequence of Table
        Rows of each client.

    Returns
    -------
    dict of str to LocalData
        Local data of ``client-0``, ``client-1``, ... with consecutive ids.
    """
    ends = np.cumsum([0, *map(len, tables)])
    ids = [np.arange(a, b) for a, b in pairwise(ends)]
    return {
        name: LocalData.of(table, rows)
        for name, table, rows in zip(client_names(len(tables)), tables, ids, strict=True)
    }


def stacked(local_data: Iterable[LocalData], schema: Schema) -> Table | None:
    """Return the complete rows of several parties as one table.

    Parameters
    ----------
    local_data : iterable of LocalData
        Data of the parties. A party that lacks columns or labels is left out.
    schema : Schema
        Columns of a complete row.

    Returns
    -------
    Table or None
        Rows in the order of the parties. None if no party has complete rows.
    """
    tables = [h.table for h in local_data if h.covers(schema)]
    return Table.concat(tables) if tables else None


def side_by_side(local_data: Iterable[LocalData], schema: Schema) -> Table | None:
    """Return rows whose columns are distributed over parties as one table.

    Parameters
    ----------
    local_data : iterable of LocalData
        Data of the parties.
    schema : Schema
        Columns of a complete row.

    Returns
    -------
    Table or None
        None if the parties do not have the same rows in the same order, if no party has labels, or
        if their columns do not make up the schema.
    """
    parts = list(local_data)
    y = next((h.y for h in parts if h.y is not None), None)
    same_rows = len({h.ids.tobytes() for h in parts}) == 1
    if y is None or not same_rows or sum(len(h.columns) for h in parts) != len(schema.features):
        return None
    X = np.empty((len(y), len(schema.features)), dtype=np.float32)
    for party_data in parts:
        X[:, party_data.columns] = party_data.X
    return Table(X, y)


@dataclass(frozen=True)
class LocalDataSummary:
    """Description of a party's local data.

    The parties exchange these descriptions to check that their parts make up a table.

    Attributes
    ----------
    rows : int
        Number of rows.
    columns : tuple of int
        Columns, as positions in the schema.
    labels, weighted : bool
        Whether the party has labels, and sample weights.
    order : bytes
        Keyed digest of the ids in their order. It is equal for parties with the same rows. Without
        the key, an adversary cannot test guesses of ids.
    """

    rows: int
    columns: tuple[int, ...]
    labels: bool
    weighted: bool
    order: bytes

    @classmethod
    def of(cls, local_data: LocalData, key: bytes = b"") -> LocalDataSummary:
        """Describe local data without values of rows.

        Parameters
        ----------
        local_data : LocalData
            Data of a party.
        key : bytes
            Secret that all parties with rows share. Without it, ids could be guessed from their
            digest.

        Returns
        -------
        LocalDataSummary
            Description that the party declares to all other parties.
        """
        # Without the key, ids could be guessed from the digest.
        order = hashlib.blake2b(local_data.ids.tobytes(), key=key, digest_size=16).digest()
        columns = tuple(local_data.columns.tolist())
        return cls(
            len(local_data), columns, local_data.y is not None, local_data.weight is not None, order
        )


def rows_declared(declared: Iterable[LocalDataSummary]) -> int:
    """Return the number of different rows that the parties declared together.

    Parameters
    ----------
    declared : iterable of LocalDataSummary
        Declaration of each party. Equal digests of ids mean the same rows.

    Returns
    -------
    int
        Number of rows.
    """
    return sum({one.order: one.rows for one in declared}.values())


def rows_of(local_data: Mapping[str, LocalData]) -> int:
    """Return the number of different rows of all parties, from their ids.

    Parameters
    ----------
    local_data : mapping of str to LocalData
        Data of each party.

    Returns
    -------
    int
        Number of rows.
    """
    distinct_ids = list({part.ids.tobytes(): part.ids for part in local_data.values()}.values())
    if len(distinct_ids) < 2:  # columns of the same rows, whose ids are distinct
        return sum(map(len, distinct_ids))
    return len(np.unique(np.concatenate(distinct_ids)))


def check_own(name: str, local_data: LocalData, schema: Schema) -> None:
    """Check the local data of one party against the schema.

    Parameters
    ----------
    name : str
        Name of the party.
    local_data : LocalData
        Data of this party.
    schema : Schema
        Columns of the complete table.

    Raises
    ------
    DataError
        If the columns are not in the order of the schema, or if a value is missing in a column that
        is declared complete.
    """
    if not isinstance(local_data, LocalData):
        raise DataError(f"the data of {name!r} is a {type(local_data).__name__}; give a LocalData")
    if (np.diff(local_data.columns) <= 0).any():
        raise DataError(f"{name!r} names its columns out of order; sort them as the schema")
    complete = [
        c < len(schema.features) and schema.features[c].complete for c in local_data.columns
    ]
    # One column at a time, because a mask of all columns needs a quarter of the table's memory.
    for k in np.flatnonzero(complete):
        if np.isnan(local_data.X[:, k]).any():
            column = int(local_data.columns[k])
            raise DataError(
                f"{name!r} misses a value of {schema.names[column]!r}, which is declared "
                "complete; declare it with complete=False"
            )


def check_together(declared: Mapping[str, LocalDataSummary], schema: Schema) -> None:
    """Check that the declared parts of all parties make up a table.

    Parameters
    ----------
    declared : mapping of str to LocalDataSummary
        Declaration of each party.
    schema : Schema
        Columns of a complete row.

    Raises
    ------
    DataError
        If rows lack a column, have a column twice, or have no label.
    """
    all_columns = list(range(len(schema.features)))
    groups: dict[bytes, list[str]] = {}
    for name, one in declared.items():
        if one.rows:
            groups.setdefault(one.order, []).append(name)
    for names in groups.values():
        columns = sorted(c for n in names for c in declared[n].columns)
        if columns != all_columns:
            raise DataError(
                f"together {', '.join(names)} have the columns {columns} of their rows; "
                f"the schema has the columns 0 to {len(all_columns) - 1}, and each must "
                "have one owner"
            )
        if not any(declared[n].labels for n in names):
            raise DataError(f"none of {', '.join(names)} has the labels of the rows")


def check_ids(local_data: Mapping[str, LocalData]) -> None:
    """Check that no row belongs to two parties. This requires the ids of all parties.

    Parameters
    ----------
    local_data : mapping of str to LocalData
        Data of each party.

    Raises
    ------
    DataError
        If two parties have some of the same rows but not all of them in the same order.
    """
    held_ids = list({h.ids.tobytes(): h.ids for h in local_data.values()}.values())
    if len(held_ids) > 1 and len(np.unique(np.concatenate(held_ids))) < sum(map(len, held_ids)):
        raise DataError(
            "two parties declare some of the same rows, but not all of them in the same "
            "order; give complete rows different ids (`over_clients`), or align the "
            "columns of the same rows"
        )
