"""Compute cells of a submitted run again from its suite, and compare them with its rows.

A maintainer of a leaderboard checks a bundle in three steps. `plan_of` expands its suite into a
`BenchSession`, which lists the cells of a complete run. `describe_missing_cells` compares the names
of these cells with the rows.
`find_differences` computes a few randomly drawn views again and compares every number and state.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fedtrees.core import results
from fedtrees.core.errors import UsageError
from fedtrees.experiments.executor import run_jobs
from fedtrees.experiments.plan import Task, identity_columns
from fedtrees.experiments.runner import Job
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Grid, Suite

Record = Mapping[str, str]  # a row as text, as rows.csv contains it
CellRows = Mapping[tuple[str, ...], Sequence[Record]]  # rows by the name of their cell
View = tuple[Task, Task | None]  # an adversary, and an attack that read its view

#: Largest difference between two scores of one attack. Some guesses depend on the machine.
TOLERANCE = 0.05
# Largest difference of all other values. Trainings and blind guesses are the same on every machine.
_SAME = 1e-6
_FEDERATION = ("dataset", "partition", "seed")
_TRAINING = ("protocol", "protocol_params", "defense", "defense_params")
#: Columns that name a cell in addition to its federation, by stage.
_NAMED = {
    "train": _TRAINING,
    "cheated": (*_TRAINING, "threat"),
    "adversary": (*_TRAINING, "threat"),
    "attack": (*_TRAINING, "threat", "attack", "attack_params"),
    "blind": ("threat",),  # blind guesses are shared by protocols
    "reference": ("protocol_params",),  # its column `protocol` names the baseline
}
_NUMBERS = ("value", "blind", "population", "n", "error")
_TEXTS = ("status", "state_code", "unit", "measure_class", "pair_id")


def group_by_cell(records: Iterable[Record]) -> CellRows:
    """Group rows by the name of their cell."""
    cells = defaultdict(list)
    for record in records:
        cells[_cell_name(record)].append(record)
    return cells


def _cell_name(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name of a cell: the columns of its stage that distinguish it from other cells.

    The columns are those of a row, or those of a task (`identity_columns`).
    """
    names = _NAMED[columns["stage"]]
    return (columns["stage"], *(str(columns.get(name, "")) for name in (*_FEDERATION, *names)))


def _place(task: Task) -> tuple[str, ...]:
    """Return the name of the cell of a task, equal to the name of its rows."""
    return _cell_name(identity_columns(task))


def plan_of(
    suite: str, source: str, folder: Path, data_dir: str | None, records: int | None = None
) -> BenchSession:
    """Return the benchmark of a suite that uses only public tables.

    Parameters
    ----------
    suite, source : str
        TOML of the suite, and its name in messages.
    folder : Path
        Folder in which cells are computed again.
    data_dir : str or None
        Folder of the downloaded tables.
    records : int, optional
        Number of rows of the run. A suite with more trainings than rows is refused before it is
        expanded, because expanding a suite of millions of trainings takes minutes.

    Raises
    ------
    UsageError or DataError
        If the suite names a table of the submitter, a plug-in that is not installed here, a table
        that does not exist, or more trainings than the run has rows.
    """
    parsed = Suite.parse(suite, source)
    if any(ref.csv for grid in parsed.grids for ref in grid.data):
        raise UsageError(
            f"{source} names a table of its submitter (csv), which other persons cannot check "
            "and which may be confidential; submit a run on tables of `fedtrees list datasets`"
        )
    # A run has at least one row for each training of its largest grid.
    least = max(map(_trainings, parsed.grids)) * len(parsed.seeds)
    if records is not None and least > records:
        raise UsageError(
            f"{source} has {least:,} trainings or more, and its run has {records:,} rows; submit a "
            "finished run with its suite"
        )
    try:
        return BenchSession(parsed, folder, data_dir=data_dir)
    except UsageError as err:
        text = f"{source}: {err}; submit runs of this package and of packages that are installed"
        raise UsageError(text) from err


def _trainings(grid: Grid) -> int:
    """Return the number of different trainings of a grid for one seed."""
    axes = (grid.data, grid.partitions, grid.clients, grid.protocols, grid.defenses)
    return math.prod(len({str(item) for item in axis}) for axis in axes)


def describe_missing_cells(bench: BenchSession, cell_rows: CellRows) -> str:
    """Describe cells without a row, rows without a cell, and duplicate rows.

    The text is empty if every cell of the plan has its rows exactly once.
    """
    plan = Counter(map(_place, bench.plan.tasks()))
    twice = {
        (*place, metric)
        for place, records in cell_rows.items()
        for (metric, *_), count in Counter(map(_row_name, records)).items()
        # Protocols with other roles have blind cells of the same name.
        if count > plan[place]
    }
    problems = [
        ({*plan} - {*cell_rows}, "of the suite has no row"),
        ({*cell_rows} - {*plan}, "is not of its suite"),
        (twice, "is there twice"),
    ]
    return "; ".join(
        f"{' '.join(filter(None, min(names)))} {problem} (of {len(names):,})"
        for names, problem in problems
        if names
    )


def draw_views(bench: BenchSession, cell_rows: CellRows, count: int, draw: str) -> list[View]:
    """Draw views at random, each with one of the attacks that ran on it.

    Views whose attacks were all skipped can also be drawn, because a forger may claim that no
    attack applies.

    Parameters
    ----------
    bench : BenchSession
        The benchmark of the suite.
    cell_rows : CellRows
        The submitted rows by cell.
    count : int
        Number of views.
    draw : str
        Seed of the draw. The submitter must not be able to predict it.
    """
    # The draw can be repeated with the same text, so that other persons can verify the check.
    random = Random(draw)
    views = [
        (c, group) for group in bench.plan.groups for c in group.attacks if c.stage == "adversary"
    ]
    chosen = []
    for task, group in random.sample(views, min(count, len(views))):
        ran = [
            a
            for a in group.attacks
            if a.stage == "attack"
            and a.threat == task.threat
            and any(r["status"] == "ok" for r in cell_rows.get(_place(a), ()))
        ]
        chosen.append((task, random.choice(ran) if ran else None))
    return chosen


def find_differences(
    bench: BenchSession, cell_rows: CellRows, views: Sequence[View]
) -> Iterator[str]:
    """Compute views again, and yield the differences between the results and the rows.

    All references and blind guesses of the same federations are also computed again.

    Parameters
    ----------
    bench : BenchSession
        The benchmark of the suite.
    cell_rows : CellRows
        The submitted rows by cell.
    views : sequence of View
        The views to compute.
    """
    bench.open(resume=True)
    configs = {task.federation_config for task, _ in views}
    places = {_place(task.blind) for task, _ in views}
    baselines: list[Task] = [t for t in bench.plan.references if t.federation_config in configs]
    baselines += [c for c in bench.plan.blind if _place(c) in places]
    # Views of the same training are computed together.
    groups: dict[Task, dict[Task, None]] = {}
    for view in views:
        groups.setdefault(view[0].training, {}).update({c: None for c in view if c is not None})
    jobs = [Job((train, *tasks)) for train, tasks in groups.items()]
    run_jobs(bench.runner, [[Job((c,)) for c in baselines], jobs], 1, lambda status, label: None)
    computed: dict[tuple[str, ...], tuple[Task, list[Record]]] = {}
    for task in [*baselines, *(c for job in jobs for c in job.tasks)]:
        result = bench.runner.read(task)
        assert result is not None
        text = results.write({**result["common"], **row} for row in result["rows"])
        records = computed.setdefault(_place(task), (task, []))[1]
        records += csv.DictReader(io.StringIO(text))
    for place, (task, records) in computed.items():
        yield from _compare_cell(task, records, cell_rows[place])


def _compare_cell(
    task: Task, computed: Sequence[Record], submitted: Sequence[Record]
) -> Iterator[str]:
    """Yield the computed rows that agree with no submitted row, and the reverse."""
    tolerance = TOLERANCE if task.stage == "attack" else _SAME
    name = f"{task.stage} {task.label}"
    submitted_rows = defaultdict(list)
    for record in submitted:
        submitted_rows[_row_name(record)].append(record)
    computed_rows = defaultdict(list)
    for record in computed:
        computed_rows[_row_name(record)].append(record)
    for record in filter(results.is_result, computed):
        candidates = submitted_rows[_row_name(record)]
        unlike = [list(_compare_rows(record, other, tolerance)) for other in candidates]
        if not unlike:
            yield f"{name}: {record['metric']} is missing"
        elif all(unlike):
            yield f"{name}: {record['metric']} {'; '.join(unlike[0])}"
    more = {r["metric"] or r["status"] for r in submitted if _row_name(r) not in computed_rows}
    if more:
        yield f"{name}: {', '.join(sorted(more))} does not come of it"
    # Several computed blind rows can have the same name, so that one submitted row may have matched
    # all.
    if task.stage == "blind":
        for record in filter(results.is_result, submitted):
            unlike = [
                list(_compare_rows(r, record, tolerance)) for r in computed_rows[_row_name(record)]
            ]
            if unlike and all(unlike):
                yield f"{name}: {record['metric']} {'; '.join(unlike[0])}"


def _row_name(record: Record) -> tuple[str, ...]:
    """Return the name of a row within its cell."""
    baseline = record["protocol"] if record["stage"] == "reference" else ""
    return (*(record[n] for n in ("metric", "part", "attack", "attack_params")), baseline)


def _compare_rows(computed: Record, submitted: Record, tolerance: float) -> Iterator[str]:
    """Yield the differences between a computed and a submitted row."""
    for name in _NUMBERS:
        expected, entry = computed[name], submitted[name]
        if expected == entry:
            continue
        close = expected and entry and math.isclose(
            float(expected), float(entry), rel_tol=tolerance, abs_tol=tolerance
        )  # fmt: skip
        if not close:
            yield f"{name} is submitted as {entry or 'none'} and comes out as {expected or 'none'}"
    trained = ("claimed", "spent") if computed["stage"] in ("train", "cheated") else ()
    for name in (*_TEXTS, *trained):
        # Earlier releases wrote the state "ok" for a measure that is not defined.
        if (name, computed["reason_code"], submitted[name]) == ("state_code", "no-value", "ok"):
            continue
        if computed[name] != submitted[name]:
            yield f"{name} is submitted as {submitted[name]!r} and comes out as {computed[name]!r}"
