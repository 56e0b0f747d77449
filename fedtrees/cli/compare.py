"""The `compare` command: what changed from one run to another."""

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

_MOST_LEAKS, _MOST_PRICES, _MOST_INPUTS = 6, 4, 6  # lines: at most a screen in all
_LONGEST = 40  # characters of a value of the environment or the suite


def compare(
    before: Annotated[str, typer.Argument(help="A run folder.")],
    after: Annotated[list[str], typer.Argument(help="Others, each compared with the one before.")],
    format: Output = Format.TABLE,
) -> None:
    """Say what changed from one run to another, paired by cell and seed; of more, step by step.

    A leak is the advantage of the strongest attack on each seed, of the attacks that both runs
    finished.
    """
    from fedtrees.report.compare import compare as compared

    steps = [compared(*pair) for pair in pairwise([before, *after])]
    if format.is_json:
        told = [found.as_json() for found in steps]
        typer.echo(json.dumps(told if len(steps) > 1 else told[0], indent=1))
        return
    from fedtrees.cli.inspect import console

    out = console()
    if len(steps) > 1:
        out.print(_history(steps))
        return
    from rich.table import Table
    from rich.text import Text

    (found,) = steps
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for key, text in _lines(found):
        made.add_row(key, Text(text))
    out.print(made)
    out.print(found.verdict, markup=False)


def _history(steps: Sequence[Comparison]) -> Table:
    """Return a line for each run after the first: what it was run with, and what changed."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    for head in ("run", "inputs", "leaks", "utility", "most"):
        made.add_column(head, overflow="fold")
    for found in steps:
        changes = (found.leaks, [c for c in found.differing if c.threat]), (
            found.utility, [c for c in found.differing if not c.threat])  # fmt: skip
        counted = [_counted(len(every), differing) for every, differing in changes]
        made.add_row(*map(Text, (found.runs[1], _inputs(found), *counted, found.verdict)))
    return made


def _lines(found: Comparison) -> Iterator[tuple[str, str]]:
    from fedtrees.core.counts import many

    cells = [f"{many(found.common, 'cell')} of both"]
    for run, (n, by) in zip(found.runs, found.only, strict=True):
        cells += [f"{n:,} of {run} alone{f' ({by})' if by else ''}"] * bool(n)
    yield "cells", "; ".join(cells)
    if found.ended:
        yield "ended", "; ".join(f"{how}: {n:,}" for how, n in found.ended.items())
    yield "inputs", _inputs(found)
    leaks = [c for c in found.differing if c.threat]
    prices = [c for c in found.differing if not c.threat]
    yield from _changes("leaks", len(found.leaks), leaks, _MOST_LEAKS)
    yield from _changes("utility", len(found.utility), prices, _MOST_PRICES)


def _inputs(found: Comparison) -> str:
    inputs = [f"{k} {_short(a)} → {_short(b)}" for k, (a, b) in found.inputs.items()]
    more = [f"{len(inputs) - _MOST_INPUTS} more (--format json)"] * (len(inputs) > _MOST_INPUTS)
    return "; ".join([*inputs[:_MOST_INPUTS], *more]) or "the same"


def _changes(
    name: str, compared: int, found: Sequence[Change], most: int
) -> Iterator[tuple[str, str]]:
    yield name, _counted(compared, found)
    for change in found[:most]:
        yield "", str(change)
    if len(found) > most:
        yield "", f"{len(found) - most:,} more: --format json"


def _counted(compared: int, found: Sequence[Change]) -> str:
    clear = [c.worse for c in found if c.clear]
    worse = sum(w > 0 for w in clear)
    counts = {
        "the same": compared - len(found),
        "clearly worse": worse,
        "clearly better": len(clear) - worse,
        "not settled": len(found) - len(clear),
    }
    told = [f"{compared:,} compared", *(f"{n:,} {what}" for what, n in counts.items() if n)]
    # Where results differ by their randomness alone, so do these.
    if clear and len(found) >= 20:
        told.append("one in twenty would be clear by chance")
    return ", ".join(told)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
