"""The `bench` command: from options to a run folder, a table and a report."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from fedtrees.bench.session import Bench, default_workers, fresh_folder, reopen
from fedtrees.bench.suite import DEFAULT_SUITE, Suite
from fedtrees.core.errors import UsageError
from fedtrees.core.registry import load_plugin


@dataclass(frozen=True)
class Request:
    """The options of one call, as in `fedtrees bench --help`."""

    options: Mapping[str, Any]
    seeds: str | None
    suite: str | None
    jobs: int | None
    out: str | None
    resume: bool
    time_limit: float | None
    dry_run: bool
    data_dir: str | None
    plugins: tuple[str, ...]
    as_json: bool


def run(request: Request) -> None:
    """Run a bench and print its result.

    Raises
    ------
    typer.Exit
        With code 3 if some cells failed.
    """
    for plugin in request.plugins:
        load_plugin(plugin)
    suite, folder = _suite(request)
    workers = default_workers() if request.jobs is None else request.jobs
    if workers < 1:
        raise UsageError(f"--jobs {request.jobs}: give 1 or more")
    bench = Bench(suite, folder, workers, request.data_dir, request.plugins)
    if request.dry_run:
        _dry_run(bench, request.as_json)
        return
    bench.open(request.resume)
    counts = _run_with_progress(bench)
    _finish(bench, counts, request.as_json)


def _suite(request: Request) -> tuple[Suite, Path]:
    """Return the suite to run and where."""
    if request.resume:
        if request.out is None:
            raise UsageError("--resume needs --out RUN: which run to finish")
        folder = Path(request.out)
        begun = reopen(folder)
        suite = Suite.load(request.suite) if request.suite else begun
        suite = suite.override(request.options, request.seeds)
        if replace(suite, time_limit=begun.time_limit) != begun:
            raise UsageError(
                f"--resume finishes {folder} as it was begun; for other options choose another "
                "--out"
            )
    else:
        suite = Suite.load(request.suite or DEFAULT_SUITE)
        suite = suite.override(request.options, request.seeds)
        folder = Path(request.out) if request.out else fresh_folder(Path("runs"), suite.name)
    if request.time_limit is not None:
        if not 0 <= request.time_limit < float("inf"):
            raise UsageError(f"--time-limit {request.time_limit}: give seconds, 0 for no limit")
        suite = replace(suite, time_limit=request.time_limit)
    return suite, folder


def _dry_run(bench: Bench, as_json: bool) -> None:
    cells = [c.describe() for c in bench.plan.cells()]
    if as_json:
        typer.echo(json.dumps({"out": str(bench.folder), "cells": cells}, indent=1))
        return
    missing = sum(len(job.cells) for phase in bench.remaining() for job in phase)
    for cell in bench.plan.cells():
        typer.echo(f"{cell.stage:9} {cell.label}")
    typer.echo(f"{len(cells)} cells, {missing} to compute, into {bench.folder}")


def _run_with_progress(bench: Bench) -> Counter[str]:
    """Run with a bar on stderr: cells done, failures, time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    total = sum(len(job.cells) for phase in bench.remaining() for job in phase)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("time left"),
        TimeRemainingColumn(),
    )
    print(
        f"{total} cells to compute, {bench.workers} processes, into {bench.folder}", file=sys.stderr
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("bench", total=total)

            def done(status: str, label: str) -> None:
                progress.advance(task)
                if status not in ("ok", "skipped"):
                    console.print(f"{status}: {label}", markup=False, highlight=False)

            return bench.run(done)
    except KeyboardInterrupt:
        print(
            f"\nstopped; finished cells are kept. Go on with: "
            f"fedtrees bench --resume --out {bench.folder}",
            file=sys.stderr,
        )
        raise


def _finish(bench: Bench, counts: Counter[str], as_json: bool) -> None:
    from fedtrees.cli.results import failures, leaderboards, summary
    from fedtrees.report.html import write_report

    report = write_report(bench.folder)
    bad = failures(bench.folder)
    if as_json:
        extra = {"computed": dict(counts), "report": str(report)}
        typer.echo(json.dumps({**summary(bench.folder, None), **extra}, indent=1))
    else:
        leaderboards(bench.folder, None)
        typer.echo(f"\nreport  {report}\nrows    {bench.folder / 'rows.csv'}")
        typer.echo(f"figure  fedtrees plot {bench.folder} -o frontier.pdf")
    if bad:
        print(f"{bad} cells failed; `fedtrees show {bench.folder}` names them", file=sys.stderr)
        raise typer.Exit(3)
