"""Load one CSV file per party and join them by an id column (vertical partition).

The parties have different columns of the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtrees.core.counts import many
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.files import unique_labels
from fedtrees.data.categories import difference, look
from fedtrees.data.cells import number
from fedtrees.data.csv_file import TextTable, cells_as_text, plain_name
from fedtrees.data.dataset import Dataset
from fedtrees.data.own_table import Declared, dataset_of
from fedtrees.data.spreadsheets import read_table


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
        As in `fedtrees.data.own_table.load_csv`, for the columns of all files.

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
    declared, target, id = Declared.of(options), plain_name(target), plain_name(id)
    if target == id:
        raise UsageError(f"target and id are both {id!r}; name the column of the labels as target")
    tables = [read_table(path, declared.reading, (id, target)) for path in paths]
    rows = [_rows(table, id) for table in tables]
    _check_ids(tables, rows)
    _check_columns(tables, target, id)
    label = name or "+".join(unique_labels(paths))
    dataset = dataset_of(_joined(tables, rows, id), target, declared, label)
    # Each column belongs to the party whose file contains it. The id belongs to no party.
    owner = {n: k for k, table in enumerate(tables) for n in table.names if n != id}
    files = [
        tuple(c for c, n in enumerate(dataset.schema.names) if owner[n] == k)
        for k in range(len(tables))
    ]
    for table, columns in zip(tables[1:], files[1:], strict=True):
        if not columns:
            raise DataError(
                f"{table.path}: no columns beside the id {id!r}; leave that party out, or keep one "
                "of its columns"
            )
    note = (
        f"files: {len(tables)}, joined by {id!r}; a vertical protocol takes one party per file "
        f"(--clients {len(tables)}), one over rows spreads the joined rows"
    )
    return replace(dataset, files=tuple(files), notes=(note, *dataset.notes))


def _joined(tables: Sequence[TextTable], rows: Sequence[Mapping[str, int]], id: str) -> TextTable:
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
            raise DataError(
                f"{where}: the id {key!r} stands at line {line}, too; keep one of the rows"
            )
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
    first: TextTable, other: TextTable, there: Sequence[str], here: Sequence[str]
) -> None:
    """Raise `DataError` if ids that one file lacks look like ids of the other file.

    Such ids are not matched, because 7 and 007 may be two people, whose rows would be merged.
    """
    spelled = {_plainly(key): key for key in here}
    same = [(key, spelled[_plainly(key)]) for key in there if _plainly(key) in spelled]
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
                    f"column {column!r} is in {seen[column]} and in {table.path}; one party holds "
                    "it: rename or remove the other"
                )
            seen[column] = table.path
    if seen.get(target) not in (None, tables[0].path):
        raise DataError(
            f"the target {target!r} is in {seen[target]}; name the file with the labels first"
        )
