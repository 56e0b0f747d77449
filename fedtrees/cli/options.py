"""Options that several commands share, each written once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from fedtrees.core.errors import UsageError


class Format(StrEnum):
    """How a command writes its result."""

    TABLE = "table"
    JSON = "json"

    @property
    def is_json(self) -> bool:
        """Whether the result is for programs."""
        return self is Format.JSON


Output = Annotated[Format, typer.Option("--format", help="How to write the result.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="A Python file with @register decorators (repeatable)."),
]
DataDir = Annotated[
    str | None, typer.Option(help="Folder with data files (default: $FEDTREES_DATA).")
]
Defenses = Annotated[
    list[str] | None,
    typer.Option(
        "-d", "--defense", help="Defenses, with grids: split-only, laplace-hist[epsilon=1,4]."
    ),
]
Csv = Annotated[
    str | None,
    typer.Option(help="A CSV file instead of --data; with --id one per party, with commas."),
]
Id = Annotated[str, typer.Option(help="Column that joins the parties' files, the labels' first.")]
Target = Annotated[str, typer.Option(help="Target column of --csv.")]
Positive = Annotated[str, typer.Option(help="Positive class of --csv.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Categorical columns of --csv (repeat or commas).")
]
Margin = Annotated[
    float | None,
    typer.Option(help="Advantage that counts as down to blind (default: 0.05)."),
]
Clients = Annotated[int, typer.Option(help="Number of clients.")]
RunFolder = Annotated[str, typer.Argument(help="A run folder.")]


def columns_of(texts: Sequence[str] | None) -> list[str]:
    """Return the column names of a repeated option with commas."""
    return [c for text in texts or () for c in text.split(",") if c]


def csv_table(
    csv: str | None, data: Any, target: str, categorical: Sequence[str] | None, **others: str
) -> dict[str, Any] | None:
    """Return how to read --csv, as a suite says it; None where there is no such file.

    Raises `UsageError` if options contradict one another.
    """
    columns = columns_of(categorical)
    if csv is None:
        if target or columns or any(others.values()):
            named = [f"--{name}" for name in ("target", *others)]
            raise UsageError(f"{', '.join(named)} and --categorical describe a --csv file")
        return None
    if data:
        raise UsageError("give --data or --csv, not both")
    if not target:
        raise UsageError("--csv needs --target COLUMN")
    if "," in csv and not others.get("id") and not os.path.exists(csv):
        raise UsageError(f"--csv {csv!r} is of several files; give --id COLUMN that joins them")
    given = {name: value for name, value in others.items() if value}
    return {"csv": csv, "target": target, "categorical": columns, **given}


def load_plugins(files: Sequence[str] | None) -> tuple[str, ...]:
    """Load plugin files and return their names."""
    from fedtrees.core.registry import load_plugin

    for file in files or ():
        load_plugin(file)
    return tuple(files or ())
