"""The `bench` command: run a benchmark, and print its tables and its verdict."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import emit, waiting
from fedtrees.cli.options import Format, Output, option, with_bench_options
from fedtrees.experiments.options import RUN, BenchOptions, print_notes

if TYPE_CHECKING:
    from rich.console import Console

    from fedtrees.core.reasons import Reason
    from fedtrees.experiments.executor import Engine
    from fedtrees.experiments.session import BenchSession

_DEFAULT_KERNELS = 100  # kernels that the default suite compiled with an empty cache: 96
_MAIN_REASONS = 3  # number of reasons why attacks do not apply that a dry run states


@with_bench_options(*(item.name for item in fields(BenchOptions)))
def bench(
    *,
    dry_run: Annotated[bool, option(RUN, "", "--dry-run")] = False,
    on: Annotated[str, option(RUN, "PLACE")] = "",
    format: Output = Format.TABLE,
    **arguments: Any,
) -> None:
    """Train federations with and without defenses, attack them, and report the leaks.

    Options replace those of the suite. For example, `fedtrees bench --defense split-only` runs the
    default suite with this defense. The undefended run and the blind adversary are always added. A
    claim of epsilon is audited in one additional training. `fedtrees privacy measure` audits it
    more thoroughly.

    Parameters
    ----------
    dry_run : bool, optional
        Check everything, and print the plan, the attacks that apply, and the estimated cost.
    on : str, optional
        Where to run: ray (on this machine), or ray=HOST:PORT (on your cluster).

    Examples
    --------
    The default benchmark on a bundled table::

        fedtrees bench

    Two budgets of a defense on your table, for five seeds::

        fedtrees bench --csv patients.csv --target outcome --seeds 5
            -d 'laplace-hist[epsilon=1,4]'
    """
    options = BenchOptions(**arguments)
    with waiting("checking the suite"):
        session = options.session()
    print_notes(session.notes)
    if dry_run:
        _dry_run(session, format)
        return
    engine = _engine(on, session, options) if on else None
    session.open(options.resume)
    counts = _run_with_progress(session, options.margin, engine)
    _finish(session, counts, options.margin, format)


def _engine(on: str, bench: BenchSession, options: BenchOptions) -> Engine:
    """Connect to the machines that run the jobs. Without --jobs, as many run as there are cores."""
    from fedtrees.cluster import RayEngine

    engine = RayEngine(on, bench.runner, bench.plan.federation_configs, bench.workers)
    if options.jobs is None:
        bench.workers = engine.slots
    return engine


def _dry_run(bench: BenchSession, format: Format) -> None:
    """Print the plan of a run, the attacks that apply, and the estimated cost."""
    from fedtrees.core.errors import many
    from fedtrees.experiments.cost_estimate import describe_estimate as in_words
    from fedtrees.experiments.cost_estimate import estimate_cost as estimate
    from fedtrees.experiments.explain import split_attacks

    cells = list(bench.plan.tasks())
    missing = bench.runner.missing(cells)
    cost = estimate(bench.plan, missing, bench.workers, bench.data_dir)
    with waiting("training two trees with every defense, to check which attacks apply"):
        applicable, inapplicable = split_attacks(bench.plan, bench.data_dir, bench.suite.time_limit)
    facts = {
        "out": str(bench.folder),
        "estimate": asdict(cost),
        "attacks": applicable,
        "inapplicable_attacks": {attack: str(why) for attack, why in inapplicable.items()},
        "cells": [cell.describe() for cell in cells],
    }

    def print_plan() -> None:
        for name, values in _describe_grid(bench):
            typer.echo(f"{name:9} {values}")
        typer.echo(f"{'attacks':9} {', '.join(applicable) or 'none applies'}")
        if inapplicable:
            typer.echo(f"{'':9} {_describe_inapplicable(list(inapplicable.values()))}")
        typer.echo(f"{many(len(cells), 'cell')}, {_to_compute(bench)[1]}, into {bench.folder}")
        typer.echo(f"{in_words(cost, bench.workers)}; --format json lists the cells")

    emit(facts, format, print_plan)


def _describe_inapplicable(reasons: Sequence[Reason]) -> str:
    """Count the attacks that do not apply, and state the most frequent reasons."""
    from fedtrees.core.errors import many

    counts = Counter(reason.code for reason in reasons)
    # The remedies of one kind of reason can differ between attacks.
    texts = {reason.code: str(reason) for reason in reversed(reasons)}
    main = [f"{count}: {texts[code]}" for code, count in counts.most_common(_MAIN_REASONS)]
    attacks = many(len(reasons), "further attack does", "further attacks do")
    return f"{attacks} not apply ({' | '.join(main)}); --format json lists them with all reasons"


def _describe_grid(bench: BenchSession) -> Iterator[tuple[str, str]]:
    """Yield the values of each axis except the attacks, and the combinations that do not fit."""
    from fedtrees.core.registry import register
    from fedtrees.experiments.evaluate import parts_of
    from fedtrees.protocols.compatibility import check_fit

    axes: dict[str, dict[str, None]] = {}
    unfit: dict[str, None] = {}
    for group in bench.plan.groups:
        at, train = group.train.federation_config, group.train
        run = {
            "data": [f"{at.data.name} · {at.partition_text}"],
            "seeds": [str(at.seed)],
            "protocols": [str(train.protocol)],
            "defenses": [str(train.defense)],
            "threats": [c.threat for c in group.attacks if c.stage == "attack"],
        }
        for axis, texts in run.items():
            axes.setdefault(axis, {}).update(dict.fromkeys(texts))
        protocol = register.make("protocol", train.protocol)
        reason = check_fit(protocol, parts_of(train.defense))
        if not reason.ok:
            unfit[f"{train.defense} with {train.protocol.name}: {reason}"] = None
    yield from ((axis, ", ".join(texts)) for axis, texts in axes.items())
    yield from (("no fit", text) for text in unfit)


def _to_compute(bench: BenchSession) -> tuple[int, str]:
    """Return the number of cells to compute, and a description.

    The plan contains all attacks. The description therefore states that an attack only runs if it
    applies.
    """
    from fedtrees.core.errors import many

    stages = Counter(c.stage for phase in bench.remaining() for job in phase for c in job.tasks)
    total, trainings, attacks = stages.total(), stages["train"], stages["attack"]
    apply = "it applies" if attacks == 1 else "they apply"
    parts = {"training": (trainings, ""), "attack": (attacks, f" to try where {apply}"),
             "other": (total - trainings - attacks, "")}  # fmt: skip
    shown = ", ".join(many(n, word) + more for word, (n, more) in parts.items() if n)
    return total, f"{total:,} to compute" + (f" ({shown})" if shown else "")


def _run_with_progress(
    bench: BenchSession, margin: float | None, engine: Engine | None
) -> Counter[str]:
    """Run with a progress bar on stderr, or with log lines if stderr is not a terminal.

    A first verdict is printed after the leading trainings of the first protocol and seed. An
    interrupted run ends at once, without a verdict.
    """
    from rich.console import Console

    from fedtrees.core.errors import many
    from fedtrees.experiments.runner import leading_trainings as leading

    total, description = _to_compute(bench)
    console = Console(stderr=True, soft_wrap=True)
    processes = many(bench.workers, "process", "processes")
    print(f"cells: {description}, {processes}, into {bench.folder}", file=sys.stderr)
    leading_defenses = {str(t.defense) for t in leading(bench.plan) if t.defense.parts}
    defenses = {str(g.train.defense) for g in bench.plan.groups if g.train.defense.parts}
    protocols = {str(g.train.protocol) for g in bench.plan.groups}
    parts = (
        f"1 of {many(len(bench.suite.seeds), 'seed')}",
        f"1 of {many(len(protocols), 'protocol')}",
        f"{len(leading_defenses)} of {many(len(defenses), 'defense')}",
    )
    when = f"first verdict after {', '.join(parts)}; the run continues"

    def first() -> None:
        _so_far(bench, console, margin, when)

    try:
        if console.is_terminal:
            counts = _with_bar(bench, console, total, first, engine)
        else:
            counts = _with_log(bench, Log(total), first, engine)
        if counts["skipped"]:
            idle = f"{counts['skipped']:,} of {many(total, 'cell')} did not apply"
            print(
                f"{idle}; `fedtrees show {bench.folder} --skipped` states the reasons",
                file=sys.stderr,
            )
        return counts
    except KeyboardInterrupt:
        text = (
            "\nstopped; finished cells are kept. Continue with: fedtrees bench --resume --output "
        )
        print(f"{text}{bench.folder}", file=sys.stderr)
        print(f"fedtrees show {bench.folder} prints the results so far", file=sys.stderr)
        raise


def _so_far(bench: BenchSession, console: Console, margin: float | None, when: str) -> None:
    """Print the verdict on the finished cells to stderr, and write their report."""
    from fedtrees.cli.results import print_verdict
    from fedtrees.core.errors import FedtreesError
    from fedtrees.report.findings import analyze_run
    from fedtrees.report.page import write_page

    try:
        analysis = analyze_run(bench.folder, None, margin)
        if not analysis.settings:
            return
        report = write_page(analysis)
    except FedtreesError:  # no cell is finished yet
        return
    console.print(f"\n{when}: {report}", markup=False, highlight=False)
    print_verdict(analysis, console)


def _with_bar(
    bench: BenchSession,
    console: Console,
    total: int,
    first: Callable[[], None],
    engine: Engine | None,
) -> Counter[str]:
    """Run with a progress bar: finished cells, remaining time, and the last cell or kernel."""
    from rich import progress as bars
    from rich.table import Column

    from fedtrees.isolation.kernels import report_compilation

    last = bars.TextColumn("{task.fields[cell]}", table_column=Column(no_wrap=True, ratio=1))
    left = (bars.TextColumn("time left"), bars.TimeRemainingColumn())
    columns = (bars.SpinnerColumn(), bars.BarColumn(20), bars.MofNCompleteColumn(), *left, last)
    with bars.Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("bench", total=total, cell="")

        def done(status: str, label: str) -> None:
            from rich.markup import escape

            progress.update(task, advance=1, cell=escape(label))
            if status not in ("ok", "skipped"):
                console.print(f"{status}: {label}", markup=False, highlight=False)

        def compiled(count: int) -> None:
            # The remaining time is estimated from the cells that finish after the compilation.
            completed = int(progress.tasks[0].completed)
            progress.reset(task, total=total, completed=completed, cell=_compiling(count))

        with report_compilation(compiled):
            return bench.run(done, first, engine)


def _with_log(
    bench: BenchSession, log: Log, first: Callable[[], None], engine: Engine | None
) -> Counter[str]:
    """Run with lines on stderr, where it is no terminal."""
    from fedtrees.isolation.kernels import report_compilation

    with report_compilation(log.compiled):
        return bench.run(log, first, engine)


def _compiling(count: int) -> str:
    # The number of kernels depends on the protocols, defenses and attacks of the run.
    total = f", about {_DEFAULT_KERNELS} for the default suite" * (count < _DEFAULT_KERNELS)
    return f"compiling kernels (first run only): {count:,} so far{total}"


class Log:
    """Print a line on stderr at intervals, and immediately for cells that failed."""

    def __init__(self, total: int, every: float = 15.0) -> None:
        self.total, self.every = total, every
        self.done = self.kernels = 0
        self.begun = self.last_line = monotonic()

    def compiled(self, count: int) -> None:
        """Print how many kernels were compiled: at once for the first ones, then now and then."""
        now = monotonic()
        if self.done + self.kernels == 0 or now - self.last_line >= self.every:
            self.last_line = now
            print(f"{_compiling(count)}, {now - self.begun:.0f} s", file=sys.stderr)
        self.kernels = count

    def __call__(self, status: str, label: str) -> None:
        """Count a finished cell, and print a line if it is time."""
        from fedtrees.core.errors import many

        self.done += 1
        now = monotonic()
        if status not in ("ok", "skipped"):
            print(f"{status}: {label}", file=sys.stderr)
        if now - self.last_line >= self.every or self.done == self.total:
            self.last_line = now
            seconds = f"{now - self.begun:.0f} s"
            cells = many(self.total, "cell")
            print(f"{self.done:,} of {cells}, {seconds}, last: {label}", file=sys.stderr)


def _finish(
    bench: BenchSession, counts: Counter[str], margin: float | None, format: Format
) -> None:
    """Print tables and verdict, and exit with code 3 if cells failed or no attack ran."""
    from fedtrees.cli.results import print_tables, print_verdict
    from fedtrees.core.errors import many
    from fedtrees.report.findings import analyze_run
    from fedtrees.report.json_export import failures, no_attack_ran, summary
    from fedtrees.report.page import write_page

    with waiting("writing the report"):
        analysis = analyze_run(bench.folder, None, margin)
        report = write_page(analysis)
    bad = failures(analysis.rows)

    def print_run() -> None:
        print_tables(analysis)
        typer.echo(f"\nreport  {report}\nrows    {bench.folder / 'rows.csv'}")
        typer.echo(f"figure  fedtrees plot {bench.folder} -o frontier.pdf")
        print_verdict(analysis)

    extra = {"computed": dict(counts), "report": str(report)}
    emit(lambda: {**summary(analysis), **extra}, format, print_run)
    if bad:
        failed_cells = f"{many(bad, 'cell')} failed"
        print(f"{failed_cells}; `fedtrees show {bench.folder}` lists them", file=sys.stderr)
        raise typer.Exit(3)
    if no_attack_ran(analysis.rows):
        print(
            "no attack ran, because none applies to the views of these threats, for the reasons "
            "above; `fedtrees explain PROTOCOL` lists which attacks apply to each adversary",
            file=sys.stderr,
        )
        raise typer.Exit(3)
