"""One CSV file per party, joined by an id column: the same rows, each party's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema
from fedtrees.data.csv_table import TextTable, encoded, missing, read_csv, read_target
from fedtrees.data.dataset import Dataset, prepare


def load_joined(
    paths: Sequence[str | Path],
    target: str,
    *,
    id: str,
    categorical: Sequence[str] = (),
    task: str = "binary",
    positive: str | None = None,
    drop: Sequence[str] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    name: str | None = None,
) -> Dataset:
    """Make a dataset of one CSV file per party.

    Private set intersection is taken to be done: all files name the same ids, in any order.

    Parameters
    ----------
    paths : sequence of path
        The party with the labels first.
    target : str
        Name of the label column, in the first file alone.
    id : str
        Name of the column, in every file, that says which row it is.
    categorical, task, positive, drop, ranges, name
        As in `fedtrees.data.csv_table.load_csv`, over the columns of all files.

    Raises
    ------
    DataError
        An id that is missing, stands twice in a file, or is not in every file; a column in two
        files; a file other than the first without columns; labels elsewhere; and as `load_csv`.
    UsageError
        As `load_csv`.
    """
    tables = [read_csv(path) for path in paths]
    rows = [_rows(table, id) for table in tables]
    first = tables[0]
    _check_ids(tables, rows)
    _check_columns(tables, target, id, (*categorical, *drop, *(ranges or {})))
    y, classes = read_target(first, target, task, positive)
    features, parts, files, width = [], [], [], 0
    for table, where in zip(tables, rows, strict=True):
        names = [n for n in table.names if n not in (id, target, *drop)]
        if not names and table is not first:
            raise DataError(f"{table.path}: no columns beside the id {id!r}; leave that party out")
        if names:
            described, X = encoded(table, names, categorical, dict(ranges or {}))
            order = np.array([where[key] for key in rows[0]])
            features += list(described)
            parts.append(X[order])
        files.append(tuple(range(width, width + len(names))))
        width += len(names)
    if not parts:
        raise DataError(f"{first.path}: no feature columns beside the target {target!r}")
    places = [f"{id} {key}" for key in rows[0]]
    schema = Schema(tuple(features), target, classes)
    label = name or "+".join(Path(path).stem for path in paths)
    X = np.concatenate(parts, axis=1)
    return replace(prepare(label, schema, X, y, places=places), files=tuple(files))


def _rows(table: TextTable, id: str) -> dict[str, int]:
    """Return the place of every id in a file."""
    found: dict[str, int] = {}
    for i, key in enumerate(table.column(id)):
        where = f"{table.path}, line {table.lines[i]}"
        if missing(key):
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
        for holder, lacking, keys in (
            (tables[0], table, [k for k in rows[0] if k not in mine]),
            (table, tables[0], [k for k in mine if k not in rows[0]]),
        ):
            if keys:
                shown = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
                raise DataError(
                    f"{lacking.path} lacks {len(keys)} of the ids of {holder.path} ({shown}); "
                    "keep in every file the rows that all of them have"
                )


def _check_columns(
    tables: Sequence[TextTable], target: str, id: str, others: Sequence[str]
) -> None:
    seen: dict[str, Path] = {}
    for table in tables:
        for column in (n for n in table.names if n != id):
            if column in seen:
                raise DataError(
                    f"column {column!r} is in {seen[column]} and in {table.path}; one party holds "
                    "it: drop or rename the other"
                )
            seen[column] = table.path
    if seen.get(target) not in (None, tables[0].path):
        raise DataError(
            f"the target {target!r} is in {seen[target]}; name the file with the labels first"
        )
    whole = replace(tables[0], names=tuple(seen))
    for column in (target, *others):
        if column not in seen:
            whole.column(column)
