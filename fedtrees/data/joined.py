"""One CSV file per party, joined by an id column: the same rows, each party's columns."""

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
    """Make a dataset of one CSV file per party.

    Private set intersection is taken to be done: all files name the same ids, in any order.

    Raises `DataError`: an id that is missing, stands twice in a file, or is not in every file or
    not written alike there; a column in two files; a file other than the first without columns;
    labels elsewhere; and as `load_csv`. Raises `UsageError`: the target is the id; as `load_csv`.

    `paths`: The party with the labels first.
    `target`: Name of the label column, in the first file alone.
    `id`: Name of the column, in every file, that says which row it is.
    `name, **options`: As in `fedtrees.data.own_table.load_csv`, over the columns of all files.
    """
    declared, target, id = Declared.of(options), plain_name(target), plain_name(id)
    if target == id:
        raise UsageError(f"target and id are both {id!r}; name the column of the labels as target")
    tables = [read_table(path, declared.reading, (id, target)) for path in paths]
    rows = [_rows(table, id) for table in tables]
    _check_ids(tables, rows)
    _check_columns(tables, target, id)
    label = name or "+".join(unique_labels(paths))
    made = dataset_of(_joined(tables, rows, id), target, declared, label)
    owner = {n: k for k, table in enumerate(tables) for n in table.names if n != id}
    files = [
        tuple(c for c, n in enumerate(made.schema.names) if owner[n] == k)
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
    return replace(made, files=tuple(files), notes=(note, *made.notes))


def _joined(tables: Sequence[TextTable], rows: Sequence[Mapping[str, int]], id: str) -> TextTable:
    """Return one table of all columns but the id, in the order of the first file's rows."""
    names, columns, notes = [], [], []
    for table, where in zip(tables, rows, strict=True):
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
        kept_marks={name: kept for table in tables for name, kept in table.kept_marks.items()},
    )


def _rows(table: TextTable, id: str) -> dict[str, int]:
    """Return the row of every id in a file."""
    table.check_readable(id)
    found: dict[str, int] = {}
    for i, key in enumerate(table.column(id)):
        where = f"{table.path}, line {table.lines[i]}"
        if not key:
            raise DataError(f"{where}: no id in column {id!r}; give the row one, or remove it")
        if key in found:
            line = table.lines[found[key]]
            raise DataError(
                f"{where}: the id {key!r} stands at line {line}, too; keep one of the rows"
            )
        found[key] = i
    return found


def _check_ids(tables: Sequence[TextTable], rows: Sequence[Mapping[str, int]]) -> None:
    for table, mine in zip(tables[1:], rows[1:], strict=True):
        here, there = ([k for k in a if k not in b] for a, b in ((mine, rows[0]), (rows[0], mine)))
        _check_spelling(tables[0], table, there, here)
        for holder, lacking, keys in ((tables[0], table, there), (table, tables[0], here)):
            if keys:
                shown = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
                raise DataError(
                    f"{lacking.path} lacks {len(keys)} of the ids of {holder.path} ({shown}); "
                    "keep in every file the rows that all of them have"
                )


def _check_spelling(
    first: TextTable, other: TextTable, there: Sequence[str], here: Sequence[str]
) -> None:
    """Raise `DataError` if ids that one file lacks look like ids of the other.

    They are not matched: if 7 and 007 are two people, their rows would become one.
    """
    spelled = {_plainly(key): key for key in here}
    same = [(key, spelled[_plainly(key)]) for key in there if _plainly(key) in spelled]
    if same:
        (mine, theirs), count = same[0], len(same)
        raise DataError(
            f"{other.path}: the id {theirs!r} seems to be {mine!r} of {first.path}, but they "
            f"differ in {difference(mine, theirs)} ({many(count, 'such id')}); write every id "
            "alike in all files"
        )


def _plainly(key: str) -> float | str:
    """Return the number that an id may mean, or its text as it looks to a reader."""
    value = number(key)
    return look(key) if value is None else value


def _check_columns(tables: Sequence[TextTable], target: str, id: str) -> None:
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
