"""The `inspect` command: what the columns of a table are taken for."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.bench.options import separator_of, tell
from fedtrees.cli.inspect import console, text_table
from fedtrees.cli.options import Format, Output, Sep
from fedtrees.core.errors import UsageError

if TYPE_CHECKING:
    from fedtrees.data.csv_file import TextTable
    from fedtrees.data.kinds import Column

_EXAMPLES = 3
_NARROW = 80  # columns of a terminal below which there is no room for examples


def inspect(
    file: Annotated[str, typer.Argument(help="A table: CSV, .xlsx or .parquet.", metavar="FILE")],
    sep: Sep = "",
    format: Output = Format.TABLE,
) -> None:
    """Show what the columns of a CSV file are taken for: kinds, missing values, ids, free text."""
    from fedtrees.core.counts import many
    from fedtrees.data.kinds import columns_of
    from fedtrees.data.spreadsheets import read_table

    if "," in file and not os.path.exists(file):
        raise UsageError(f"{file!r} is no file; to inspect several, name one at a time")
    table = read_table(file, separator_of(sep))
    columns = [_facts(table, column) for column in map(_read, repeat(table), columns_of(table))]
    facts = {"file": file, "rows": len(table), "notes": table.notes, "columns": columns}
    if format.is_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    shown = [
        [c["column"], c["kind"], f"{c['missing']:.0%}" if c["missing"] else "", str(c["distinct"]),
         " | ".join(c["examples"]), "" if c["used"] else c["why"]]
        for c in columns
    ]  # fmt: skip
    title = f"{file}: {many(len(table), 'row')}, {many(len(columns), 'column')}"
    heads = ("column", "taken for", "missing", "different", "such as", "left out")
    if console().width < _NARROW:  # the rest needs the room
        heads = tuple(head for head in heads if head != "such as")
        shown = [[*line[:4], line[5]] for line in shown]
    console().print(text_table(title, heads, shown, box=None, pad_edge=False))
    tell([*table.notes, *(f"{c['column']}: {c['note']}" for c in columns if c["note"])])
    out = [c["column"] for c in columns if not c["used"] and c["kind"] in ("id", "date", "text")]
    if out:
        text = "fedtrees bench takes them with --keep " + ",".join(out)
        tell([f"left out unless they are asked for: {text}"])


def _read(table: TextTable, column: Column) -> Column:
    """Return a column as the bench takes it, or what it says of one that it refuses."""
    from fedtrees.core.errors import DataError
    from fedtrees.data.kinds import reading

    try:
        return reading(table, column)
    except DataError as error:
        return replace(column, out="refused", note=str(error))


def _facts(table: TextTable, column: Column) -> dict[str, Any]:
    cells = (cell for cell in table.column(column.name) if column.present)
    return {
        "column": column.name,
        "kind": column.kind,
        "missing": 1 - column.present / column.rows,
        "distinct": column.distinct,
        "near_unique": column.near_unique,
        "examples": _short(_first(cells)),
        "used": not column.out,
        "why": column.out,
        "note": "; ".join(filter(None, ["decimal comma" * column.decimal_comma, column.note])),
        "equal_as_float32": column.merges,
    }


def _first(cells: Any) -> list[str]:
    """Return the first different cells that are not missing."""
    from fedtrees.data.cells import missing

    found: dict[str, None] = {}
    for cell in cells:
        if not missing(cell):
            found[cell] = None
        if len(found) == _EXAMPLES:
            break
    return list(found)


def _short(texts: Sequence[str]) -> list[str]:
    plain = (" ".join(text.split()) for text in texts)
    return [text if len(text) <= 16 else f"{text[:15]}…" for text in plain]
