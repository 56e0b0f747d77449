"""Cells of a run computed again from its suite alone, and how they differ from what is told."""

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from fedtrees.bench.cells import AdversaryCell, AttackCell, BlindCell, Cell, TrainCell
from fedtrees.bench.engine import run_jobs
from fedtrees.bench.runner import Job
from fedtrees.bench.session import Bench
from fedtrees.bench.suite import Suite
from fedtrees.core import rows
from fedtrees.core.errors import UsageError

Record = Mapping[str, str]  # a row as it stands in rows.csv
Told = Mapping[tuple[str, ...], Sequence[Record]]  # rows by the cell that they are of
View = tuple[AdversaryCell, AttackCell | None]  # whose view, and an attack that read it

#: By how much a score of an attack may differ: some guesses are another machine's other luck.
TOLERANCE = 0.05
_SAME = 1e-6  # of everything else: trainings and blind guesses are the same anywhere
_NAMED = (
    "stage", "dataset", "partition", "seed", "protocol", "protocol_params", "defense",
    "defense_params", "threat", "attack", "attack_params",
)  # fmt: skip
#: How many of these name a cell; what follows names a row in it.
_DEPTH = {"train": 8, "cheated": 9, "adversary": 9, "attack": 11}
_NUMBERS = ("value", "blind", "population", "n", "error")


def by_cell(records: Iterable[Record]) -> Told:
    """Return rows by the cell that they are of; references, of no adversary, are left out."""
    found = defaultdict(list)
    for record in records:
        if record["stage"] in (*_DEPTH, "blind"):
            found[_cell_of(record)].append(record)
    return found


def _cell_of(record: Record) -> tuple[str, ...]:
    names = [record[name] for name in _NAMED]
    if record["stage"] == "blind":  # of whatever protocol
        return (*names[:4], names[8])
    return tuple(names[: _DEPTH[record["stage"]]])


def _place(cell: Cell) -> tuple[str, ...]:
    """Return the same of a cell of a plan."""
    s = cell.setting
    at = (cell.stage, s.data.name, s.partition_text, str(s.seed))
    if isinstance(cell, BlindCell):
        return (*at, cell.threat)
    train = cell if isinstance(cell, TrainCell) else cell.train  # type: ignore[attr-defined]
    of = (train.protocol.name, train.protocol.inline, train.defense.name, train.defense.inline)
    if isinstance(cell, TrainCell):
        cheats = "+".join(map(":".join, cell.behaviours))
        return (*at, *of, cheats) if cell.behaviours else (*at, *of)
    if isinstance(cell, AdversaryCell):
        return (*at, *of, cell.threat)
    assert isinstance(cell, AttackCell)
    return (*at, *of, cell.threat, cell.attack.name, cell.attack.inline)


def plan_of(suite: str, source: str, folder: Path, data_dir: str | None) -> Bench:
    """Return the bench of a suite that anybody can run: of tables that everybody has.

    Raises `UsageError` or `DataError`: a table of one's own, what is not installed here, or a table
    that is not there.
    """
    parsed = Suite.parse(suite, source)
    if any(ref.csv for grid in parsed.grids for ref in grid.data):
        raise UsageError(
            f"{source} is of a table of one's own, which nobody else can check and whose rows are "
            "nobody's business; submit a run of `fedtrees list datasets`"
        )
    try:
        return Bench(parsed, folder, data_dir=data_dir)
    except UsageError as err:
        text = f"{source}: {err}; what is submitted is of this package or of one that is installed"
        raise UsageError(text) from err


def absent(bench: Bench, told: Told) -> str:
    """Return which cells have no row, which rows are of no cell, and which twice; "" for none."""
    places = {_place(c) for c in bench.plan.cells() if c not in bench.plan.references}
    twice = {
        (*place, metric)
        for place, records in told.items()
        if place[0] != "blind"  # which several protocols may have
        for (metric, *_), count in Counter(map(_row_of, records)).items()
        if count > 1
    }
    found = [
        (places - {*told}, "of the suite has no row"),
        ({*told} - places, "is not of its suite"),
        (twice, "is there twice"),
    ]
    return "; ".join(
        f"{' '.join(filter(None, min(which)))} {what} (of {len(which):,})"
        for which, what in found
        if which
    )


def drawn(bench: Bench, told: Told, count: int, draw: str) -> list[View]:
    """Draw views, each with one of the attacks that read it, by a text nobody knew before.

    What is skipped is drawn like anything else: who says that nothing applies is asked, too.
    """
    random = Random(draw)
    views = [
        (c, group)
        for group in bench.plan.groups
        for c in group.attacks
        if isinstance(c, AdversaryCell)
    ]
    found = []
    for cell, group in random.sample(views, min(count, len(views))):
        ran = [
            a
            for a in group.attacks
            if isinstance(a, AttackCell)
            and a.threat == cell.threat
            and any(r["status"] == "ok" for r in told.get(_place(a), ()))
        ]
        found.append((cell, random.choice(ran) if ran else None))
    return found


def differences(bench: Bench, told: Told, views: Sequence[View]) -> Iterator[str]:
    """Compute views again and yield how what comes of them differs from what is told."""
    bench.open(resume=True)
    blind = {BlindCell(cell.setting, cell.threat): None for cell, _ in views}
    groups: dict[TrainCell, dict[AdversaryCell | AttackCell, None]] = {}
    for view in views:
        groups.setdefault(view[0].train, {}).update({c: None for c in view if c is not None})
    jobs = [Job((train, *cells)) for train, cells in groups.items()]
    run_jobs(bench.runner, [[Job((c,)) for c in blind], jobs], 1, lambda status, label: None)
    for cell in [*blind, *(c for job in jobs for c in job.cells)]:
        made = bench.store.read(cell.key(bench.runner.provenance))
        assert made is not None
        text = rows.write({**made["common"], **row} for row in made["rows"])
        yield from _differing(cell, list(csv.DictReader(io.StringIO(text))), told[_place(cell)])


def _differing(cell: Cell, made: Sequence[Record], told: Sequence[Record]) -> Iterator[str]:
    compared = [r for r in made if rows.is_result(r)]
    theirs: dict[tuple[str, ...], list[Record]] = {}
    for record in told:
        theirs.setdefault(_row_of(record), []).append(record)
    tolerance = TOLERANCE if cell.stage == "attack" else _SAME
    for record in compared:
        others = theirs.get(_row_of(record), [])
        found = [list(_unlike(record, other, tolerance)) for other in others]
        if not found:
            yield f"{cell.stage} {cell.label}: {record['metric']} is missing"
        elif all(found):
            yield f"{cell.stage} {cell.label}: {record['metric']} {'; '.join(found[0])}"
    if not isinstance(cell, BlindCell):
        mine = {*map(_row_of, made)}
        more = [r["metric"] or r["status"] for r in told if _row_of(r) not in mine]
        if more:
            yield f"{cell.stage} {cell.label}: {', '.join(sorted({*more}))} does not come of it"


def _row_of(record: Record) -> tuple[str, ...]:
    return tuple(record[name] for name in ("metric", "part", "attack", "attack_params"))


def _unlike(made: Record, told: Record, tolerance: float) -> Iterator[str]:
    for name in _NUMBERS:
        mine, theirs = made[name], told[name]
        if mine == theirs:
            continue
        close = mine and theirs and math.isclose(
            float(mine), float(theirs), rel_tol=tolerance, abs_tol=tolerance
        )  # fmt: skip
        if not close:
            yield f"{name} is told as {theirs or 'none'} and comes out as {mine or 'none'}"
    trained = ("claimed", "spent") if made["stage"] in ("train", "cheated") else ()
    for name in ("status", *trained):
        if made[name] != told[name]:
            yield f"{name} is told as {told[name]!r} and comes out as {made[name]!r}"
