"""The `compare` command: show the differences between runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.options import Format, Output

if TYPE_CHECKING:
    from rich.table import Table

    from fedtrees.report.compare import Change, Comparison

# Numbers of lines, so that the output fits on a screen.
_MOST_LEAKS, _MOST_PRICES, _MOST_INPUTS = 6, 4, 6
_LONGEST = 40  # characters of an input that are printed


def compare(
    before: Annotated[str, typer.Argument(help="A run folder.")],
    after: Annotated[list[str], typer.Argument(help="Others, each compared with the one before.")],
    format: Output = Format.TABLE,
) -> None:
    """Show the differences between runs, paired by cell and seed.

    Several runs are compared in order.

    A leak is the advantage of the strongest attack on each seed. Only attacks that both runs
    finished are considered.
    """
    from fedtrees.report.compare import compare as compared

    steps = [compared(*pair) for pair in pairwise([before, *after])]
    if format.is_json:
        comparisons = [step.as_json() for step in steps]
        typer.echo(json.dumps(comparisons if len(steps) > 1 else comparisons[0], indent=1))
        return
    from fedtrees.cli.inspect import console

    out = console()
    if len(steps) > 1:
        out.print(_history(steps))
        return
    from rich.table import Table
    from rich.text import Text

    (step,) = steps
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for key, text in _lines(step):
        grid.add_row(key, Text(text))
    out.print(grid)
    out.print(step.verdict, markup=False)


def _history(steps: Sequence[Comparison]) -> Table:
    """Return a table with a line for each run after the first: its inputs and the changes."""
    from rich.table import Table
    from rich.text import Text

    history = Table(box=None, pad_edge=False)
    for head in ("run", "inputs", "leaks", "utility", "most"):
        history.add_column(head, overflow="fold")
    for step in steps:
        changes = (step.leaks, [c for c in step.differing if c.threat]), (
            step.utility, [c for c in step.differing if not c.threat])  # fmt: skip
        counted = [_count_changes(len(every), differing) for every, differing in changes]
        history.add_row(*map(Text, (step.runs[1], _inputs(step), *counted, step.verdict)))
    return history


def _lines(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the lines about one comparison."""
    from fedtrees.core.errors import many

    cells = [f"{many(comparison.common, 'cell')} of both"]
    for run, (n, by) in zip(comparison.runs, comparison.only, strict=True):
        cells += [f"{n:,} of {run} alone{f' ({by})' if by else ''}"] * bool(n)
    yield "cells", "; ".join(cells)
    if comparison.ended:
        yield "ended", "; ".join(f"{how}: {n:,}" for how, n in comparison.ended.items())
    yield "inputs", _inputs(comparison)
    leaks = [c for c in comparison.differing if c.threat]
    prices = [c for c in comparison.differing if not c.threat]
    yield from _changes("leaks", len(comparison.leaks), leaks, _MOST_LEAKS)
    yield from _changes("utility", len(comparison.utility), prices, _MOST_PRICES)


def _inputs(comparison: Comparison) -> str:
    """Write the differences between the inputs."""
    inputs = [f"{k} {_short(a)} → {_short(b)}" for k, (a, b) in comparison.inputs.items()]
    more = [f"{len(inputs) - _MOST_INPUTS} more (--format json)"] * (len(inputs) > _MOST_INPUTS)
    return "; ".join([*inputs[:_MOST_INPUTS], *more]) or "the same"


def _changes(
    name: str, compared: int, changes: Sequence[Change], limit: int
) -> Iterator[tuple[str, str]]:
    """Yield the lines about leaks or utility."""
    yield name, _count_changes(compared, changes)
    for change in changes[:limit]:
        yield "", str(change)
    if len(changes) > limit:
        yield "", f"{len(changes) - limit:,} more: --format json"


def _count_changes(compared: int, changes: Sequence[Change]) -> str:
    """Count the changes by their direction."""
    clear = [c.worse for c in changes if c.clear]
    worse = sum(w > 0 for w in clear)
    counts = {
        "the same": compared - len(changes),
        "clearly worse": worse,
        "clearly better": len(clear) - worse,
        "not settled": len(changes) - len(clear),
    }
    texts = [
        f"{compared:,} compared",
        *(f"{n:,} {direction}" for direction, n in counts.items() if n),
    ]
    # If results differ by chance only, one in twenty intervals excludes zero.
    if clear and len(changes) >= 20:
        texts.append("one in twenty would be clear by chance")
    return ", ".join(texts)


def _short(value: Any) -> str:
    """Shorten a value."""
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
