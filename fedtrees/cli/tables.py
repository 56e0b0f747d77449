"""The `inspect` and `fetch` commands: interpret a table, and download a dataset."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import DataDir, Format, Output, option, with_bench_options
from fedtrees.core.errors import (
    DataError,
    Problem,
    Problems,
    UsageError,
    closest,
    did_you_mean,
    many,
)
from fedtrees.core.specs import joined_names
from fedtrees.experiments.options import RUN, print_notes
from fedtrees.experiments.table_spec import TABLE_OPTIONS, TableSpec, format_options

if TYPE_CHECKING:
    from fedtrees.data.column_types import Column
    from fedtrees.data.csv_file import TextTable
    from fedtrees.data.user_tables import TableSpec as Declarations

_EXAMPLES = 3
_NARROW = 80  # in a narrower terminal, no examples are printed
#: Options that name a column, with the text that describes the column.
_ROLES = {
    "target": "target",
    "client_column": "client of each row",
    "id": "id of each row",
}


@with_bench_options(*(name for name in TABLE_OPTIONS if name != "csv"))
def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE")],
    *,
    format: Output = Format.TABLE,
    **arguments: Any,
) -> None:
    """Show how the columns of a table are interpreted: kinds, missing values, ids, free text.

    The options that describe a table are those of `fedtrees bench`. With a target, the command also
    checks the table as `fedtrees bench` does, and prints the same notes.

    Parameters
    ----------
    file : str
        A table: CSV, .xlsx, .parquet or .feather.

    Examples
    --------
    Types, missing values and ids::

        fedtrees data inspect patients.csv

    A table with the rows of several hospitals::

        fedtrees data inspect patients.csv --target ill --client-column hospital
    """
    from fedtrees.data.column_types import columns_of
    from fedtrees.data.csv_file import plain_name
    from fedtrees.data.table_files import read_table
    from fedtrees.data.user_tables import TableSpec as Declarations
    from fedtrees.data.user_tables import unknown_names

    if "," in file and not os.path.exists(file):
        raise UsageError(f"{file!r} is no file; to inspect several, name one at a time")
    spec = TableSpec(csv=file, **format_options(arguments))
    declared = Declarations.of(spec.loader_options())
    role_of_column = {
        plain_name(getattr(spec, option_name)): role
        for option_name, role in _ROLES.items()
        if getattr(spec, option_name)
    }
    table = read_table(file, spec.reading, tuple(role_of_column))
    problems = unknown_names(table, plain_name(spec.target), declared)
    for option_name in ("client_column", "id"):
        name = plain_name(getattr(spec, option_name))
        if name and name not in table.names:
            text = f"no column {name!r}{did_you_mean(name, table.names)}"
            fix = closest(name, table.names) or "COLUMN"
            problems.append(Problem(text, option_name.replace("_", "-"), fix))
    if problems:
        raise Problems(file, problems)
    columns = [
        replace(column, out=role_of_column[column.name])
        if column.name in role_of_column
        else _interpret(table, column, declared)
        for column in columns_of(table)
    ]
    facts: dict[str, Any] = {
        "file": file,
        "rows": len(table),
        "notes": _notes(table, columns),
        "columns": [_facts(table, column) for column in columns],
    }
    printed_notes = [*facts["notes"], *_column_notes(facts["columns"])]
    refusal = None
    if spec.target and not spec.id:  # an id joins this file with files that are not given
        from fedtrees.experiments.federation import load_dataset
        from fedtrees.experiments.suite import DataRef

        try:
            dataset = load_dataset(DataRef(spec.label, **vars(spec)), None)
            printed_notes = facts["notes"] = list(dataset.notes)
        except DataError as error:
            refusal = error
    emit(facts, format, lambda: _print_columns(facts, printed_notes))
    if refusal:
        raise refusal


def _print_columns(facts: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print the interpretation of a table."""
    columns = facts["columns"]
    shown = [
        [c["column"], c["kind"], f"{c['missing']:.0%}" if c["missing"] else "", str(c["distinct"]),
         " | ".join(c["examples"]), "" if c["used"] else c["why"]]
        for c in columns
    ]  # fmt: skip
    title = f"{facts['file']}: {many(facts['rows'], 'row')}, {many(len(columns), 'column')}"
    heads = ["column", "type", "missing", "different", "examples", "not a feature"]
    # The remaining columns need the space.
    if console().width < _NARROW:
        heads.remove("examples")
        shown = [[*line[:4], line[5]] for line in shown]
    console().print(text_table(title, heads, shown, box=None, pad_edge=False))
    print_notes(notes)


def _interpret(table: TextTable, column: Column, declared: Declarations) -> Column:
    """Return a column as the benchmark interprets it, or with the reason for its refusal."""
    from fedtrees.data.user_tables import interpret_column

    try:
        return interpret_column(table, column, declared)
    except Problems as error:
        return replace(column, out="refused", note=error.problems[0].text)


def _notes(table: TextTable, columns: Sequence[Column]) -> list[str]:
    """Return the notes on a table whose target is not known."""
    from fedtrees.data.user_tables import client_notes, probable_marks_notes

    features = [column for column in columns if not column.out]
    categories = {c.name: c.distinct for c in features if c.categorical}
    return [*table.notes, *probable_marks_notes(table, features), *client_notes(categories)]


def _column_notes(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the notes on single columns, and the option that uses columns that are left out."""
    from fedtrees.data.user_tables import AS_DECLARED

    yield from (f"{c['column']}: {c['note']}" for c in columns if c["note"])
    usable = ("id", "date", "text")
    assigned = (*_ROLES.values(), AS_DECLARED)
    left_out = [
        c["column"]
        for c in columns
        if not c["used"] and c["kind"] in usable and c["why"] not in assigned
    ]
    if left_out:
        text = "fedtrees bench takes them with --keep " + shlex.quote(joined_names(left_out))
        yield f"left out unless they are asked for: {text}"


def _facts(table: TextTable, column: Column) -> dict[str, Any]:
    """Return the facts about a column that are printed."""
    from fedtrees.data.cells import look_alikes

    cells = (cell for cell in table.column(column.name) if column.present)
    comma = "decimal comma" if column.name in table.commas else ""
    counts = table.marks.get(column.name, {})
    marks = [f"read as missing: {', '.join(map(repr, counts))}"] if counts else []
    similar = look_alikes(column.order) if column.categorical else []
    return {
        "column": column.name,
        "kind": column.kind,
        "missing": 1 - column.present / column.rows,
        "distinct": column.distinct,
        "near_unique": column.near_unique,
        "examples": _short(_first(cells)),
        "used": not column.out,
        "why": column.out,
        "note": "; ".join(filter(None, [comma, *marks, column.note, *similar])),
        "equal_as_float32": column.merges,
    }


def _first(cells: Any) -> list[str]:
    """Return the first distinct cells that are not missing."""
    examples: dict[str, None] = {}
    for cell in cells:
        if cell:
            examples[cell] = None
        if len(examples) == _EXAMPLES:
            break
    return list(examples)


def _short(texts: Sequence[str]) -> list[str]:
    """Shorten texts to 16 characters."""
    plain = (" ".join(text.split()) for text in texts)
    return [text if len(text) <= 16 else f"{text[:15]}…" for text in plain]


def fetch(
    name: Annotated[str, typer.Argument()],
    data_dir: DataDir = None,
    url: Annotated[str | None, option(RUN, "URL")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Download a dataset and verify its checksum. No other command downloads anything.

    Parameters
    ----------
    name : str
        A dataset that is not bundled.
    url : str, optional
        Download the file from this address instead.

    Examples
    --------
    A table that is not bundled::

        fedtrees data fetch stroke

    Into a folder of your choice::

        fedtrees data fetch adult --data-dir tables
    """
    from fedtrees.data.downloads import data_directory
    from fedtrees.data.downloads import fetch as download

    path = download(name, data_directory(data_dir), url)
    done = {"name": name, "file": str(path)}
    emit(done, format, f"{name}  {path}")
