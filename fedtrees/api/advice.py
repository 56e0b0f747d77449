"""The search for advice: which recipe meets a wish on a table, in a budget of time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from time import monotonic

import pandas as pd

from fedtrees.bench.choice import chosen
from fedtrees.bench.options import BenchOptions, load_plugins, tell
from fedtrees.bench.runner import Processes, TimeLimit
from fedtrees.bench.session import Bench, default_workers, fresh_folder, reopen
from fedtrees.bench.suite import Suite
from fedtrees.core.counts import many
from fedtrees.core.errors import UsageError
from fedtrees.core.specs import Composed
from fedtrees.report.advice import Advice, Tried, Wish, recipe, tried
from fedtrees.report.rows import UNDEFENDED, load_rows

_SEEDS = (1, 3, 5, 10)  # of a round: the first is run on all candidates


def candidates(options: BenchOptions) -> Suite:
    """Return what is tried on one seed: the recipes' suite, and the defenses of the default one.

    Raises `UsageError`: more than one table, or way to spread it, or none.
    """
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


def narrowed(suite: Suite, kept: Iterable[str], seeds: Sequence[int]) -> Suite:
    """Return a suite with the recipes that are left, on such seeds."""
    left = {recipe(name) for name in kept}
    grids = []
    for at, grid in enumerate(suite.grids):
        for protocol in grid.protocols:
            mine = [d for d in grid.defenses if (str(protocol), str(d)) in left]
            if mine or (at == 0 and protocol == grid.protocols[0]):  # what prices are of
                defenses = tuple(dict.fromkeys([Composed(), *mine]))
                grids.append(replace(grid, protocols=(protocol,), defenses=defenses))
    return suite.of(grids, seeds)


@dataclass
class Search:
    """Successive halving over seeds: every candidate on one, then more for what is not broken.

    `seconds`: In all; what is not finished by then is not named. 0: the first seed alone, however
    long it takes. `log`: Given the number of cells of a round, returns what follows each of them.
    """

    options: BenchOptions
    wish: Wish
    seconds: float
    log: Callable[[int], Callable[[str, str], None]]

    def run(self) -> tuple[Path, Advice]:
        """Run the rounds and return where, and what they say.

        Raises `UsageError`: nothing was run without a defense, which prices are of.
        """
        begun = monotonic()
        until = begun + self.seconds if self.seconds else inf
        suite = candidates(self.options)
        folder = Path(self.options.out or fresh_folder(Path("runs"), "advice"))
        latest: dict[str, Tried] = {}
        todo, resume, rows, left_out = suite, self._begun(folder, suite), pd.DataFrame(), ""
        for seeds, after in pairwise((*_SEEDS, 0)):
            bench = self._bench(todo, folder)
            tell(bench.notes if todo is suite else ())
            found, late = self._round(bench, resume, until)
            if late and latest:  # what the round before says stands
                break
            rows, left_out = found, late
            held = tried(rows, self.wish)
            if not held:
                raise UsageError(late or "nothing was run without a defense, which prices are of; "
                                 "give no --protocol, or one that promises no epsilon by itself"
                )  # fmt: skip
            latest = {t.name: t for t in held} | {n: t for n, t in latest.items() if t.broken}
            kept = [t.name for t in held if not t.broken]
            print(f"{many(seeds, 'seed')}: {len(kept)} of {many(len(held), 'recipe')} left",
                  file=sys.stderr)  # fmt: skip
            needed = _seconds(rows, kept) / seeds / bench.workers * (after - seeds)
            if not (kept and after and self.seconds) or late or monotonic() + needed > until:
                break
            todo, resume = narrowed(suite, kept, range(after)), True
        ranked = sorted(latest.values(), key=lambda t: -len(t.auc))  # stable: the best first
        return folder, Advice.of_rows(rows, self.wish, tuple(ranked), left_out)

    def _begun(self, folder: Path, suite: Suite) -> bool:
        """Tell whether a run is to be finished; refuse one of another table."""
        if not self.options.resume:
            return False
        if {d for g in reopen(folder).grids for d in g.data} != {
            d for g in suite.grids for d in g.data
        }:
            raise UsageError(f"--resume: {folder} is of another table; choose another --out")
        return True

    def _bench(self, suite: Suite, folder: Path) -> Bench:
        given = self.options
        workers = default_workers() if given.jobs is None else given.jobs
        return Bench(suite, folder, workers, given.data_dir, load_plugins(given.plugin))

    def _round(self, bench: Bench, resume: bool, until: float) -> tuple[pd.DataFrame, str]:
        """Run what is missing and return the rows, and what time did not suffice for."""
        bench.open(resume)
        todo = sum(len(job.cells) for phase in bench.remaining() for job in phase)
        print(f"cells: {todo:,} to compute, into {bench.folder}", file=sys.stderr)
        late = ""
        try:
            bench.run(self.log(todo), engine=Processes(bench.runner, until=until))
        except TimeLimit:
            left = sum(len(job.cells) for phase in bench.remaining() for job in phase)
            late = f"time ran out before {left:,} of {todo:,} cells; give more --minutes"
            print(late, file=sys.stderr)
        return load_rows(bench.folder), late


def _seconds(rows: pd.DataFrame, kept: Iterable[str]) -> float:
    """Return the seconds of all cells of some recipes and of the run without a defense."""
    left = {recipe(name) for name in kept}
    cells = rows.drop_duplicates(["stage", "setting", "defense_spec", "threat", "attack_spec",
                                  "seed"])  # fmt: skip
    names = zip((s.protocol for s in cells["setting"]), cells["defense_spec"], strict=True)
    mine = [name in left or name[1] == UNDEFENDED for name in names]
    return float(cells.loc[mine, "seconds"].sum())
