"""Recommend a protocol and a defense for a table, from Python and for the command `recommend`.

`Search` runs the recipes that can meet the limits of the user, within a time budget.
"""

import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from html import escape
from itertools import combinations, pairwise
from math import ceil, inf
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd

from fedtrees.api.bench import Names, remove_files, with_table_written
from fedtrees.api.run import warn_each
from fedtrees.core.errors import StoreError, UsageError, check_known, listed, many
from fedtrees.core.files import write_listed
from fedtrees.core.limits import TimeLimit
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec, parse_composed, parse_list
from fedtrees.core.transcript import PUBLIC
from fedtrees.data.dataset import Dataset
from fedtrees.data.partition import LAYOUTS
from fedtrees.experiments.defaults import complete_suite, default_size
from fedtrees.experiments.evaluate import parts_of
from fedtrees.experiments.executor import Processes
from fedtrees.experiments.federation import load_dataset
from fedtrees.experiments.options import (
    BenchOptions,
    describe_missing_restrictions,
    load_plugins,
    print_notes,
)
from fedtrees.experiments.session import (
    BenchSession,
    default_workers,
    fresh_folder,
    read_suite_of_run,
)
from fedtrees.experiments.suite import Grid, Suite, with_budgets
from fedtrees.protocols.compatibility import check_fit
from fedtrees.report.advice import Advice
from fedtrees.report.limits import (
    LIMIT_OPTIONS,
    Tried,
    Wish,
    limits_below_guesses,
    possible_limit,
    tried,
    unreachable_limits,
)
from fedtrees.report.limits import recipe as split_recipe
from fedtrees.report.recipe import runs_in, systems
from fedtrees.report.results import CELL_COLUMNS, UNDEFENDED, load_rows
from fedtrees.report.statistics import describe_thin_evidence
from fedtrees.report.trials import trials_of
from fedtrees.report.verdict import ADVICE_PAGE

_SEEDS = (1, 3, 5, 10)  # numbers of seeds in successive rounds; the first round runs all candidates
# A round may take this share of the remaining time, so that time remains for the next one.
_SHARE = 0.5
# Share of the time for one seed of all candidates if none of them is within the limits. The slowest
# attack on the nearest one follows.
_LAST_SHARE = 0.8
# This attack takes longer than all other attacks together. It is not run on candidates that are
# refuted without it.
_DEAR = frozenset({"joint"})
_NAMES_OF_DEAR = f"the slowest attack, {listed(sorted(_DEAR))},"


def candidates(options: BenchOptions, layout: str = "", deployed: str = "") -> Suite:
    """Return the suite of the first round: recipes of several protocols, and the default defenses.

    Parameters
    ----------
    options : BenchOptions
        Options of the user. They must name exactly one table and one partition.
    layout : str
        A layout, for example "vertical". Only protocols of this layout and defenses that fit them
        are tried. "" for the layout of the suite.
    deployed : str
        A system. Only protocols and defenses that it supports are tried. "" for all.

    Raises
    ------
    UsageError
        If there is not exactly one table and partition, if the layout or system is unknown, or if a
        named protocol or defense does not belong to it.
    """
    if not options.grid.get("data"):
        raise UsageError("advice is for a table; give --csv FILE --target COLUMN, or --data NAME")
    base, usual = Suite.load("recipes"), Suite.load("quick")
    first = base.grids[0]
    composed = dict.fromkeys([*first.defenses, *usual.grids[0].defenses])
    grids = (replace(first, defenses=tuple(composed)), *base.grids[1:])
    suite = base.of(grids)
    grid = options.grid | _permitted_parts(options, layout, deployed)
    selected = complete_suite(suite, grid, "1", options.data_dir)
    if not options.threat:
        selected = selected.of([replace(g, threats=_adversaries(g)) for g in selected.grids])
    places = {(d, p, n) for g in selected.grids for d in g.data for p in g.partitions
              for n in g.clients}  # fmt: skip
    if len(places) > 1:
        raise UsageError("advice is for one table and one way to spread it; give one of each")
    if options.time_limit is not None:
        selected = replace(selected, time_limit=options.time_limit)
    return selected


def _adversaries(grid: Grid) -> tuple[str, ...]:
    """Return the threats of a grid, and all adversaries that its protocols name."""
    protocols: list[Any] = [register.make("protocol", p) for p in grid.protocols]
    named_threats = [t for m in protocols for t in m.info.adversaries]
    public = [PUBLIC] * any(m.released for m in protocols)
    return tuple(dict.fromkeys([*grid.threats, *named_threats, *public]))


def _permitted_parts(options: BenchOptions, layout: str, deployed: str) -> dict[str, list[str]]:
    """Return the protocols and defenses that a layout and a system permit, as keys of a grid."""
    if layout:
        check_known("layout", layout, LAYOUTS)
    if deployed:
        check_known("system", deployed, systems())
    named = parse_list(options.protocol)
    # The protocols of the suite have this layout.
    if not (deployed or named) and layout in ("", next(iter(LAYOUTS))):
        return {}
    considered = named or list(filter(None, map(default_size, register.names("protocol"))))
    able = [p for p in considered if not deployed or runs_in(deployed, p)]
    layouts = {p: register.get("protocol", p.name).layout for p in able}  # type: ignore[attr-defined]
    layout = layout or next((x for x in LAYOUTS if x in layouts.values()), "")
    permitted = [p for p in able if layouts[p] == layout]
    if unfit := [str(p) for p in named if p not in permitted] or [""] * (not permitted):
        where = listed(
            [f"--layout {layout}"] * bool(layout) + [f"--deployed {deployed}"] * bool(deployed)
        )
        alternatives = listed([p.name for p in permitted])
        raise UsageError(
            f"{unfit[0] or 'nothing'} is not of {where}" + f"; try {alternatives}" * bool(permitted)
        )
    keys = {"protocols": [*map(str, permitted)]}
    return keys | ({"defenses": _defenses(options, permitted, deployed)} if deployed else {})


def _defenses(options: BenchOptions, protocols: Sequence[Spec], system: str) -> list[str]:
    """Return the defenses that a system supports, single ones and pairs.

    If the user named defenses, these are returned. Raises `UsageError` if the system does not
    support one of them.
    """
    for composed in parse_composed(options.defense):
        if not any(runs_in(system, p, composed.parts) for p in protocols):
            raise UsageError(f"{system} has no {composed} without a change; leave --defense out")
    if options.defense:
        return [*options.defense]
    plugins: dict[str, Any] = {n: register.get("defense", n) for n in register.names("defense")}
    names = [name for name, plugin in plugins.items() if system in plugin.info.deployments]
    each = [spec for name in names for spec in with_budgets(Spec(name))]
    pairs = [pair for pair in combinations(each, 2) if pair[0].name != pair[1].name]
    compositions = [Composed(parts) for parts in (*((s,) for s in each), *pairs)]
    instances = [register.make("protocol", p) for p in protocols]
    fitting = [str(c) for c in compositions if any(check_fit(m, parts_of(c)).ok for m in instances)]
    return fitting or [UNDEFENDED]


def narrowed(suite: Suite, recipe_names: Iterable[str], seeds: Sequence[int]) -> Suite:
    """Return a suite with the remaining recipes and the given seeds.

    The run without a defense of the first protocol is always included, as the first grid, because
    prices are relative to it.

    Parameters
    ----------
    suite : Suite
        The suite of all candidates.
    recipe_names : iterable of str
        Names of the remaining recipes.
    seeds : sequence of int
        The seeds.
    """
    recipes = {split_recipe(name) for name in recipe_names}
    first = suite.grids[0]
    reference = replace(first, protocols=first.protocols[:1], defenses=(Composed(),))
    remaining = [
        replace(grid, protocols=(protocol,), defenses=defenses, undefended=False)
        for grid in suite.grids
        for protocol in grid.protocols
        if (defenses := tuple(d for d in grid.defenses if (str(protocol), str(d)) in recipes))
    ]
    return suite.of([reference, *remaining], seeds)


def without_dear(suite: Suite) -> Suite:
    """Return a suite without the attack that takes the longest."""
    return suite.of([
        replace(g, attacks=tuple(a for a in g.every_attack if a.name not in _DEAR) or g.attacks)
        for g in suite.grids
    ])  # fmt: skip


@dataclass
class Search:
    """Successive halving over seeds.

    All candidates run on one seed. The best candidates that meet the limits then run on more seeds.
    On the first seed, candidates that already exceed the limits are not attacked by the slowest
    attack.

    Attributes
    ----------
    options : BenchOptions
        Options of the user.
    wish : Wish
        Limits of the user.
    seconds : float
        Time for the complete search. Results that are not finished by then are not used. 0: only
        the first seed, without a time limit.
    log : callable
        Receives the number of cells of a round, and returns a function that is called after each
        cell with its status and label.
    layout, deployed : str
        As in `candidates`.
    minutes : float
        Estimate of the minutes that suffice for one seed of every candidate, set by `run`. 0 if the
        time sufficed.
    """

    options: BenchOptions
    wish: Wish
    seconds: float
    log: Callable[[int], Callable[[str, str], None]]
    layout: str = ""
    deployed: str = ""
    minutes: float = field(default=0.0, init=False)
    _begun: float = field(default=0.0, init=False, repr=False)
    _until: float = field(default=inf, init=False, repr=False)

    def run(self) -> tuple[Path, Advice]:
        """Run the rounds, and return the run folder and the advice.

        Raises `UsageError` if the target is a number, or if no training without a defense is
        possible, because prices are relative to it.
        """
        self._begun = monotonic()
        self._until = self._begun + self.seconds if self.seconds else inf
        suite = candidates(self.options, self.layout, self.deployed)
        self._check_target(suite)
        folder = Path(self.options.output or fresh_folder(Path("runs"), "advice"))
        try:
            return folder, self._search(suite, folder)
        except _GuessBeyondLimit:
            print("the search stops, because no defense can meet a limit", file=sys.stderr)
            return folder, Advice.of_rows(load_rows(folder), self.wish, ())

    def _search(self, suite: Suite, folder: Path) -> Advice:
        """Run the rounds, and return the advice."""
        begun, until = self._begun, self._until
        bench = self._bench(without_dear(suite), folder)
        print_notes([*bench.notes, *filter(None, [describe_missing_restrictions()])])
        resume = self._is_resumed(folder, suite)
        compared: tuple[Tried, ...] = ()
        # More seeds of some candidates are more informative than one seed of all, so that all
        # candidates together may take half of the time. If none of those that ran is within the
        # limits, the remaining ones are more informative.
        for share in (_SHARE, _LAST_SHARE):
            deadline = begun + share * (until - begun)
            name = "one seed of every candidate"
            if share > _SHARE:
                why = (
                    "none of the others meets your limits"
                    if any(not t.candidate.untested for t in compared)
                    else "no candidate was tested completely so far"
                )
                name = f"the remaining candidates, because {why}"
            rows, left_out = self._round(bench, resume, deadline, name)
            # Recipes without the other attacks are not compared: the time ran out before.
            compared = tried(rows[~rows["attack"].isin(_DEAR)], self.wish)
            complete, resume = [t for t in compared if not t.candidate.untested], True
            remaining = [t.name for t in complete if not t.broken]
            if remaining or not left_out:
                break
        if not complete:
            if not compared and not left_out:
                raise UsageError(
                    "nothing was run without a defense, which prices are of; give no --protocol, "
                    "or one that promises no epsilon by itself"
                )
            return Advice.of_rows(rows, self.wish, compared, left_out)
        latest = {t.name: t for t in compared}
        # Without a recipe within the limits, the slowest attack runs on the nearest one only.
        nearest = (
            [] if remaining else [t.name for t in sorted(complete, key=lambda t: t.excess)[:1]]
        )
        remaining = remaining or nearest
        stopped = ""
        for seeds, after in pairwise((*_SEEDS, 0)):
            todo = narrowed(suite, remaining, range(seeds))
            recipes = many(len(remaining), "recipe")
            if seeds > _SEEDS[0]:
                deadline, name = until, f"{seeds} seeds of {recipes}"
            elif nearest:
                reference = without_dear(todo.of(todo.grids[:1]))
                todo = todo.of([*reference.grids, *todo.grids[1:]])
                deadline, name = until, f"{_NAMES_OF_DEAR} on the nearest recipe, {nearest[0]}"
            else:
                deadline = monotonic() + _SHARE * (until - monotonic())
                name = f"{_NAMES_OF_DEAR} on {recipes}"
            round_rows, late = self._round(self._bench(todo, folder), True, deadline, name)
            # The round is incomplete. The results of the previous round remain valid.
            if late and seeds > _SEEDS[0]:
                stopped = (
                    f"The time ran out during the round with {many(seeds, 'seed')} of {recipes}, "
                    "whose results are not used."
                )
                break
            rows, left_out = round_rows, left_out or late
            compared = tried(rows, self.wish)
            now = {t.name: t for t in compared}
            latest = now | {n: t for n, t in latest.items() if n not in now}
            left = [t.name for t in sorted(compared, key=lambda t: t.excess) if not t.broken]
            print(f"{many(seeds, 'seed')}: {len(left)} of {many(len(latest), 'candidate')} "
                  "not excluded",
                  file=sys.stderr)  # fmt: skip
            more = (after - seeds) / seeds / bench.workers
            spare = (until - monotonic()) * (1 if after == _SEEDS[-1] else _SHARE)
            undecided = len(left)
            while left and more * _seconds(rows, left) > spare:
                left.pop()  # the candidate that is nearest to one of its limits
            if undecided and not left and after and self.seconds:
                stopped = self._describe_early_end(many(seeds, "seed"), undecided)
            # More seeds of a candidate that exceeds a limit would not change the result.
            if not (left and after and self.seconds):
                break
            remaining = left
        # The sort is stable, so that the best candidate remains first.
        ranked = tuple(sorted(latest.values(), key=lambda t: -len(t.auc)))
        nearest_name = nearest[0] if nearest else ""
        return Advice.of_rows(rows, self.wish, ranked, left_out, nearest_name, stopped)

    def _describe_early_end(self, seeds: str, undecided: int) -> str:
        """Write that the search ended because further seeds do not fit the remaining time."""
        minutes = (monotonic() - self._begun) / 60
        return (
            f"The search ended after {minutes:.1f} of {self.seconds / 60:g} minutes with {seeds} "
            f"of {many(undecided, 'recipe')} that can still meet your limits, because no further "
            "complete round of seeds fits the remaining time."
        )

    def _check_target(self, suite: Suite) -> None:
        """Raise `UsageError` if the target is a number, because the limits contain an AUC."""
        for ref in {ref for grid in suite.grids for ref in grid.data}:
            dataset = load_dataset(ref, self.options.data_dir)
            if dataset.task == "number":
                raise UsageError(
                    f"{dataset.name}: the target {dataset.schema.target!r} is a number. recommend "
                    "compares AUCs, which need a target with classes; use fedtrees bench"
                )

    def _is_resumed(self, folder: Path, suite: Suite) -> bool:
        """Return whether a run is to be resumed. Raise `UsageError` if it used another table."""
        if not self.options.resume:
            return False
        if {d for g in read_suite_of_run(folder).grids for d in g.data} != {
            d for g in suite.grids for d in g.data
        }:
            raise UsageError(f"--resume: {folder} is of another table; choose another --output")
        return True

    def _bench(self, suite: Suite, folder: Path) -> BenchSession:
        """Return the benchmark of one round."""
        options = self.options
        workers = default_workers() if options.jobs is None else options.jobs
        plugins = load_plugins(options.plugin, options.unprotected, options.time_limit)
        return BenchSession(suite, folder, workers, options.data_dir, plugins)

    def _round(
        self, bench: BenchSession, resume: bool, until: float, name: str
    ) -> tuple[pd.DataFrame, str]:
        """Run the missing cells of a round.

        Return the rows, and a note if the time did not suffice.
        """

        def check_limits() -> None:
            """End the search if the first results show that no defense can meet a limit."""
            undefended = trials_of(load_rows(bench.folder)).get(UNDEFENDED, ())
            for line in unreachable_limits(undefended, self.wish):
                print(line, file=sys.stderr)
            if limits_below_guesses(undefended, self.wish):
                raise _GuessBeyondLimit

        bench.open(resume)
        todo = sum(len(job.tasks) for phase in bench.remaining() for job in phase)
        begun = monotonic()
        limit = "" if until == inf else f", at most {max(0.0, until - begun) / 60:.1f} min"
        print(f"{name}: {many(todo, 'cell')} to compute{limit}", file=sys.stderr)
        try:
            bench.run(self.log(todo), check_limits, engine=Processes(bench.runner, until=until))
        except TimeLimit:
            remaining = sum(len(job.tasks) for phase in bench.remaining() for job in phase)
            cells = f"{remaining:,} of {many(todo, 'cell')}"
            print(f"{cells} were not computed in this time", file=sys.stderr)
            needed = self._estimate_minutes(todo, remaining, monotonic() - begun)
            late = f"the time ran out before {cells} were computed; {needed}"
            return _load_finished_rows(bench.folder), late
        rows = load_rows(bench.folder)
        # If few cells were missing, for example in a resumed run, the limits were not checked yet.
        if limits_below_guesses(trials_of(rows).get(UNDEFENDED, ()), self.wish):
            check_limits()
        return rows, ""

    def _estimate_minutes(self, todo: int, remaining: int, seconds: float) -> str:
        """Estimate the time for the remaining cells of a round from the speed of the finished ones.

        The attribute `minutes` is set to a value of ``--minutes`` that suffices for them.
        """
        if remaining == todo:
            self.minutes = max(self.minutes, 10.0, 4 * self.seconds / 60)
            return f"no cell was finished in {seconds / 60:.1f} minutes"
        minutes = remaining * seconds / (todo - remaining) / 60
        # The first round may take the share `_SHARE` of the time.
        self.minutes = max(self.minutes, 5.0 * ceil(minutes / _SHARE / 5))
        return f"at the measured speed, they need about {many(ceil(minutes), 'more minute')}"


class _GuessBeyondLimit(Exception):
    """A guess without any message exceeds a limit, so that no defense can meet it."""


def _load_finished_rows(folder: Path) -> pd.DataFrame:
    """Load the rows of an interrupted run. The table is empty if no cell was finished."""
    try:
        return load_rows(folder)
    except StoreError:
        return pd.DataFrame({"attack": [], "stage": []})


def _seconds(rows: pd.DataFrame, recipe_names: Iterable[str]) -> float:
    """Return the total seconds of all cells of some recipes and of the run without a defense."""
    recipes = {split_recipe(name) for name in recipe_names}
    cells = rows.drop_duplicates([*CELL_COLUMNS])
    names = zip((s.protocol for s in cells["setting"]), cells["defense_spec"], strict=True)
    selected = [name in recipes or name[1] == UNDEFENDED for name in names]
    return float(cells.loc[selected, "seconds"].sum())


_PAGE = "advice.md"
_NAMED_COLUMNS = 40  # number of columns that the page names
_ALARMS = "1%FPR"  # the rate of false alarms of `max_membership`
_ABOVE_GUESS = "guess+"  # prefix of a limit that is added to the share of a guess
#: Receives the number of cells of a round, and returns a function that is called after each cell.
Log = Callable[[int], Callable[[str, str], None]]


@dataclass(frozen=True, repr=False)
class Recommendation:
    """The result of `fedtrees.recommend`.

    Attributes
    ----------
    folder : Path
        Run folder with the measurements. `fedtrees.Run` reads it.
    advice : Advice
        All compared recipes with their evidence.

    Examples
    --------
    >>> import fedtrees
    >>> result = fedtrees.recommend("breast-cancer", minutes=5)  # doctest: +SKIP
    >>> result.defense  # doctest: +SKIP
    'split-only'
    """

    folder: Path
    advice: Advice = field(repr=False)

    @property
    def protocol(self) -> str | None:
        """Recommended protocol with its parameters, None if no recipe meets the limits."""
        choice = self.advice.choice
        return None if choice is None else split_recipe(choice.name)[0]

    @property
    def defense(self) -> str | None:
        """Recommended defense with its parameters, None if no recipe meets the limits."""
        choice = self.advice.choice
        return None if choice is None else split_recipe(choice.name)[1]

    @property
    def verdict(self) -> str:
        """The recommendation with its reasons, one sentence per line."""
        return "\n".join(self.advice.verdict)

    @property
    def report(self) -> Path:
        """Page with the recommendation and its evidence."""
        return self.folder / ADVICE_PAGE

    @property
    def warnings(self) -> list[str]:
        """Warnings about few seeds and few attacked rows.

        They are about the recommended recipe, or about the nearest one if none meets the limits.
        """
        named = self.advice.choice or self.advice.nearest
        rows = load_rows(self.folder)
        if named is not None:
            protocol, defense = split_recipe(named.name)
            protocols = pd.Series([s.protocol for s in rows["setting"]], index=rows.index)
            rows = rows[(protocols == protocol) & (rows["defense_spec"] == defense)]
        return describe_thin_evidence(rows, remedy="--minutes")

    def to_json(self) -> dict[str, Any]:
        """Return the recommendation as plain JSON types."""
        advice = self.advice
        return {
            "result": advice.result,
            "take": advice.choice.name if advice.choice else None,
            "nearest": advice.nearest.name if advice.nearest else None,
            "auc": advice.comparison.to_json() if advice.comparison else None,
            "not": {t.name: t.unmet for t in advice.tried if t.unmet},
            "excluded": [t.name for t in advice.tried if t.broken],
            "next": advice.end.command or None,
            "pages": [str(self.folder / name) for name in (_PAGE, ADVICE_PAGE)],
        }

    def __repr__(self) -> str:
        if self.advice.choice:
            return f"<Recommendation: {self.advice.choice.name}>"
        nearest = self.advice.nearest
        return "<Recommendation: none meets the limits" + (
            f"; nearest: {nearest.name}>" if nearest else ">"
        )

    def _repr_html_(self) -> str:
        """Return the page in a separate frame, for notebooks."""
        page = escape(self.advice.html(), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border:0"></iframe>'


def _describe_table(dataset: Dataset) -> str:
    """Describe the rows and columns of a table by their numbers and names, without any value."""
    rows, columns = dataset.table.X.shape
    sizes = np.bincount(dataset.owners) if dataset.owners is not None else ()
    clients = f" of {len(sizes)} clients ({listed([f'{n:,}' for n in sizes])} rows)" * bool(
        len(sizes)
    )
    names = ", ".join(dataset.schema.names[:_NAMED_COLUMNS])
    more = len(dataset.schema.names) - _NAMED_COLUMNS
    names += f" and {more} more" * (more > 0)
    return (
        f"{rows:,} rows{clients} with {many(columns, 'column')} and the target "
        f"{dataset.schema.target}. One part of the rows trains the model, and the other part tests "
        f"it. Columns: {names}."
    )


def search(
    options: BenchOptions,
    max_exact_rows: str | float,
    max_membership: str | float,
    max_membership_auc: float,
    min_auc: float,
    minutes: float,
    layout: str,
    deployed: str,
    log: Log,
) -> Recommendation:
    """Search a recipe that meets limits, and write two pages about it into the run folder.

    Parameters
    ----------
    options : BenchOptions
        Table, federation and run control.
    max_exact_rows, max_membership, max_membership_auc, min_auc, minutes, layout, deployed
        As in `recommend`.
    log : callable
        Receives the number of cells of every round (`Log`).

    Raises
    ------
    UsageError
        If a limit is out of range, or as in `fedtrees.api.recommend.candidates`.
    """
    member_share, _, alarms = str(max_membership).partition("@")
    if alarms not in ("", _ALARMS):
        raise UsageError(f"--max-membership {max_membership!r}: the rate is {_ALARMS}, or left out")
    share = str(max_exact_rows).removeprefix(_ABOVE_GUESS)
    rows = parse_share("max-exact-rows", share)
    members = parse_share("max-membership", member_share)
    if not 0 < min_auc < 1:
        raise UsageError(f"--min-auc {min_auc:g}: give a number between 0 and 1")
    if not 0.5 < max_membership_auc <= 1:
        raise UsageError(
            f"--max-membership-auc {max_membership_auc:g}: give a number above 0.5, which is a "
            "random guess, and at most 1"
        )
    if not 0 <= minutes < float("inf"):
        raise UsageError(
            f"--minutes {minutes:g}: give a number of at least 0; with 0, one seed runs without a "
            "time limit"
        )
    wish = Wish(rows, members, min_auc, max_membership_auc, share != str(max_exact_rows))
    searching = Search(options, wish, 60 * minutes, log, layout, deployed)
    folder, advice = searching.run()
    (ref,) = {d for grid in read_suite_of_run(folder).grids for d in grid.data}
    limits = {
        "max-exact-rows": max_exact_rows,
        "max-membership": max_membership,
        "max-membership-auc": max_membership_auc,
        "min-auc": min_auc,
        "minutes": searching.minutes or 2 * minutes,
        "layout": layout,
        "deployed": deployed,
    }
    for metric, cell in advice.limits_below_guesses.items():
        limits |= {LIMIT_OPTIONS[metric].removeprefix("--"): possible_limit(cell)}
        limits["minutes"] = minutes
    table = _describe_table(load_dataset(ref, options.data_dir))
    command = "" if advice.choice else _command(options, limits, folder)
    advice = replace(
        advice,
        experiment=replace(advice.experiment, data=table),
        end=replace(advice.end, command=command),
    )
    write_listed(folder, _PAGE, advice.page().encode())
    write_listed(folder, ADVICE_PAGE, advice.html().encode())
    return Recommendation(folder, advice)


def _command(options: BenchOptions, limits: dict[str, Any], folder: Path) -> str:
    """Return the command that continues a search with other limits or with more time.

    Options with their default value are left out.
    """
    words = ["fedtrees", "recommend"]
    continued = {"resume": True, "output": str(folder)}
    for item in fields(options):
        value = continued.get(item.name, getattr(options, item.name))
        if value == item.default or value == ():
            continue
        option = f"--{item.name.replace('_', '-')}"
        values = value if isinstance(value, tuple) else (value,)
        words += [option] if value is True else [w for v in values for w in (option, str(v))]
    defaults = {name: p.default for name, p in inspect.signature(recommend).parameters.items()}
    for name, value in limits.items():
        if value != defaults[name.replace("-", "_")]:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def parse_share(option: str, value: str | float) -> float:
    """Parse a share that is written as ``1%`` or ``0.01``.

    Raises `UsageError` if the text is not a number above 0 and at most 1.
    """
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"--{option} {text!r}: give a share such as 1% or 0.01, above 0")
    return share


def recommend(
    data: Names | pd.DataFrame | tuple[Any, Any] = (),
    *,
    max_exact_rows: str | float = "guess+1%",
    max_membership: str | float = "5%",
    max_membership_auc: float = 0.55,
    min_auc: float = 0.75,
    minutes: float = 10.0,
    layout: str = "",
    deployed: str = "",
    protocol: Names = (),
    defense: Names = (),
    csv: Names | Path = (),
    target: str = "",
    task: str = "",
    positive: str = "",
    id: str = "",
    client_column: str = "",
    categorical: Names = (),
    keep: Names = (),
    drop: Names = (),
    sep: str = "",
    decimal: str = "",
    missing: Names = (),
    sheet: str = "",
    partition: Names = (),
    clients: int | Sequence[int] = (),
    threat: Names = (),
    jobs: int | None = None,
    output: str | Path = "",
    resume: bool = False,
    time_limit: float | None = None,
    data_dir: str | Path | None = None,
    plugin: Names | Path = (),
    unprotected: bool = False,
) -> Recommendation:
    """Find a protocol and a defense that meet limits on a table, or show that none does.

    Every attack runs on every candidate, on one seed. Candidates that exceed a limit are dropped,
    and the remaining ones run on more seeds while there is time. The function does the same as the
    command ``fedtrees recommend``. A `UserWarning` is given if the recommended recipe was tested on
    few seeds or few rows.

    Parameters
    ----------
    data : str, DataFrame, or (X, y)
        Name of a dataset, or a table, as in `fedtrees.bench`.
    max_exact_rows : str or float, default "guess+1%"
        Largest share of rows of other parties that an attack may reconstruct exactly. With
        ``guess+``, the share that a guess without any message reconstructs is added.
    max_membership : str or float, default "5%"
        Largest share of members that an attack may recognise, at 1% false alarms.
    max_membership_auc : float, default 0.55
        Largest AUC of membership tests. 0.5 is a random guess.
    min_auc : float, default 0.75
        Smallest AUC on test rows.
    minutes : float, default 10
        Total time. 0: one seed, without a time limit.
    layout : {"", "horizontal", "vertical"}
        Whether parties have different rows or different columns. "" for rows.
    deployed : {"", "xgboost", "nvflare", "flower", "secretflow"}
        Consider only protocols and defenses that a system supports. "" for all of them.
    protocol, defense : str or sequence of str, optional
        Protocols and defenses to try, as in `fedtrees.bench`.
    csv : str or sequence of str, optional
        Files of a table, as in `fedtrees.bench`.
    target, task, positive, id, client_column : str, optional
        Target and special columns of `csv`, as in `fedtrees.bench`.
    categorical, keep, drop : str or sequence of str, optional
        Columns of `csv`, as in `fedtrees.bench`.
    sep, decimal : str, optional
        Notation of `csv`, as in `fedtrees.bench`.
    missing : str or sequence of str, optional
        Marks of missing cells, as in `fedtrees.bench`.
    sheet : str, optional
        Sheet of a workbook, as in `fedtrees.bench`.
    partition : str or sequence of str, optional
        Distribution of the rows or columns over the parties, as in `fedtrees.bench`.
    clients : int or sequence of int, optional
        Number of parties with data.
    threat : str or sequence of str, optional
        Adversaries, as in `fedtrees.bench`.
    jobs : int, optional
        Number of processes (default: all cores).
    output : str or Path, optional
        Run folder for the measurements.
    resume : bool, optional
        Continue the run in `output`. Finished cells are not computed again.
    time_limit : float, optional
        Time limit of one training or attack in seconds (0: no limit).
    data_dir : str or Path, optional
        Folder with data files, as in `fedtrees.bench`.
    plugin : str or sequence of str, optional
        Python files with ``@register`` decorators.
    unprotected : bool, optional
        Run attacks of plug-ins even if the system cannot restrict them.

    Returns
    -------
    recommendation : Recommendation
        Protocol, defense, verdict and pages.

    Raises
    ------
    UsageError
        If a name or an option is unknown, a value is out of range, or not exactly one table is
        given.
    DataError
        If the table cannot be used.

    Examples
    --------
    >>> import fedtrees
    >>> result = fedtrees.recommend(
    ...     "breast-cancer", max_exact_rows="1%", min_auc=0.9, minutes=10
    ... )  # doctest: +SKIP
    >>> print(result.verdict)  # doctest: +SKIP
    """
    arguments = dict(locals())
    own_arguments = (
        "max_exact_rows", "max_membership", "max_membership_auc", "min_auc", "minutes", "layout",
        "deployed",
    )  # fmt: skip
    limits = {name: arguments.pop(name) for name in own_arguments}
    with ExitStack() as refused:
        arguments, new = with_table_written(arguments)
        refused.callback(remove_files, new)
        options = BenchOptions(**arguments)
        refused.pop_all()
    result = search(options, **limits, log=_no_log)
    warn_each(result.warnings)
    return result


def _no_log(total: int) -> Callable[[str, str], None]:
    """Return a function that prints nothing."""
    return lambda status, label: None
