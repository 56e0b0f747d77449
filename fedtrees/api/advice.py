"""The search for advice: which recipe meets a wish on a table, in a budget of time."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pandas as pd

from fedtrees.bench.choice import chosen, small
from fedtrees.bench.engine import Processes
from fedtrees.bench.evaluate import parts_of
from fedtrees.bench.limits import TimeLimit
from fedtrees.bench.options import BenchOptions, load_plugins, tell, unrestricted
from fedtrees.bench.session import Bench, default_workers, fresh_folder, reopen
from fedtrees.bench.suite import Grid, Suite, with_budgets
from fedtrees.core.counts import listed, many
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec, parse_composed, parse_list
from fedtrees.core.transcript import PUBLIC
from fedtrees.data.layout import LAYOUTS
from fedtrees.protocols.fit import fit
from fedtrees.report.advice import Advice, Tried, Wish, recipe, tried
from fedtrees.report.deployed import runs_in, systems
from fedtrees.report.rows import UNDEFENDED, load_rows

_SEEDS = (1, 3, 5, 10)  # of a round: the first is run on all candidates
_SHARE = 0.5  # of the time left that a round may take, so that the next has some
_DEAR = frozenset({"joint"})  # takes longer than all other attacks: what falls to them is spared it


def candidates(options: BenchOptions, layout: str = "", deployed: str = "") -> Suite:
    """Return what is tried on one seed: the recipes' suite, and the defenses of the default one.

    `layout`: Vertical: protocols of that layout, and defenses that fit. `deployed`: What a system
    runs.

    Raises `UsageError`: more than one table, or way to spread it, or none; an unknown layout or
    system, or a protocol or defense that is not of it.
    """
    if not options.grid.get("data"):
        raise UsageError("advice is for a table; give --csv FILE --target COLUMN, or --data NAME")
    base, usual = Suite.load("recipes"), Suite.load("quick")
    first = base.grids[0]
    composed = dict.fromkeys([*first.defenses, *usual.grids[0].defenses])
    grids = (replace(first, defenses=tuple(composed)), *base.grids[1:])
    suite = base.of(grids)
    grid = options.grid | _restricted(options, layout, deployed)
    found = chosen(suite, grid, "1", options.data_dir)
    if not options.threat:
        found = found.of([replace(g, threats=_adversaries(g)) for g in found.grids])
    places = {(d, p, n) for g in found.grids for d in g.data for p in g.partitions
              for n in g.clients}  # fmt: skip
    if len(places) > 1:
        raise UsageError("advice is for one table and one way to spread it; give one of each")
    if options.time_limit is not None:
        found = replace(found, time_limit=options.time_limit)
    return found


def _adversaries(grid: Grid) -> tuple[str, ...]:
    """Return the threats of a grid, and all that its protocols name."""
    made: list[Any] = [register.make("protocol", p) for p in grid.protocols]
    own = [t for m in made for t in getattr(m, "curious", m.adversaries)]
    public = [PUBLIC] * any(m.released for m in made)
    return tuple(dict.fromkeys([*grid.threats, *own, *public]))


def _restricted(options: BenchOptions, layout: str, deployed: str) -> dict[str, list[str]]:
    """Return the protocols and defenses that a layout and a system leave, as a grid has them."""
    if layout:
        check_known("layout", layout, LAYOUTS)
    if deployed:
        check_known("system", deployed, systems())
    named = parse_list(options.protocol)
    if not (deployed or named) and layout in ("", next(iter(LAYOUTS))):  # that of the suite
        return {}
    known = named or list(filter(None, map(small, register.names("protocol"))))
    able = [p for p in known if not deployed or runs_in(deployed, p)]
    layouts = {p: register.get("protocol", p.name).layout for p in able}  # type: ignore[attr-defined]
    layout = layout or next((x for x in LAYOUTS if x in layouts.values()), "")
    kept = [p for p in able if layouts[p] == layout]
    if unfit := [str(p) for p in named if p not in kept] or [""] * (not kept):
        where = listed(
            [f"--layout {layout}"] * bool(layout) + [f"--deployed {deployed}"] * bool(deployed)
        )
        others = listed([p.name for p in kept])
        raise UsageError(
            f"{unfit[0] or 'nothing'} is not of {where}" + f"; try {others}" * bool(kept)
        )
    found = {"protocols": [*map(str, kept)]}
    return found | ({"defenses": _defenses(options, kept, deployed)} if deployed else {})


def _defenses(options: BenchOptions, protocols: Sequence[Spec], system: str) -> list[str]:
    """Return the defenses that a system has, one and two at a time; of those named, all.

    Raises `UsageError`: one that is named is not of it.
    """
    for composed in parse_composed(options.defense):
        if not any(runs_in(system, p, composed.parts) for p in protocols):
            raise UsageError(f"{system} has no {composed} as it is; leave --defense out")
    if options.defense:
        return [*options.defense]
    names = [n for n in register.names("defense") if system in register.get("defense", n).deployed]  # type: ignore[attr-defined]
    each = [spec for name in names for spec in with_budgets(Spec(name))]
    pairs = [pair for pair in combinations(each, 2) if pair[0].name != pair[1].name]
    found = [Composed(parts) for parts in (*((s,) for s in each), *pairs)]
    made = [register.make("protocol", p) for p in protocols]
    fitting = [str(c) for c in found if any(fit(m, parts_of(c)).ok for m in made)]
    return fitting or [UNDEFENDED]


def narrowed(suite: Suite, kept: Iterable[str], seeds: Sequence[int]) -> Suite:
    """Return a suite with the recipes that are left, on such seeds."""
    left = {recipe(name) for name in kept}
    grids = []
    for at, grid in enumerate(suite.grids):
        for protocol in grid.protocols:
            mine = [d for d in grid.defenses if (str(protocol), str(d)) in left]
            if mine or (at == 0 and protocol == grid.protocols[0]):  # what prices are of
                base = [] if grids else [Composed()]
                defenses = tuple(dict.fromkeys([*base, *mine]))
                grids.append(replace(grid, protocols=(protocol,), defenses=defenses))
    return suite.of(grids, seeds)


def without_dear(suite: Suite) -> Suite:
    """Return a suite less the attack that takes longest."""
    return suite.of([
        replace(g, attacks=tuple(a for a in g.every_attack if a.name not in _DEAR) or g.attacks)
        for g in suite.grids
    ])  # fmt: skip


@dataclass
class Search:
    """Successive halving over seeds: every candidate on one, then more for the best that hold.

    On the first seed, what is beyond the wish before the longest attack ran is not given to it.

    `layout`, `deployed`: As of `candidates`.
    `seconds`: In all; what is not finished by then is not named. 0: the first seed alone, however
    long it takes. `log`: Given the number of cells of a round, returns what follows each of them.
    """

    options: BenchOptions
    wish: Wish
    seconds: float
    log: Callable[[int], Callable[[str, str], None]]
    layout: str = ""
    deployed: str = ""

    def run(self) -> tuple[Path, Advice]:
        """Run the rounds and return where, and what they say.

        Raises `UsageError`: nothing was run without a defense, which prices are of.
        """
        begun = monotonic()
        until = begun + self.seconds if self.seconds else inf
        suite = candidates(self.options, self.layout, self.deployed)
        folder = Path(self.options.out or fresh_folder(Path("runs"), "advice"))
        # The first seed may take half: more seeds of some tell more than one of all.
        half = begun + _SHARE * (until - begun)
        bench = self._bench(without_dear(suite), folder)
        tell([*bench.notes, *filter(None, [unrestricted()])])
        rows, left_out = self._round(bench, self._begun(folder, suite), half)
        latest = {t.name: t for t in tried(rows, self.wish)}
        left = [t.name for t in latest.values() if t.excess <= 1] or _nearest(latest.values())
        todo = suite if left_out else narrowed(suite, left, suite.seeds)
        for seeds, after in pairwise((*_SEEDS, 0)):
            first = seeds == _SEEDS[0]
            found, late = self._round(self._bench(todo, folder), True, half if first else until)
            if late and not first:  # what the round before says stands
                break
            rows, left_out = found, left_out or late
            held = tried(rows, self.wish)
            if not held:
                raise UsageError(late or "nothing was run without a defense, which prices are of; "
                                 "give no --protocol, or one that promises no epsilon by itself"
                )  # fmt: skip
            now = {t.name: t for t in held}
            latest = now | {n: t for n, t in latest.items() if n not in now}
            kept = [t.name for t in sorted(held, key=lambda t: t.read) if not t.broken]
            print(f"{many(seeds, 'seed')}: {len(kept)} of {many(len(held), 'recipe')} left",
                  file=sys.stderr)  # fmt: skip
            kept = kept or _nearest(held)
            more = (after - seeds) / seeds / bench.workers
            spare = (until - monotonic()) * (1 if after == _SEEDS[-1] else _SHARE)
            while kept and more * _seconds(rows, kept) > spare:
                kept.pop()  # of which most is read
            if not (kept and after and self.seconds):
                break
            todo = narrowed(suite, kept, range(after))
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
        plugins = load_plugins(given.plugin, given.unprotected, given.time_limit)
        return Bench(suite, folder, workers, given.data_dir, plugins)

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


def _nearest(held: Iterable[Tried]) -> list[str]:
    """Return the recipe that is nearest to the wish: where none meets it, it is named."""
    return [t.name for t in sorted(held, key=lambda t: t.excess)[:1]]


def _seconds(rows: pd.DataFrame, kept: Iterable[str]) -> float:
    """Return the seconds of all cells of some recipes and of the run without a defense."""
    left = {recipe(name) for name in kept}
    cells = rows.drop_duplicates(["stage", "setting", "defense_spec", "threat", "attack_spec",
                                  "seed"])  # fmt: skip
    names = zip((s.protocol for s in cells["setting"]), cells["defense_spec"], strict=True)
    mine = [name in left or name[1] == UNDEFENDED for name in names]
    return float(cells.loc[mine, "seconds"].sum())
