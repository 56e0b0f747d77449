"""Rows that lie with clients already: a file for each, or a column that names who has the row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.data.cells import missing
from fedtrees.data.csv_file import TextTable, cells_as_text
from fedtrees.data.dataset import Dataset
from fedtrees.data.own_table import Declared, dataset_of
from fedtrees.data.spreadsheets import read_table

MOST_NAMED = 8


def load_clients(
    paths: Sequence[str | Path],
    target: str,
    *,
    column: str = "",
    separator: str = "",
    name: str | None = None,
    **declared: Any,
) -> Dataset:
    """Make a dataset of rows that clients hold.

    Raises `DataError`: files of different columns, a row of nobody, fewer than two clients; and as
    `load_csv`. Raises `UsageError`: the column is the target; as `load_csv`.

    `paths`: One file per client, all with the same columns; or one file, with `column`.
    `target`: Name of the label column.
    `column`: Name of the column that says whose row it is; it is no feature. Empty: the file says
    it.
    `separator, name, **declared`: As in `fedtrees.data.own_table.load_csv`.

    Returns: With `owners`, the client of every row, numbered in the order in which they appear.
    """
    said = Declared(**declared)
    tables = [read_table(path, separator, (target,)) for path in paths]
    if len(tables) > 1:
        table, owners, names = _stacked(tables, paths)
    else:
        table, owners, names = _named(tables[0], column, target)
    if len(names) < 2:
        raise DataError(f"{paths[0]}: all rows are of {names[0]!r}; a federation needs two clients")
    label = name or "+".join(Path(path).stem for path in paths)
    made = dataset_of(table, target, said, label)
    kept = _kept(table, made, owners, target)
    sizes = np.bincount(kept, minlength=len(names))
    lacking = [n for n, size in zip(names, sizes, strict=True) if not size]
    if lacking:
        raise DataError(f"{table.path}: no row of {lacking[0]!r} has a target; leave it out")
    shown = ", ".join(f"{n} ({s:,})" for n, s in zip(names[:MOST_NAMED], sizes, strict=False))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    note = f"clients: {shown}{more}"
    return replace(made, owners=kept, owner_names=tuple(names), notes=(note, *made.notes))


def _stacked(
    tables: Sequence[TextTable], paths: Sequence[str | Path]
) -> tuple[TextTable, list[int], list[str]]:
    """Return the rows of all files below one another, and the file of each."""
    first = tables[0]
    for table in tables[1:]:
        if set(table.names) != set(first.names):
            odd = sorted(set(table.names) ^ set(first.names))
            holder = table if odd[0] in table.names else first
            raise DataError(
                f"{first.path} and {table.path} have other columns: {odd[0]!r} is in "
                f"{holder.path.name} alone; give every client's file the same columns, or --id for "
                "files of other columns of the same rows"
            )
    columns = tuple(
        cells_as_text(cell for table in tables for cell in table.column(name))
        for name in first.names
    )
    lines = [line for table in tables for line in table.lines]
    notes = tuple(f"{t.path.name}: {note}" for t in tables for note in t.notes)
    owners = [k for k, table in enumerate(tables) for _ in range(len(table))]
    stacked = replace(first, columns=columns, lines=lines, notes=notes)
    return stacked, owners, [Path(path).stem for path in paths]


def _named(table: TextTable, column: str, target: str) -> tuple[TextTable, list[int], list[str]]:
    """Return the table without the column that names clients, and the client of every row."""
    if column == target:
        raise UsageError(f"target and client column are both {column!r}; name two columns")
    if column not in table.names:
        raise DataError(f"{table.path}: no column {column!r}{did_you_mean(column, table.names)}")
    cells = table.column(column)
    empty = next((i for i, cell in enumerate(cells) if missing(cell)), None)
    if empty is not None:
        raise DataError(
            f"{table.path}, line {table.lines[empty]}: no client in column {column!r}; name one, "
            "or remove the row"
        )
    names = list(dict.fromkeys(cells))
    place = {name: k for k, name in enumerate(names)}
    at = table.names.index(column)
    rest = replace(
        table,
        names=(*table.names[:at], *table.names[at + 1 :]),
        columns=(*table.columns[:at], *table.columns[at + 1 :]),
    )
    return rest, [place[cell] for cell in cells], names


def _kept(
    table: TextTable, made: Dataset, owners: Sequence[int], target: str
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the clients of the rows that have a target: the others were left out."""
    if len(made.table) == len(table):
        return np.array(owners, dtype=np.intp)
    here = [k for k, cell in zip(owners, table.column(target), strict=True) if not missing(cell)]
    if len(here) != len(made.table):
        raise DataError(
            f"{table.path}: some cells of the target {target!r} are no values; mend or empty them"
        )
    return np.array(here, dtype=np.intp)
