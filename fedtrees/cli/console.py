"""Print the result of a command: as JSON for programs, or as text and tables for a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from fedtrees.cli.options import Format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TextTable

# A name, or any cell, is never broken up to this number of characters.
_NAME, _SHORT = 24, 12


def emit(
    facts: Any, format: Format, text: str | Callable[[], None], *, one_line: bool = False
) -> None:
    """Print the result of a command in the requested format.

    Parameters
    ----------
    facts : object
        The result as plain JSON types, or a function that returns it.
    format : Format
        The requested format.
    text : str or callable
        The result as text, or a function that prints it.
    one_line : bool
        Whether JSON is written in one line, for a program that reads the output line by line.
    """
    if format.is_json:
        result = facts() if callable(facts) else facts
        typer.echo(json.dumps(result, indent=None if one_line else 1))
    elif callable(text):
        text()
    else:
        typer.echo(text)


def console() -> Console:
    """Return a console for stdout, with 160 columns if the output is not a terminal."""
    from rich.console import Console

    out = Console(highlight=False)
    wide = None if "COLUMNS" in os.environ else 160
    return out if out.is_terminal else Console(highlight=False, width=wide)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner with a text on stderr while the body runs, if stderr is a terminal."""
    from rich.console import Console

    out = Console(stderr=True)
    if out.is_terminal:
        with out.status(text):
            yield
    else:
        yield


def text_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any
) -> TextTable:
    """Return a table with a bold title, in which only long cells are wrapped.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : sequence of str
        Header.
    rows : iterable of sequence of str
        Cells. They are not interpreted as markup.
    **options
        Options of `rich.table.Table`.
    """
    from rich.markup import escape
    from rich.table import Table as TextTable

    table = TextTable(title=escape(title), title_justify="left", title_style="bold", **options)
    lines = [list(row) for row in rows]
    for k, column in enumerate(columns):
        longest = max(len(cell) for cell in (column, *(line[k] for line in lines)))
        unbroken = longest <= (_NAME if k == 0 else _SHORT)
        table.add_column(escape(column), overflow="fold", no_wrap=unbroken)
    for row in lines:
        table.add_row(*map(escape, row))
    return table
