"""The `advise` command: which recipe meets a wish, on a table of one's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.bench.options import BenchOptions, load_plugins, tell
from fedtrees.cli.bench import Log
from fedtrees.cli.options import Format, Output, takes
from fedtrees.core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from fedtrees.bench.session import Bench
    from fedtrees.bench.suite import Suite
    from fedtrees.report.advice import Advice, Tried, Wish

_SEEDS = (1, 3, 5, 10)  # of a round: the first is run on all candidates, whatever it takes
_PAGE = "advice.md"


@takes(
    "protocol", "defense", "data", "csv", "target", "task", "positive", "id", "client_column",
    "categorical", "keep", "drop", "sep", "partition", "clients", "threat", "jobs", "out",
    "resume", "time_limit", "data_dir", "plugin",
)  # fmt: skip
def advise(
    *,
    max_exact_rows: Annotated[
        str, typer.Option(help="Largest share of others' rows reconstructed exactly.")
    ] = "1%",
    max_membership: Annotated[
        str, typer.Option(help="Largest share of members recognised at 1% false alarms.")
    ] = "5%",
    min_auc: Annotated[float, typer.Option(help="Smallest AUC on held-out rows.")] = 0.75,
    minutes: Annotated[
        float, typer.Option(help="Time for more seeds; the first seed of all is always run.")
    ] = 10.0,
    format: Output = Format.TABLE,
    **given: Any,
) -> None:
    """Say which protocol and defense meet a wish on your table, or that none does.

    Every attack is run on every candidate, on one seed; those that are broken fall, the others get
    more seeds while there is time. Writes advice.md into the run folder.
    """
    from fedtrees.core.files import write_listed
    from fedtrees.report.advice import Wish

    rows, members = share("max-exact-rows", max_exact_rows), share("max-membership", max_membership)
    if not 0 < min_auc < 1:
        raise UsageError(f"--min-auc {min_auc:g}: give a number between 0 and 1")
    if not 0 <= minutes < float("inf"):
        raise UsageError(f"--minutes {minutes:g}: give minutes, 0 for one seed")
    options = BenchOptions(**given)
    folder, found = _searched(options, Wish(rows, members, min_auc), 60 * minutes)
    write_listed(folder, _PAGE, found.page().encode())
    if format.is_json:
        names = {k: t.name if t else None for k, t in
                 (("take", found.choice), ("nearest", found.nearest))}  # fmt: skip
        fell = {t.name: t.unmet for t in found.tried if t.unmet}
        told = {**names, "not": fell, "page": str(folder / _PAGE)}
        typer.echo(json.dumps(told, indent=1))
        return
    for line in found.verdict:
        typer.echo(line)
    typer.echo(f"page  {folder / _PAGE}")


def share(option: str, text: str) -> float:
    """Return a share that is written as ``1%`` or ``0.01``.

    Raises `UsageError`: it is no number, or not above 0 and at most 1.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise UsageError(f"--{option} {text!r}: give a share such as 1% or 0.01, above 0")
    return value


def candidates(options: BenchOptions) -> Suite:
    """Return what is tried on one seed: the recipes' suite, and the defenses of the default one.

    Raises `UsageError`: more than one table, or way to spread it, or none.
    """
    from fedtrees.bench.choice import chosen
    from fedtrees.bench.suite import Suite

    if not options.grid.get("data"):
        raise UsageError("advice is for a table; give --csv FILE --target COLUMN, or --data NAME")
    base, usual = Suite.load("recipes"), Suite.load("quick")
    first = base.grids[0]
    composed = dict.fromkeys([*first.defenses, *usual.grids[0].defenses])
    grids = (replace(first, defenses=tuple(composed)), *base.grids[1:])
    suite = base.of(grids)
    found = chosen(suite, options.grid, "1", options.data_dir)
    places = {(d, p, n) for g in found.grids for d in g.data for p in g.partitions
              for n in g.clients}  # fmt: skip
    if len(places) > 1:
        raise UsageError("advice is for one table and one way to spread it; give one of each")
    if options.time_limit is not None:
        found = replace(found, time_limit=options.time_limit)
    return found


def narrowed(suite: Suite, kept: Iterable[str], seeds: int) -> Suite:
    """Return a suite with the recipes that are left, on as many seeds."""
    from fedtrees.core.specs import Composed
    from fedtrees.report.advice import recipe

    left = {recipe(name) for name in kept}
    grids = []
    for at, grid in enumerate(suite.grids):
        for protocol in grid.protocols:
            mine = [d for d in grid.defenses if (str(protocol), str(d)) in left]
            if mine or (at == 0 and protocol == grid.protocols[0]):  # what prices are of
                defenses = tuple(dict.fromkeys([Composed(), *mine]))
                grids.append(replace(grid, protocols=(protocol,), defenses=defenses))
    return suite.of(grids, range(seeds))


def _searched(options: BenchOptions, wish: Wish, seconds: float) -> tuple[Path, Advice]:
    """Run the rounds (successive halving over seeds); return where, and what they say.

    Raises `UsageError`: nothing was run without a defense, which prices are of.
    """
    from fedtrees.bench.session import fresh_folder
    from fedtrees.core.counts import many
    from fedtrees.report.advice import Advice, tried

    suite = candidates(options)
    folder = Path(options.out) if options.out else fresh_folder(Path("runs"), "advice")
    latest: dict[str, Tried] = {}
    todo, begun, resume = suite, monotonic(), _begun(folder, suite, options)
    for seeds, after in pairwise((*_SEEDS, 0)):
        bench = _bench(todo, folder, options)
        tell(bench.notes if todo is suite else ())
        rows = _run(bench, resume)
        held = tried(rows, wish)
        if not held:
            raise UsageError(
                "nothing was run without a defense, which prices are of; give no --protocol, or "
                "one that promises no epsilon by itself"
            )
        latest = {t.name: t for t in held} | {n: t for n, t in latest.items() if t.broken}
        kept = [t.name for t in held if not t.broken]
        print(f"{many(seeds, 'seed')}: {len(kept)} of {many(len(held), 'recipe')} left",
              file=sys.stderr)  # fmt: skip
        needed = _seconds(rows, kept) / seeds / bench.workers * (after - seeds)
        if not kept or not after or monotonic() - begun + needed > seconds:
            break
        todo, resume = narrowed(suite, kept, after), True
    ranked = sorted(latest.values(), key=lambda t: -len(t.auc))  # stable: the best first
    return folder, Advice.of_rows(rows, wish, tuple(ranked))


def _begun(folder: Path, suite: Suite, options: BenchOptions) -> bool:
    """Tell whether a run is to be finished; refuse one of another table."""
    from fedtrees.bench.session import reopen

    if not options.resume:
        return False
    if {d for g in reopen(folder).grids for d in g.data} != {
        d for g in suite.grids for d in g.data
    }:
        raise UsageError(f"--resume: {folder} is of another table; choose another --out")
    return True


def _bench(suite: Suite, folder: Path, options: BenchOptions) -> Bench:
    from fedtrees.bench.session import Bench, default_workers

    workers = default_workers() if options.jobs is None else options.jobs
    return Bench(suite, folder, workers, options.data_dir, load_plugins(options.plugin))


def _run(bench: Bench, resume: bool) -> pd.DataFrame:
    """Run what is missing and return the rows."""
    from fedtrees.report.rows import load_rows

    bench.open(resume)
    todo = sum(len(job.cells) for phase in bench.remaining() for job in phase)
    print(f"cells: {todo:,} to compute, into {bench.folder}", file=sys.stderr)
    bench.run(Log(todo))
    return load_rows(bench.folder)


def _seconds(rows: pd.DataFrame, kept: Iterable[str]) -> float:
    """Return the seconds of all cells of some recipes and of the run without a defense."""
    from fedtrees.report.advice import recipe
    from fedtrees.report.rows import UNDEFENDED

    left = {recipe(name) for name in kept}
    cells = rows.drop_duplicates(["stage", "setting", "defense_spec", "threat", "attack_spec",
                                  "seed"])  # fmt: skip
    names = zip((s.protocol for s in cells["setting"]), cells["defense_spec"], strict=True)
    mine = [name in left or name[1] == UNDEFENDED for name in names]
    return float(cells.loc[mine, "seconds"].sum())
