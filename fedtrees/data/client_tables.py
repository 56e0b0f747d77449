"""Load a table whose rows or columns are already divided among parties.

For a vertical partition, there is one file per party with different columns of the same rows. The
files are joined by an id column. For a horizontal partition, there is one file per client, or one
file with a column that names the client of each row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import (
    DataError,
    Problem,
    Problems,
    UsageError,
    closest,
    did_you_mean,
    many,
)
from fedtrees.core.files import unique_labels
from fedtrees.data.cells import categories_of, difference, look, look_alikes, number
from fedtrees.data.cleaning import with_empty_cells
from fedtrees.data.csv_file import TextTable, cells_as_text, plain_name
from fedtrees.data.dataset import Dataset
from fedtrees.data.table_files import read_table, read_uncleaned
from fedtrees.data.user_tables import TableSpec, dataset_of

MOST_NAMED = 8  # number of clients in the note on their sizes
#: Ratio between the median values of two clients that suggests different units or decimal marks.
_OTHER_UNIT = 500.0
_LEAST_ROWS = 5  # smallest number of values of a client from which a median is computed


def load_clients(
    paths: Sequence[str | Path],
    target: str,
    *,
    column: str = "",
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Load the rows of several clients as one dataset.

    Parameters
    ----------
    paths : sequence of str or path
        One file per client, all with the same columns, or one file together with `column`.
    target : str
        Name of the label column.
    column : str, optional
        Name of the column that contains the client of every row. It is not a feature. If it is
        empty, each file belongs to one client.
    name : str, optional
        Name of the dataset.
    **options
        As in `fedtrees.data.user_tables.load_csv`.

    Returns
    -------
    dataset : Dataset
        `owners` contains the client of every row, numbered in the order of their first rows.

    Raises
    ------
    DataError
        If the files have different columns, a row has no client, there are fewer than two clients,
        or as `load_csv`.
    UsageError
        If the client column is the target, or as `load_csv`.
    """
    declared, target, column = TableSpec.of(options), plain_name(target), plain_name(column)
    if len(paths) > 1:
        tables = [read_uncleaned(path, declared.reading, (target,)) for path in paths]
        table, owners, names = _stack_tables(tables, paths)
    else:
        complete = read_table(paths[0], declared.reading, (target,))
        table, owners, names = _split_client_column(complete, column, target)
    if len(names) < 2:
        raise DataError(f"{paths[0]}: all rows are of {names[0]!r}; a federation needs two clients")
    label = name or "+".join(unique_labels(paths))
    dataset = dataset_of(table, target, declared, label)
    row_owners = _labelled_owners(table, dataset, owners, target)
    sizes = np.bincount(row_owners, minlength=len(names))
    lacking = [n for n, size in zip(names, sizes, strict=True) if not size]
    if lacking:
        raise DataError(f"{table.path}: no row of {lacking[0]!r} has a target; leave it out")
    shown = ", ".join(f"{n} ({s:,})" for n, s in zip(names[:MOST_NAMED], sizes, strict=False))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    similar = [f"clients: {text}" for text in look_alikes(names)]
    notes = (
        f"clients: {shown}{more}",
        *similar,
        *_other_units(dataset, row_owners, names),
        *dataset.notes,
    )
    return replace(dataset, owners=row_owners, owner_names=tuple(names), notes=notes)


def _other_units(dataset: Dataset, owners: NDArray[np.intp], names: Sequence[str]) -> list[str]:
    """Return a note for each numeric column in which clients seem to use different units.

    A column is reported if the medians of the absolute values of two clients differ by a factor of
    `_OTHER_UNIT` or more. Different decimal marks have the same effect.
    """
    notes = []
    for c, feature in enumerate(dataset.schema.features):
        if feature.kind == "categorical":
            continue
        sizes = np.abs(dataset.table.X[:, c].astype(np.float64))
        measured = np.isfinite(sizes) & (sizes > 0)
        typical = {
            name: float(np.median(sizes[measured & (owners == k)]))
            for k, name in enumerate(names)
            if np.count_nonzero(measured & (owners == k)) >= _LEAST_ROWS
        }
        if not typical:
            continue
        low, high = min(typical, key=typical.__getitem__), max(typical, key=typical.__getitem__)
        if typical[high] >= _OTHER_UNIT * typical[low]:
            notes.append(
                f"{feature.name}: the values of {high!r} (median {typical[high]:g}) and of {low!r} "
                f"({typical[low]:g}) differ by a factor of {typical[high] / typical[low]:,.0f}; "
                "check their units and decimal marks (--decimal)"
            )
    return notes


def _stack_tables(
    tables: Sequence[TextTable], paths: Sequence[str | Path]
) -> tuple[TextTable, list[int], list[str]]:
    """Return the rows of all files as one table, the file of every row, and the names of the files.

    Marks of missing cells are decided over all files, because a single file may lack a category.
    """
    first = tables[0]
    for table in tables[1:]:
        if set(table.names) != set(first.names):
            odd = sorted(set(table.names) ^ set(first.names))
            holder = table if odd[0] in table.names else first
            raise DataError(
                f"{first.path} and {table.path} have different columns: {odd[0]!r} is "
                f"only in {holder.path.name}; give the files of all clients the same "
                "columns, or use --id for files with other columns of the same rows"
            )
    # The same file given twice would put test rows of one client into the training of another.
    for k, table in enumerate(tables[1:], 1):
        for other in tables[:k]:
            if table.names == other.names and table.columns == other.columns:
                raise DataError(
                    f"{other.path} and {table.path} have the same rows; test rows of one "
                    "client would be training rows of the other: give every client its own file"
                )
    columns = tuple(
        cells_as_text(cell for table in tables for cell in table.column(name))
        for name in first.names
    )
    owners = [k for k, table in enumerate(tables) for _ in range(len(table))]
    labels = unique_labels(paths)
    notes = [f"{label}: {n}" for label, t in zip(labels, tables, strict=True) for n in t.notes]
    commas = [label for label, table in zip(labels, tables, strict=True) if table.commas]
    if 0 < len(commas) < len(tables):
        notes.append(f"of the files, only {', '.join(commas)} have decimal commas")
    stacked = replace(
        first,
        columns=columns,
        lines=[line for table in tables for line in table.lines],
        notes=tuple(notes),
        twice=frozenset().union(*(table.twice for table in tables)),
        typed_format=all(table.typed_format for table in tables),
        typed=frozenset.intersection(*(table.typed for table in tables)),
        numeric=frozenset.intersection(*(table.numeric for table in tables)),
        commas=frozenset().union(*(table.commas for table in tables)),
        remarks=_by_column({name: t.remarks for name, t in zip(labels, tables, strict=True)}),
        doubts={name: doubt for table in tables for name, doubt in table.doubts.items()},
    )
    return with_empty_cells(stacked), owners, labels


def _by_column(remarks: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the remarks of all files by column, each with the name of its file."""
    texts: dict[str, list[str]] = {}
    for label, of_file in remarks.items():
        for column, text in of_file.items():
            texts.setdefault(column, []).append(f"{label}: {text}")
    return {column: "; ".join(lines) for column, lines in texts.items()}


def _split_client_column(
    table: TextTable, column: str, target: str
) -> tuple[TextTable, list[int], list[str]]:
    """Return the table without its client column, the client of every row, and all clients."""
    if column == target:
        raise UsageError(f"target and client column are both {column!r}; name two columns")
    if column not in table.names:
        text = f"no column {column!r}{did_you_mean(column, table.names)}"
        problem = Problem(text, "client-column", closest(column, table.names) or "COLUMN")
        raise Problems(str(table.path), [problem])
    cells = table.column(column)
    empty = next((i for i, cell in enumerate(cells) if not cell), None)
    if empty is not None:
        marks = ", ".join(map(repr, table.marks.get(column, ())))
        hint = f", or give --missing without {marks} if it is the name of a client" if marks else ""
        raise DataError(
            f"{table.path}, line {table.lines[empty]}: no client in column {column!r}; name one, "
            f"or remove the row{hint}"
        )
    # Different spellings of a client's number, for example 1 and 1.0, are one client.
    merged = categories_of(Counter(cells))[1]
    cells = [merged.get(cell, cell) for cell in cells]
    names = list(dict.fromkeys(cells))
    place = {name: k for k, name in enumerate(names)}
    at = table.names.index(column)
    rest = replace(
        table,
        names=(*table.names[:at], *table.names[at + 1 :]),
        columns=(*table.columns[:at], *table.columns[at + 1 :]),
    )
    return rest, [place[cell] for cell in cells], names


def _labelled_owners(
    table: TextTable, dataset: Dataset, owners: Sequence[int], target: str
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the clients of the rows that have a label. The remaining rows were left out."""
    if len(dataset.table) == len(table):
        return np.array(owners, dtype=np.intp)
    here = [k for k, cell in zip(owners, table.column(target), strict=True) if cell]
    if len(here) != len(dataset.table):
        raise DataError(
            f"{table.path}: some cells of the target {target!r} are no values; mend or empty them"
        )
    return np.array(here, dtype=np.intp)


def load_joined(
    paths: Sequence[str | Path],
    target: str,
    *,
    id: str,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Load one CSV file per party as one dataset.

    The function assumes that private set intersection was done: all files contain the same ids, in
    any order.

    Parameters
    ----------
    paths : sequence of str or path
        One file per party, the file with the labels first.
    target : str
        Name of the label column, which must be only in the first file.
    id : str
        Name of the column, in every file, that identifies the row.
    name : str, optional
        Name of the dataset.
    **options
        As in `fedtrees.data.user_tables.load_csv`, for the columns of all files.

    Returns
    -------
    dataset : Dataset
        `files` contains the columns of each party.

    Raises
    ------
    DataError
        If an id is missing, occurs twice in a file, is not in every file, or is spelled differently
        there, if a column is in two files, if a file other than the first has no columns, if the
        labels are not in the first file, or as `load_csv`.
    UsageError
        If the target is the id, or as `load_csv`.
    """
    declared, target, id = TableSpec.of(options), plain_name(target), plain_name(id)
    if target == id:
        raise UsageError(f"target and id are both {id!r}; name the column of the labels as target")
    tables = [read_table(path, declared.reading, (id, target)) for path in paths]
    rows = [_rows(table, id) for table in tables]
    _check_ids(tables, rows)
    _check_columns(tables, target, id)
    label = name or "+".join(unique_labels(paths))
    dataset = dataset_of(_join_tables(tables, rows, id), target, declared, label)
    # Each column belongs to the party whose file contains it. The id belongs to no party.
    owner = {n: k for k, table in enumerate(tables) for n in table.names if n != id}
    files = [
        tuple(c for c, n in enumerate(dataset.schema.names) if owner[n] == k)
        for k in range(len(tables))
    ]
    for table, columns in zip(tables[1:], files[1:], strict=True):
        if not columns:
            raise DataError(
                f"{table.path}: no columns except the id {id!r}; leave this party out, "
                "or keep one of its columns"
            )
    note = (
        f"files: {len(tables)}, joined by {id!r}; a vertical protocol takes one party per file "
        f"(--clients {len(tables)}), one over rows spreads the joined rows"
    )
    return replace(dataset, files=tuple(files), notes=(note, *dataset.notes))


def _join_tables(
    tables: Sequence[TextTable], rows: Sequence[Mapping[str, int]], id: str
) -> TextTable:
    """Return one table of all columns except the id, in the order of the first file's rows."""
    names, columns, notes = [], [], []
    for table, where in zip(tables, rows, strict=True):
        # The rows of every file are aligned with those of the first file.
        order = [where[key] for key in rows[0]]
        for name in (n for n in table.names if n != id):
            cells = table.column(name)
            names.append(name)
            columns.append(cells_as_text(cells[i] for i in order))
        notes += [f"{table.path.name}: {note}" for note in table.notes]
    return replace(
        tables[0],
        names=tuple(names),
        columns=tuple(columns),
        notes=tuple(notes),
        twice=frozenset().union(*(table.twice for table in tables)),
        numeric=frozenset().union(*(table.numeric for table in tables)),
        commas=frozenset().union(*(table.commas for table in tables)),
        remarks={name: text for table in tables for name, text in table.remarks.items()},
        doubts={name: doubt for table in tables for name, doubt in table.doubts.items()},
        marks={name: counts for table in tables for name, counts in table.marks.items()},
        kept_marks={name: marks for table in tables for name, marks in table.kept_marks.items()},
    )


def _rows(table: TextTable, id: str) -> dict[str, int]:
    """Return the row of every id in a file.

    Raises `DataError` if an id is missing or occurs twice.
    """
    table.check_readable(id)
    row_of: dict[str, int] = {}
    for i, key in enumerate(table.column(id)):
        where = f"{table.path}, line {table.lines[i]}"
        if not key:
            raise DataError(f"{where}: no id in column {id!r}; give the row one, or remove it")
        if key in row_of:
            line = table.lines[row_of[key]]
            raise DataError(f"{where}: the id {key!r} is also in line {line}; keep one of the rows")
        row_of[key] = i
    return row_of


def _check_ids(tables: Sequence[TextTable], rows: Sequence[Mapping[str, int]]) -> None:
    """Raise `DataError` unless all files contain the same ids."""
    # If the files contain the same ids in another spelling, that is the more helpful message.
    for table, ids in zip(tables[1:], rows[1:], strict=True):
        only_other, only_first = (
            [k for k in a if k not in b] for a, b in ((ids, rows[0]), (rows[0], ids))
        )
        _check_spelling(tables[0], table, only_first, only_other)
        for holder, lacking, keys in (
            (tables[0], table, only_first),
            (table, tables[0], only_other),
        ):
            if keys:
                shown = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
                raise DataError(
                    f"{lacking.path} lacks {len(keys)} of the ids of {holder.path} ({shown}); "
                    "keep in every file the rows that all of them have"
                )


def _check_spelling(
    first: TextTable, other: TextTable, first_ids: Sequence[str], other_ids: Sequence[str]
) -> None:
    """Raise `DataError` if ids that one file lacks look like ids of the other file.

    Such ids are not matched, because 7 and 007 may be two people, whose rows would be merged.
    """
    spelled = {_plainly(key): key for key in other_ids}
    same = [(key, spelled[_plainly(key)]) for key in first_ids if _plainly(key) in spelled]
    if same:
        (left_id, right_id), count = same[0], len(same)
        raise DataError(
            f"{other.path}: the id {right_id!r} seems to be {left_id!r} of {first.path}, but they "
            f"differ in {difference(left_id, right_id)} ({many(count, 'such id')}); write every id "
            "alike in all files"
        )


def _plainly(key: str) -> float | str:
    """Return the number that an id may represent, else its text as it appears to a reader."""
    value = number(key)
    return look(key) if value is None else value


def _check_columns(tables: Sequence[TextTable], target: str, id: str) -> None:
    """Raise `DataError` if a column is in two files, or the target is in the wrong file."""
    seen: dict[str, Path] = {}
    for table in tables:
        for column in (n for n in table.names if n != id):
            if column in seen:
                raise DataError(
                    f"column {column!r} is in {seen[column]} and in {table.path}; only "
                    "one party may have it: rename or remove the other one"
                )
            seen[column] = table.path
    if seen.get(target) not in (None, tables[0].path):
        raise DataError(
            f"the target {target!r} is in {seen[target]}; name the file with the labels first"
        )
