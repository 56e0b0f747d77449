"""Options that several commands share, each written once."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.core.errors import UsageError

if TYPE_CHECKING:
    from fedtrees.protocols.base import Protocol


class Format(StrEnum):
    """How a command writes its result."""

    TABLE = "table"
    JSON = "json"

    @property
    def is_json(self) -> bool:
        """Whether the result is for programs."""
        return self is Format.JSON


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return what completes names of a kind on the command line; after commas the last one."""

    def completed(begun: str) -> list[str]:
        from fedtrees.core.registry import register

        head, comma, last = begun.rpartition(",")
        known = register.names(kind)
        if kind == "dataset":
            from fedtrees.data import catalogue

            known += catalogue.names()
        return [head + comma + name for name in known if name.startswith(last)]

    return completed


Output = Annotated[Format, typer.Option("--format", help="How to write the result.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A Python file with @register decorators (repeatable)."),
]
DataDir = Annotated[
    str | None,
    typer.Option(help="Folder with data files (default: $FEDTREES_DATA, or the user's own)."),
]
Defenses = Annotated[
    list[str] | None,
    typer.Option(
        "-d",
        "--defense",
        help="Defenses, with grids: split-only, laplace-hist[epsilon=1,4].",
        autocompletion=names_of("defense"),
    ),
]
Csv = Annotated[
    list[str] | None,
    typer.Option(
        help="Your own table: CSV, .xlsx or .parquet. Repeat it for a file per client, or with "
        "--id for a file per party of a vertical federation."
    ),
]
ClientColumn = Annotated[str, typer.Option(help="Column of --csv that says who has the row.")]
Id = Annotated[str, typer.Option(help="Column that joins the parties' files, the labels' first.")]
Target = Annotated[str, typer.Option(help="Target column of --csv.")]
Positive = Annotated[str, typer.Option(help="Positive class of --csv.")]
Categorical = Annotated[
    list[str] | None,
    typer.Option(help="More columns of --csv to be coded as categories (repeat or commas)."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Columns of --csv to use although they look like ids, dates or free text."),
]
Drop = Annotated[list[str] | None, typer.Option(help="Columns of --csv to leave out.")]
Sep = Annotated[
    str,
    typer.Option(help="Separator of the CSV file, one character or 'tab' (default: found out)."),
]
Task = Annotated[
    str,
    typer.Option(help="What the target of --csv is: binary, classes, number (default: inferred)."),
]
Margin = Annotated[
    float | None,
    typer.Option(help="Advantage that counts as down to blind (default: 0.05)."),
]
Clients = Annotated[int, typer.Option(help="Number of clients.")]
Details = Annotated[
    bool, typer.Option("--details", help="Print all tables, not only what matters most.")
]
RunFolder = Annotated[str, typer.Argument(help="A run folder.")]


def columns_of(texts: Sequence[str] | None) -> list[str]:
    """Return the column names of a repeated option with commas."""
    return [c for text in texts or () for c in text.split(",") if c]


def check_clients(clients: int) -> None:
    """Raise `UsageError` unless there is a client."""
    if clients < 1:
        raise UsageError(f"--clients {clients}: a federation needs at least one client")


def check_parties(protocol: Protocol, clients: int) -> None:
    """Raise `UsageError` where a protocol is left with one party, who has nobody to talk to."""
    if len(protocol.roles(clients)) < 2:
        raise UsageError(
            f"--clients {clients}: {protocol.name!r} would be one party that trains alone; give 2 "
            "or more (it counts all parties that hold data)"
        )


def csv_table(
    csv: Sequence[str] | None, data: Any, target: str, **others: str | Sequence[str] | None
) -> dict[str, Any] | None:
    """Return how to read --csv, as a suite says it; None where there is no such file.

    `csv`: Files, each option's with commas or without. `others`: Further options by name; lists of
    columns as they are repeated on the command line.

    Raises `UsageError` if options contradict one another.
    """
    lists = ("categorical", "keep", "drop")
    given = {k: columns_of(v) if k in lists else v for k, v in others.items()}
    given = {k: v for k, v in given.items() if v}
    if csv is None:
        if target or given:
            names = (*(["target"] if target else []), *given)
            named = ["--" + name.replace("_", "-") for name in names]
            raise UsageError(f"{', '.join(named)}: only with a table of one's own; give --csv FILE")
        return None
    files = ",".join(csv)
    if not all(files.split(",")) and not os.path.exists(files):
        raise UsageError(f"--csv {files!r} lacks the name of a file; give --csv FILE for each")
    if data:
        raise UsageError(
            "give --data or --csv, not both; bench them one after the other, and give "
            "`fedtrees table` both runs"
        )
    if not target:
        raise UsageError(f"--csv needs --target COLUMN{_columns_in(files, given.get('sep', ''))}")
    if "sep" in given:
        given["sep"] = separator_of(str(given["sep"]))
    return {"csv": files, "target": target, **given}


def by_client(
    table: Mapping[str, Any] | None, options: Mapping[str, Any], data_dir: str | None
) -> dict[str, Any]:
    """Return options of a grid with the clients that a table tells of, where none are named.

    Raises `DataError` or `UsageError` as `fedtrees.data.clients.load_clients`.
    """
    from fedtrees.bench.federation import load_dataset
    from fedtrees.bench.suite import DataRef
    from fedtrees.data.partition import BY_CLIENT

    ref = DataRef.parse(table) if table else None
    if ref is None or not ref.clients_are_told or options.get("partitions"):
        return dict(options)
    count = len(load_dataset(ref, data_dir).owner_names)
    return {**options, "partitions": [BY_CLIENT], "clients": options.get("clients") or [count]}


def separator_of(text: str) -> str:
    """Return the character that --sep names.

    Raises `UsageError` if it is none.
    """
    character = {"tab": "\t", "\\t": "\t", "space": " "}.get(text, text)
    if len(character) > 1 or character in ('"', "\n", "\r", "\0"):
        raise UsageError(f"--sep {text!r}: give one character, tab or space")
    return character


def _columns_in(csv: str, separator: str) -> str:
    """Return the columns to choose the target from, where the file can be read."""
    from fedtrees.core.errors import DataError
    from fedtrees.data.spreadsheets import read_table

    try:
        names = read_table(csv.split(",")[0], separator_of(separator)).names
    except DataError:
        return ""
    return f"; the columns are {', '.join(names[:60])}" + (", ..." if len(names) > 60 else "")


def tell(notes: Sequence[str]) -> None:
    """Print on stderr what was found out about a table, a line for each kind of thing."""
    width = max(40, shutil.get_terminal_size().columns)
    for note in notes:
        text = textwrap.fill(
            note, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        print(text, file=sys.stderr)


def load_plugins(files: Sequence[str] | None) -> tuple[str, ...]:
    """Load plugin files and return their names."""
    from fedtrees.core.registry import load_plugin

    if files:
        import fedtrees.isolation.plugins  # attacks are told of from there

        assert fedtrees.isolation.plugins
    for file in files or ():
        load_plugin(file)
    return tuple(files or ())
