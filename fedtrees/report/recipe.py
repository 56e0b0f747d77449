"""Compute the recommended defense from results, for the verdict, the documentation and advice.

A recipe is a protocol with a defense. It *holds* if every attack that applies ran, against every
adversary on every table, and no cell is open. It is *shown* to resist if besides every cell is
settled (`fedtrees.report.states`): a cell in which the attack scored worse than its baseline is
not. Recipes that hold come first, then those that leave the smallest advantage, persons before
guesses before facts about groups, then the cheapest.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from fedtrees.core.columns import measure
from fedtrees.core.specs import parse_one
from fedtrees.report.intervals import finite, mean_of, t_estimate
from fedtrees.report.price import TOLERANCE, Price
from fedtrees.report.rows import UNDEFENDED
from fedtrees.report.said import parted
from fedtrees.report.states import MARGIN, SETTLED, Cell, gravity

#: File with the name of the recommended recipe (`recommended`).
RECOMMENDED = "recommended.json"
#: Places named where a recipe was not tested.
MOST_NAMED = 3
# Advantages of one step are alike: of persons finer than of the rest.
_STEPS = {"person": 0.005, "guess": 0.05, "group": 0.05}
_RELIEF = 0.1  # share of the rows read that a defense must take to be called a help


@dataclass(frozen=True)
class Trial:
    """A recipe against one adversary on one table."""

    place: str  # table and adversary, in words
    # one for every measure of this adversary on this table, under whatever defense
    cells: tuple[Cell, ...]
    price: Price
    untested: str = ""  # why this says nothing; "" where every attack that applies ran
    bytes: float = math.nan  # traffic of training
    undefended: tuple[Cell, ...] = ()  # cells of the run without a defense at this place

    def weight(self, cell: Cell) -> float:
        """Return the advantage by which a cell of this trial counts in comparisons.

        If attacks failed, nothing is shown about the defense. The cell then counts as without the
        defense, because otherwise a defense could improve its rank by making attacks fail. If they
        failed without the defense too, it counts 0 for every recipe. Without an undefended run it
        counts 1 (`Cell.weight`).
        """
        if not cell.attack_failed or not self.undefended:
            return cell.weight
        before = next((c for c in self.undefended if c.metric == cell.metric), None)
        return 0.0 if before is None or before.attack_failed else before.weight

    def cell(self, metric: str) -> Cell | None:
        """Return the cell of a measure, None where this adversary has none."""
        return next((c for c in self.cells if c.metric == metric), None)


@dataclass(frozen=True)
class Candidate:
    """A recipe with all that was tried of it."""

    name: str
    trials: tuple[Trial, ...]
    missing: tuple[str, ...] = ()  # why nothing can be said of places where others were tried

    def at(self, place: str) -> Trial | None:
        """Return what was tried at a place, None where nothing was."""
        return next((t for t in self.trials if t.place == place), None)

    @property
    def untested(self) -> tuple[str, ...]:
        """Where nothing can be said of it, and why."""
        untested_places = [f"{t.place}: {t.untested}" for t in self.trials if t.untested]
        return (*self.missing, *untested_places)

    @property
    def open(self) -> tuple[tuple[str, Cell], ...]:
        """What is clearly past blind, with its place: persons first, then the largest advantage."""
        open_cells = [(t.place, c) for t in self.trials for c in t.cells if c.state == "open"]
        return tuple(sorted(open_cells, key=lambda x: (gravity(x[1].metric)[0], -x[1].weight)))

    @property
    def holds(self) -> bool:
        """Whether it was tested everywhere and nothing is open."""
        return not (self.untested or self.open)

    @property
    def shown(self) -> bool:
        """Whether it holds, and every cell is shown to be within the margin of its baseline."""
        return self.holds and all(c.state in SETTLED for t in self.trials for c in t.cells)

    @property
    def failed(self) -> tuple[tuple[str, Cell], ...]:
        """Cells in which the attacks failed, with their places."""
        return tuple((t.place, c) for t in self.trials for c in t.cells if c.attack_failed)

    @property
    def dearest(self) -> Trial:
        """The trial on the table where the mean loss of utility is largest."""
        return min(self.trials, key=lambda t: finite(t.price.change.mean))

    @property
    def price(self) -> Price:
        """The price on the table where it is highest (`dearest`)."""
        return self.dearest.price

    @property
    def bytes(self) -> float:
        """Mean traffic of training."""
        return mean_of(t.bytes for t in self.trials)

    @property
    def reason(self) -> str:
        """Why it is not taken; "" where nothing speaks against it."""
        if len(self.untested) > MOST_NAMED:
            return f"untested at {len(self.untested)} places: {self.untested[0]}, ..."
        if self.untested:
            return f"untested: {'; '.join(self.untested)}"
        if not self.open:
            return ""
        place, cell = self.open[0]
        return f"open: {cell.metric} {cell.score:.3f} against {cell.line:.3f} ({place})"

    def left(self, klass: str) -> float:
        """Return the largest `Trial.weight` among the measures of one class."""
        cells = [(t, c) for t in self.trials for c in t.cells if measure(c.metric).klass == klass]
        return max((t.weight(c) for t, c in cells), default=0.0)

    def measured(self, klass: str) -> float:
        """Return the largest advantage that an attack reached by the measures of one class.

        Failed attacks are left out. `left` counts them as if there were no defense.
        """
        cells = [c for t in self.trials for c in t.cells if measure(c.metric).klass == klass]
        return max((c.weight for c in cells if not c.attack_failed), default=0.0)

    @property
    def leaves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The largest advantages, in steps: of persons, guesses, groups.

        First those that were measured, then those that are left if failed attacks count as without
        the defense. A leak that was measured weighs more than one that is only not ruled out.
        """
        return (
            tuple(round(self.measured(k) / step) for k, step in _STEPS.items()),
            tuple(round(self.left(k) / step) for k, step in _STEPS.items()),
        )

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of candidates, the best first."""
        cost = -round(finite(self.price.change.mean, -1.0) / TOLERANCE)
        parts = len(parse_one(parted(self.name)[1]).parts)
        return (
            not self.holds, bool(self.untested), self.holds and not self.shown, self.price.tier,
            self.leaves, cost, parts, finite(self.bytes, math.inf), self.name,
        )  # fmt: skip


@dataclass(frozen=True)
class Recommendation:
    """Every recipe that was tried, the best first."""

    candidates: tuple[Candidate, ...]

    @property
    def choice(self) -> Candidate | None:
        """The first recipe that holds and whose model is better than a constant one, or None."""
        return next((c for c in self.candidates if c.holds and not c.price.collapsed), None)

    @property
    def least(self) -> Candidate | None:
        """If no recipe holds: of those tested everywhere, the one that leaves least, or None."""
        if self.choice is not None:
            return None
        every = [c for c in self.candidates if not (c.untested or c.price.collapsed)]
        return min(every, key=lambda c: c.leaves, default=None)


def recommended() -> str:
    """Return the name of the recipe that the documentation recommends.

    It is computed from four tables and stored by `fedtrees.benchmarks.papers.recipes`.
    """
    stored = resources.files(__package__) / RECOMMENDED
    return str(json.loads(stored.read_text(encoding="utf-8"))["recipe"])


def recommend(trials: Mapping[str, Sequence[Trial]], preferred: str = "") -> Recommendation:
    """Rank the recipes of a run, the best first.

    Parameters
    ----------
    trials : mapping of str to sequence of Trial
        By name of the recipe, one trial for every table and adversary. The run without a defense
        is not a recipe.
    preferred : str
        A recipe that is placed first among those that hold, or among those that do not hold,
        unless it costs clearly more utility than the first of them. The recommendation of the
        documentation rests on more tables and seeds than a single run, so that a run names another
        recipe only if the recommended one does not hold there or is too expensive.

    Returns
    -------
    recommendation : Recommendation
        All recipes in the order of `Candidate.rank`.
    """
    needed: dict[str, set[str]] = {}
    for tried in trials.values():
        for t in tried:
            scored = {c.metric for c in t.cells if c.scores and measure(c.metric).required}
            needed.setdefault(t.place, set()).update(scored)
    bare = {t.place: t.cells for t in trials.get(UNDEFENDED, ())}
    candidates = [
        Candidate(
            name,
            tuple(replace(t, undefended=t.undefended or bare.get(t.place, ())) for t in tried),
            tuple(_missing(tried, needed)),
        )
        for name, tried in trials.items()
        if name != UNDEFENDED and tried
    ]
    ranked = sorted(candidates, key=lambda c: c.rank)
    preferred_candidate = next((c for c in ranked if c.name == preferred), None)
    if preferred_candidate is not None:
        first = next(i for i, c in enumerate(ranked) if c.holds == preferred_candidate.holds)
        if preferred_candidate.price.tier <= ranked[first].price.tier:
            ranked.remove(preferred_candidate)
            ranked.insert(first, preferred_candidate)
    return Recommendation(tuple(ranked))


def _missing(tried: Sequence[Trial], needed: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the places where a recipe was not run, or lacks what must be measured, and why."""
    by_place = {t.place: t for t in tried}
    for place, metrics in needed.items():
        if place not in by_place:
            yield f"{place}: not run"
        elif not by_place[place].untested:
            scored = {c.metric for c in by_place[place].cells if c.state != "gone"}
            lacking = sorted(metrics - scored)
            if lacking:
                yield f"{place}: no {' and no '.join(lacking)} was measured"


def helps(undefended: Sequence[Cell], defended: Sequence[Cell], margin: float = MARGIN) -> bool:
    """Return whether a defense is shown to remove a leak, or a considerable part of one.

    This is the case if a cell that is open without the defense is shut or gone with it, or if its
    advantage falls, paired by seed, with the whole interval and on average by the margin (of
    counted persons: by a tenth of the advantage). A fall to less than the baseline does not count:
    it shows that the attack failed, and another attack may still succeed.

    Parameters
    ----------
    undefended, defended : sequence of Cell
        Of the same adversary.
    margin : float
        Margin of the run.
    """
    after = {c.metric: c for c in defended}
    for before in undefended:
        now = after.get(before.metric)
        if before.state != "open" or now is None or now.attack_failed:
            continue
        if now.state in ("shut", "gone"):
            return True
        advantages = dict(zip(now.seeds, now.advantages, strict=True))
        falls = [
            advantage - advantages[seed]
            for seed, advantage in zip(before.seeds, before.advantages, strict=True)
            if seed in advantages
        ]
        fall = t_estimate(falls)
        least = _RELIEF * before.advantage.mean if before.counts_persons else margin
        if fall.known and fall.low > 0 and fall.mean >= least:
            return True
    return False
