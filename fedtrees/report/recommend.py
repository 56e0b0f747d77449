"""Which recipe to take, computed from results: for the verdict, the documentation and advice.

A recipe is chosen that was tried against every adversary of every table, by every attack that
applies, and under which none of them is clearly past blind, rows and counts alike, by any score: by
more than a margin, of rows rebuilt exactly by anything; of
those the one that costs least utility on the table where it costs most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedtrees.report.frontier import LOWER_IS_BETTER, Frontier, frontiers
from fedtrees.report.intervals import Estimate
from fedtrees.report.rows import UNDEFENDED, Panel
from fedtrees.report.tables import LeaderRow, leaderboard
from fedtrees.report.verdict import MARGIN, Leak, difference

#: Scores of rows and of counts: where they were measured of one recipe, a recipe without them was
#: not tested.
REQUIRED = ("ra", "exact_rows", "leaf_mass_exact", "leaf_counts_exact")
#: Places named where a recipe was not tested.
MOST_NAMED = 3
_ALONE = ("none", "")  # claims of what is no defense at all


@dataclass(frozen=True)
class Trial:
    """A recipe against one adversary on one table.

    `place`: Table and adversary, in words. `leaks`: The worst advantage by every headline score.
    `untested`: Why this says nothing; "" where every attack that applies ran and one was scored.
    `cost`: Change in utility against the undefended run, paired by seed, below 0 where the recipe
    is worse. `bytes`: Traffic of training.
    """

    place: str
    leaks: tuple[Leak, ...] = ()
    untested: str = ""
    cost: Estimate = Estimate()
    bytes: float = math.nan

    @staticmethod
    def of(place: str, row: LeaderRow, cost: Estimate) -> Trial:
        """Return it from a line of a leaderboard."""
        return Trial(place, row.leaks, _untested(row), cost, row.cost.bytes)

    @property
    def measured(self) -> frozenset[str]:
        """The scores that are known."""
        return frozenset(leak.metric for leak in self.leaks if leak.advantage.known)


def _untested(row: LeaderRow) -> str:
    """Return why a cell says nothing: an attack that applies has not run, or none was scored."""
    point = row.point
    if point.collapsed.code == "acted-on-nothing":
        return str(point.collapsed)
    if not point.utility.known or not any(leak.advantage.known for leak in row.leaks):
        return "no attack was scored" if point.state.ok else str(point.state)
    return "" if point.coverage.complete else str(point.coverage)


@dataclass(frozen=True)
class Open:
    """What an adversary still reads."""

    place: str
    leak: Leak

    def __str__(self) -> str:
        """Write it: ``ra .47 against .41, pima · server``, against the better of those blind."""
        score, line = self.leak.score.mean, self.leak.line
        return f"{self.leak.metric} {score:.3f} against {line:.3f} ({self.place})"


@dataclass(frozen=True)
class Candidate:
    """A recipe and what speaks against it.

    `untested`: Why nothing can be said of it somewhere, by place. `open`: What is clearly past
    blind, the largest advantage first. `shown`: Whether all advantages are shown to be below the
    margin. `cost`: Change in utility on the table where it costs most. `bytes`: Traffic, the mean
    over trials.
    """

    name: str
    untested: tuple[str, ...]
    open: tuple[Open, ...]
    shown: bool
    cost: Estimate
    bytes: float = math.nan

    @property
    def holds(self) -> bool:
        """Whether it was tested everywhere and nothing is open."""
        return not (self.untested or self.open)

    @property
    def reason(self) -> str:
        """Why it is not taken; "" where nothing speaks against it."""
        if len(self.untested) > MOST_NAMED:
            return f"untested at {len(self.untested)} places: {'; '.join(self.untested[:1])}, ..."
        if self.untested:
            return f"untested: {'; '.join(self.untested)}"
        return f"open: {self.open[0]}" if self.open else ""


@dataclass(frozen=True)
class Recommendation:
    """The recipe to take, if there is one, and all that were looked at, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def choice(self) -> Candidate | None:
        """The best of those that hold."""
        return next((c for c in self.candidates if c.holds), None)

    @property
    def able(self) -> tuple[str, ...]:
        """The names of all that hold."""
        return tuple(c.name for c in self.candidates if c.holds)

    @property
    def least(self) -> Candidate | None:
        """Where none holds: of those tested, the one whose largest advantage is least."""
        tested = [c for c in self.candidates if not c.untested]
        if self.choice is not None or not tested:
            return None
        return min(tested, key=lambda c: c.open[0].leak.beyond.mean)


def recommend(trials: Mapping[str, Sequence[Trial]], margin: float = MARGIN) -> Recommendation:
    """Rank recipes, those that hold first; the undefended run is none.

    Parameters
    ----------
    trials : mapping of str to sequence of Trial
        By name of the recipe, one for every table and adversary; with `UNDEFENDED` among them, its
        scores are what must have been measured.
    margin : float
        Advantage that may be left and still be called down to blind.
    """
    needed: dict[str, set[str]] = {}
    for tried in trials.values():
        for one in tried:
            needed.setdefault(one.place, set()).update(one.measured & {*REQUIRED})
    found = [_candidate(name, tried, needed, margin) for name, tried in trials.items()
             if name != UNDEFENDED]  # fmt: skip
    return Recommendation(tuple(sorted(found, key=_rank)))


def _candidate(
    name: str, tried: Sequence[Trial], needed: Mapping[str, set[str]], margin: float
) -> Candidate:
    by_place = {one.place: one for one in tried}
    untested = []
    for place, scores in needed.items():
        one = by_place.get(place, Trial(place, untested="not run"))
        missing = sorted(scores - one.measured)
        why = one.untested or (missing and f"no {' and no '.join(missing)} was measured")
        if why:
            untested.append(f"{place}: {why}")
    leaks = [Open(one.place, leak) for one in tried for leak in one.leaks]
    past = [o for o in leaks if o.leak.open(margin)]
    past.sort(key=lambda o: -o.leak.beyond.mean)
    costs = [one.cost for one in tried if one.cost.known]
    sent = [one.bytes for one in tried if math.isfinite(one.bytes)]
    return Candidate(
        name,
        tuple(untested),
        tuple(past),
        shown=bool(leaks) and all(o.leak.upper < margin for o in leaks),
        cost=min(costs, key=lambda e: e.mean, default=Estimate()),
        bytes=math.fsum(sent) / len(sent) if sent else math.nan,
    )


def _rank(c: Candidate) -> tuple[bool, bool, float, float, str]:
    cost = c.cost.mean if c.cost.known else -math.inf
    traffic = c.bytes if math.isfinite(c.bytes) else math.inf
    return not c.holds, not c.shown, -cost, traffic, c.name


def trials_of(rows: pd.DataFrame) -> dict[str, list[Trial]]:
    """Return how every protocol with its defense fared on every table of a run, by name.

    Protocols that claim no guarantee are no recipe without a defense: the best of them by utility,
    table by table, is what costs are counted against. Nor is what trained on no table.

    Parameters
    ----------
    rows : DataFrame
        As returned by `fedtrees.report.rows.load_rows`.
    """
    boards = [(f, leaderboard(rows, f)) for f in frontiers(rows)]
    plain = _plain(boards)
    trials: dict[str, list[Trial]] = {}
    for frontier, board in boards:
        base = plain.get(_table(frontier.panel))
        for row in board:
            bare = row.point.defense == UNDEFENDED and row.point.claimed in _ALONE
            name = UNDEFENDED if bare else _name(frontier.panel, row.point.defense)
            if not row.point.unfit:
                place = f"{frontier.panel.setting.dataset} · {frontier.panel.threat}"
                cost = _cost(row, base, frontier.utility)
                trials.setdefault(name, []).append(Trial.of(place, row, cost))
    trained = {t for t, tried in trials.items() if any(one.cost.known for one in tried)}
    return {name: tried for name, tried in trials.items() if name in {UNDEFENDED, *trained}}


Board = tuple[Frontier, Sequence[LeaderRow]]


def _table(panel: Panel) -> tuple[str, str]:
    return panel.setting.dataset, panel.setting.partition


def _name(panel: Panel, defense: str) -> str:
    protocol = panel.setting.protocol
    return protocol if defense == UNDEFENDED else f"{protocol} with {defense}"


def _plain(boards: Sequence[Board]) -> dict[tuple[str, str], LeaderRow]:
    """Return the undefended run of most utility, by table."""
    found: dict[tuple[str, str], LeaderRow] = {}
    for frontier, board in boards:
        sign = -1.0 if frontier.utility in LOWER_IS_BETTER else 1.0
        for row in board:
            if row.point.defense != UNDEFENDED or row.point.claimed not in _ALONE:
                continue
            best = found.get(_table(frontier.panel))
            useful = sign * row.point.utility.mean
            if best is None or useful > sign * best.point.utility.mean:
                found[_table(frontier.panel)] = row
    return found


def _cost(row: LeaderRow, base: LeaderRow | None, utility: str) -> Estimate:
    """Return what a recipe changes about the utility, more being better, paired by seed."""
    if base is None:
        return Estimate()
    sign = -1.0 if utility in LOWER_IS_BETTER else 1.0
    theirs = {s.seed: s.utility for s in base.point.seeds}
    both = [sign * (s.utility - theirs.get(s.seed, math.nan)) for s in row.point.seeds]
    return difference(both)
