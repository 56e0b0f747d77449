"""The `inspect` and `fetch` commands: interpret a table, and download a dataset."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import console, emit, text_table
from fedtrees.cli.options import DataDir, Decimal, Format, Missing, Output, Sep, Sheet, option
from fedtrees.core.errors import UsageError, many
from fedtrees.core.specs import joined_names
from fedtrees.experiments.options import RUN, print_notes
from fedtrees.experiments.table_spec import parse_reading

if TYPE_CHECKING:
    from fedtrees.data.column_types import Column
    from fedtrees.data.csv_file import TextTable

_EXAMPLES = 3
_NARROW = 80  # in a narrower terminal, no examples are printed


def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE")],
    sep: Sep = "",
    decimal: Decimal = "",
    missing: Missing = None,
    sheet: Sheet = "",
    format: Output = Format.TABLE,
) -> None:
    """Show the inferred kinds of the columns of a table: missing values, ids, free text.

    Parameters
    ----------
    file : str
        A table: CSV, .xlsx, .parquet or .feather.

    Examples
    --------
    Types, missing values and ids::

        fedtrees data inspect patients.csv

    A table with semicolons and decimal commas::

        fedtrees data inspect patients.csv --sep ';' --decimal ,
    """
    from fedtrees.data.column_types import columns_of
    from fedtrees.data.table_files import read_table
    from fedtrees.data.user_tables import client_notes, probable_marks_notes

    if "," in file and not os.path.exists(file):
        raise UsageError(f"{file!r} is no file; to inspect several, name one at a time")
    table = read_table(file, parse_reading(sep, decimal, missing, sheet))
    interpreted = [*map(_read, repeat(table), columns_of(table))]
    columns = [_facts(table, column) for column in interpreted]
    features = [c for c in interpreted if not c.out]
    categories = {c.name: c.distinct for c in features if c.categorical}
    notes = [*table.notes, *probable_marks_notes(table, features), *client_notes(categories)]
    facts = {"file": file, "rows": len(table), "notes": notes, "columns": columns}
    emit(facts, format, lambda: _print_columns(facts))


def _print_columns(facts: Mapping[str, Any]) -> None:
    """Print the interpretation of a table."""
    columns, notes = facts["columns"], facts["notes"]
    shown = [
        [c["column"], c["kind"], f"{c['missing']:.0%}" if c["missing"] else "", str(c["distinct"]),
         " | ".join(c["examples"]), "" if c["used"] else c["why"]]
        for c in columns
    ]  # fmt: skip
    title = f"{facts['file']}: {many(facts['rows'], 'row')}, {many(len(columns), 'column')}"
    heads = ["column", "type", "missing", "different", "examples", "left out"]
    # The remaining columns need the space.
    if console().width < _NARROW:
        heads.remove("examples")
        shown = [[*line[:4], line[5]] for line in shown]
    console().print(text_table(title, heads, shown, box=None, pad_edge=False))
    print_notes([*notes, *(f"{c['column']}: {c['note']}" for c in columns if c["note"])])
    out = [c["column"] for c in columns if not c["used"] and c["kind"] in ("id", "date", "text")]
    if out:
        text = "fedtrees bench takes them with --keep " + shlex.quote(joined_names(out))
        print_notes([f"left out unless they are asked for: {text}"])


def _read(table: TextTable, column: Column) -> Column:
    """Return a column as the benchmark interprets it, or with the reason for its refusal."""
    from fedtrees.core.errors import DataError
    from fedtrees.data.column_types import reading

    if doubt := table.doubts.get(column.name):
        return replace(column, out="refused", note=doubt.text)
    try:
        return reading(table, column)
    except DataError as error:
        return replace(column, out="refused", note=str(error))


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
