"""Layouts: how the rows or columns of a table are distributed over the parties."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Schema, Table
from fedtrees.data.column_partition import spread_columns
from fedtrees.data.partition import BY_CLIENT, Partition, split

Layout = Callable[..., dict[str, LocalData]]


def by_rows(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
) -> dict[str, LocalData]:
    """Give every party complete rows with their labels, as the partition determines."""
    parts = split(partition, table, schema, len(names), rng)
    return {n: LocalData.of(table.take(rows), rows) for n, rows in zip(names, parts, strict=True)}


def by_owner(
    table: Table, names: Sequence[str], owners: NDArray[np.intp] | None
) -> dict[str, LocalData]:
    """Give every client the rows that belong to it according to the table.

    Raises `UsageError` if the table contains no owners or another number of clients, and
    `DataError` if a client has no training rows.
    """
    if owners is None:
        raise UsageError(
            f"partition {BY_CLIENT!r}: the table does not name the client of each row; "
            "give one file per client, or --client-column"
        )
    count = int(owners.max()) + 1
    if len(names) != count:
        raise UsageError(f"the table has rows of {count} clients, not of {len(names)}; leave out "
                         "--clients, or give another --partition")  # fmt: skip
    parts = [np.flatnonzero(owners == k) for k in range(count)]
    # The table contains only training rows. All rows of a small client can be test rows.
    empty = next((k for k, rows in enumerate(parts) if not len(rows)), None)
    if empty is not None:
        raise DataError(f"all rows of client {empty} are test rows; this client needs more rows")
    return {n: LocalData.of(table.take(rows), rows) for n, rows in zip(names, parts, strict=True)}


def by_columns(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
) -> dict[str, LocalData]:
    """Give every party some columns of all rows, and give the labels to the first party."""
    spread = spread_columns(partition.name, partition.params, schema, names, rng, files)
    return {name: columns_of(table, columns, name == names[0]) for name, columns in spread.items()}


def columns_of(table: Table, columns: NDArray[np.intp], labelled: bool) -> LocalData:
    """Return some columns of all rows, with or without the labels."""
    y, weight = (table.y, table.weight) if labelled else (None, None)
    return LocalData(np.arange(len(table)), columns, table.X[:, columns], y, weight)


def single_party(
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
) -> dict[str, LocalData]:
    """Give the only party the complete table."""
    if len(names) != 1:
        raise UsageError(
            f"this layout gives the complete table to one party, but there are {len(names)}: "
            "use --clients 1"
        )
    return {names[0]: LocalData.of(table)}


LAYOUTS: dict[str, Layout] = {
    "horizontal": by_rows, "vertical": by_columns, "centralised": single_party,
}  # fmt: skip
#: Former names of the layouts, accepted until the next release.
ONCE = {"rows": "horizontal", "columns": "vertical", "whole": "centralised"}


def splits_columns(layout: str) -> bool:
    """Return whether parties have different columns of the same rows under a layout."""
    return LAYOUTS[layout] is by_columns


def lay_out(
    layout: str,
    table: Table,
    schema: Schema,
    names: Sequence[str],
    partition: Partition,
    rng: np.random.Generator,
    files: Sequence[Sequence[int]] = (),
    owners: NDArray[np.intp] | None = None,
) -> dict[str, LocalData]:
    """Distribute a table over parties.

    Parameters
    ----------
    layout : str
        Key of `LAYOUTS`.
    table : Table
        The rows.
    schema : Schema
        Columns and classes.
    names : sequence of str
        The parties that have data, in order.
    partition : Partition
        The partition of rows or columns.
    rng : numpy.random.Generator
        Randomness of the partition.
    files : sequence of sequence of int, optional
        `Dataset.files`.
    owners : int array, shape (n,), optional
        Client of every row of the table.

    Returns
    -------
    data : dict of str to LocalData
        Local data of every party.

    Raises
    ------
    UsageError, DataError
        If the layout is unknown, and as `fedtrees.data.partition.split` and
        `fedtrees.data.column_partition.spread_columns`.
    """
    layout = ONCE.get(layout, layout)
    if layout not in LAYOUTS:
        raise UsageError(f"unknown layout {layout!r}{did_you_mean(layout, LAYOUTS)}")
    if partition.name == BY_CLIENT and layout == "horizontal":
        return by_owner(table, names, owners)
    more = (files,) if layout == "vertical" else ()
    return LAYOUTS[layout](table, schema, names, partition, rng, *more)
