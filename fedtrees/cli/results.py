"""The `show`, `report` and `compare` commands: print the results of runs, and their differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import console, emit
from fedtrees.cli.options import Format, Margin, Output, RunFolder, option
from fedtrees.core.errors import listed
from fedtrees.core.reasons import NO_CLAIM
from fedtrees.experiments.options import OUTPUT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedtrees.report.compare import Change, Comparison
    from fedtrees.report.coverage import Gap
    from fedtrees.report.findings import RunAnalysis


def show(
    run: RunFolder,
    metric: Annotated[str | None, option(OUTPUT, "METRIC")] = None,
    margin: Margin = None,
    skipped: Annotated[bool, option(OUTPUT, "", "--skipped")] = False,
    format: Output = Format.TABLE,
) -> None:
    """Print the verdict of a run, its tables, and what did not run.

    Parameters
    ----------
    metric : str, optional
        Leakage metric: ra (default), exact_rows, leaf_mass_exact.
    skipped : bool, optional
        List the attacks that did not apply, with reasons.

    Examples
    --------
    The verdict, followed by tables::

        fedtrees show runs/quick

    With the attacks that did not apply, and why::

        fedtrees show runs/quick --skipped
    """
    from fedtrees.report.findings import analyze_run
    from fedtrees.report.json_export import summary

    analysis = analyze_run(Path(run), metric, margin)

    def print_run() -> None:
        print_verdict(analysis)
        console().print()
        print_tables(analysis, skipped=skipped)
        n_folded = sum(gap.status == "skipped" for gap in analysis.gaps.requested)
        if n_folded and not skipped:
            console().print(
                f"Attacks and defenses that did not apply: {n_folded} entries with reasons, "
                f"which fedtrees show {run} --skipped lists.",
                markup=False,
                style="dim",
            )

    emit(lambda: summary(analysis), format, print_run)


def report(run: RunFolder, margin: Margin = None, format: Output = Format.TABLE) -> None:
    """Write the HTML report of a run again. It is a self-contained file.

    Examples
    --------
    The report as report.html in the run folder::

        fedtrees report runs/quick

    An advantage of 10% over a blind guess still counts as no leak::

        fedtrees report runs/quick --margin 0.1
    """
    from fedtrees.report.leakage import MARGIN
    from fedtrees.report.page import write_report

    path = str(write_report(run, margin=MARGIN if margin is None else margin))
    emit({"file": path}, format, path)


def print_tables(analysis: RunAnalysis, *, skipped: bool = False) -> None:
    """Print one table per setting, then failures, and skipped cells if requested.

    Skipped cells are also printed if no attack ran at all.
    """
    from fedtrees.report.verdict import table

    out = console()
    for setting_findings in analysis.settings:
        rich_table, legend = table(setting_findings, out.width, analysis.metric)
        out.print(str(setting_findings.setting), style="bold", markup=False)
        out.print(rich_table)
        out.print(legend, markup=False, style="dim")
        out.print()
    rows = analysis.rows[analysis.rows["stage"] != "adversary"]
    attacked = bool(((rows["stage"] == "attack") & (rows["status"] == "ok")).any())
    gaps = [g for g in analysis.gaps.requested if skipped or not attacked or g.status != "skipped"]
    for line in map(str, gaps) if skipped else fold_no_claims(gaps):
        out.print(line, markup=False)


def fold_no_claims(gaps: Iterable[Gap]) -> Iterator[str]:
    """Write one line per gap. Attacks without a claim for the same reason share a line."""
    groups: dict[tuple[object, ...], list[Gap]] = {}
    for gap in gaps:
        key = (gap.names, str(gap.why)) if gap.status == NO_CLAIM else (gap,)
        groups.setdefault(key, []).append(gap)
    for group in groups.values():
        if len(group) == 1:
            yield str(group[0])
            continue
        protocols = dict.fromkeys(g.setting.protocol.partition("[")[0] for g in group)
        threats = dict.fromkeys(g.threat for g in group)
        place = f"{listed([*protocols])}; {listed([*threats])}"
        yield f"returned no claim: {listed(group[0].names)} ({place}): {group[0].why}"


def print_verdict(analysis: RunAnalysis, out: Console | None = None) -> None:
    """Print the verdict of a run with its labels in a separate column."""
    from rich.text import Text

    from fedtrees.report.verdict import SCREEN_COLUMNS, verdict

    out = out or console()
    result = verdict(analysis)
    out.print()
    out.print(result.setting, style="bold", markup=False)
    for line in result.lines:
        entry = Text(line.wrapped(min(out.width, SCREEN_COLUMNS)))
        entry.stylize("bold", 0, len(line.label))
        out.print(entry, soft_wrap=True)


# Numbers of lines, so that the output fits on a screen.
_MOST_LEAKS, _MOST_PRICES, _MOST_INPUTS = 6, 4, 6
_LONGEST = 40  # characters of an input that are printed


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE")],
    after: Annotated[list[str], typer.Argument(metavar="AFTER...")],
    format: Output = Format.TABLE,
) -> None:
    """Show the differences between runs, paired by cell and seed.

    Several runs are compared in order.

    A leak is the advantage of the strongest attack on each seed. Only attacks that both runs
    finished are considered.

    Parameters
    ----------
    before : str
        A run folder.
    after : sequence of str
        Further run folders, each compared with the previous one.

    Examples
    --------
    Two runs, paired by cell and seed::

        fedtrees results compare runs/a runs/b

    Several runs in order, each with the one before::

        fedtrees results compare runs/a runs/b runs/c --format json
    """
    from fedtrees.report.compare import compare as compared

    steps = [compared(*pair) for pair in pairwise([before, *after])]
    comparisons = [step.as_json() for step in steps]
    facts = comparisons if len(steps) > 1 else comparisons[0]
    emit(facts, format, lambda: _print_comparison(steps))


def _print_comparison(steps: Sequence[Comparison]) -> None:
    """Print the differences between two runs, or a line for each of several steps."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    if len(steps) > 1:
        out.print(_comparison_history(steps))
        return
    (step,) = steps
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for key, text in _comparison_lines(step):
        grid.add_row(key, Text(text))
    out.print(grid)
    out.print(step.verdict, markup=False)


def _comparison_history(steps: Sequence[Comparison]) -> Table:
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
        history.add_row(*map(Text, (step.runs[1], _format_inputs(step), *counted, step.verdict)))
    return history


def _comparison_lines(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the lines about one comparison."""
    from fedtrees.core.errors import many

    cells = [f"{many(comparison.common, 'cell')} of both"]
    for run, (n, by) in zip(comparison.runs, comparison.only, strict=True):
        cells += [f"{n:,} only in {run}{f' ({by})' if by else ''}"] * bool(n)
    yield "cells", "; ".join(cells)
    if comparison.ended:
        yield "ended", "; ".join(f"{how}: {n:,}" for how, n in comparison.ended.items())
    yield "inputs", _format_inputs(comparison)
    leaks = [c for c in comparison.differing if c.threat]
    prices = [c for c in comparison.differing if not c.threat]
    yield from _change_lines("leaks", len(comparison.leaks), leaks, _MOST_LEAKS)
    yield from _change_lines("utility", len(comparison.utility), prices, _MOST_PRICES)


def _format_inputs(comparison: Comparison) -> str:
    """Write the differences between the inputs."""
    inputs = [f"{k} {_shorten(a)} → {_shorten(b)}" for k, (a, b) in comparison.inputs.items()]
    more = [f"{len(inputs) - _MOST_INPUTS} more (--format json)"] * (len(inputs) > _MOST_INPUTS)
    return "; ".join([*inputs[:_MOST_INPUTS], *more]) or "the same"


def _change_lines(
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


def _shorten(value: Any) -> str:
    """Shorten a value."""
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
