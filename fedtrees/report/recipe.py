"""Compute the recommended defense from results, for the verdict, the documentation and advice.

A recipe is a protocol with a defense. It *resists* (attribute `holds`) if every applicable attack
ran, against every adversary on every table, and no result is leaking. It is *shown* to resist if,
in addition, every result is settled (`fedtrees.report.leakage`). A result in which the attack
scored worse than its baseline is not settled.

Recipes that resist come first, and among them those that are shown to resist. Equals are sorted by
the class of their loss of utility (`UtilityChange.tier`), then by the advantage that they leave
(first about persons, then guesses about persons, then facts about groups), and then by their change
in utility.
A run places the recipe that the documentation recommends before its equals (`recommend`).

The module also describes how to configure a recipe in other systems that run it, such as NVFlare or
XGBoost. This text is built from the attribute ``deployed`` of protocols and defenses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from fedtrees.core.defense import Deployed
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import Spec, parse_one
from fedtrees.core.supported import SYSTEMS, name_versions
from fedtrees.report.cost import TOLERANCE, UtilityChange
from fedtrees.report.leakage import MARGIN, SETTLED, LeakageResult, gravity, plain
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import finite, mean_of, t_estimate
from fedtrees.report.wording import ProtocolRecipe, split_recipe

#: File with the name of the recommended recipe (`recommended`).
RECOMMENDED = "recommended.json"
#: If a recipe was not tested at more places, only the first one is named.
MOST_NAMED = 3
# Advantages are compared in steps of this size. Those about persons use a finer step.
_STEPS = {"person": 0.005, "guess": 0.05, "group": 0.05}
# A defense helps if it prevents at least this share of the advantage of a measure that counts
# persons.
_RELIEF = 0.1


@dataclass(frozen=True)
class RecipeResult:
    """Results of a recipe against one adversary on one table.

    Attributes
    ----------
    place : str
        Table and adversary, in words.
    results : tuple of LeakageResult
        One result for every measure that this adversary has on this table under some defense.
    utility_change : UtilityChange
        Change in utility.
    untested : str
        Why the trial is no evidence, "" if every applicable attack ran.
    bytes : float
        Traffic of training.
    undefended : tuple of LeakageResult
        Cells of the run without a defense at the same place.
    threat : str
        Threat model of the adversary.
    """

    place: str
    results: tuple[LeakageResult, ...]
    utility_change: UtilityChange
    untested: str = ""
    bytes: float = math.nan
    undefended: tuple[LeakageResult, ...] = ()
    threat: str = ""

    @property
    def leaks(self) -> list[LeakageResult]:
        """The leaking results, the gravest first, without those that another expresses better."""
        return sorted(plain([r for r in self.results if r.state == "leaking"]), key=_by_gravity)

    @property
    def failed(self) -> list[LeakageResult]:
        """The results in which the strongest attack scored worse than its baseline."""
        return [r for r in self.results if r.below_baseline]

    @property
    def doubtful(self) -> list[LeakageResult]:
        """The results that are not settled for another reason."""
        doubts = (r for r in self.results if r.state in ("unsettled", "unknown"))
        return [r for r in doubts if not r.below_baseline]

    def weight(self, result: LeakageResult) -> float:
        """Return the advantage by which a result of this trial counts in comparisons.

        If attacks failed, nothing is shown about the defense. The result then counts as without the
        defense, because otherwise a defense could improve its rank by making attacks fail. If they
        failed without the defense too, the result counts 0 for every recipe. Without an undefended
        run it counts 1 (`fedtrees.report.leakage.LeakageResult`).
        """
        if not result.attack_failed or not self.undefended:
            return result.weight
        before = next((c for c in self.undefended if c.metric == result.metric), None)
        return 0.0 if before is None or before.attack_failed else before.weight

    def result(self, metric: str) -> LeakageResult | None:
        """Return the result of a measure, None if this adversary has no such result."""
        return next((c for c in self.results if c.metric == metric), None)


def _by_gravity(result: LeakageResult) -> tuple[int, int]:
    """Return a sort key of results that puts the gravest measures first."""
    return gravity(result.metric)


@dataclass(frozen=True)
class Recipe:
    """A recipe with all its trials.

    Attributes
    ----------
    name : str
        Name of the recipe.
    trials : tuple of RecipeResult
        One per table and adversary.
    missing : tuple of str
        Places at which other recipes were tested and this one was not, with reasons.
    """

    name: str
    trials: tuple[RecipeResult, ...]
    missing: tuple[str, ...] = ()

    def at(self, place: str) -> RecipeResult | None:
        """Return the trial at a place, None if there is none."""
        return next((t for t in self.trials if t.place == place), None)

    def result(self, place: str, metric: str) -> LeakageResult | None:
        """Return the result of a measure at a place, None if it was not measured."""
        trial = self.at(place)
        return trial.result(metric) if trial else None

    @property
    def untested(self) -> tuple[str, ...]:
        """The places at which the recipe was not tested completely, with reasons."""
        untested_places = [f"{t.place}: {t.untested}" for t in self.trials if t.untested]
        return (*self.missing, *untested_places)

    @property
    def leaking_results(self) -> tuple[tuple[str, LeakageResult], ...]:
        """The leaking results with their places: those about persons first, then by advantage."""
        leaking = [(t.place, c) for t in self.trials for c in t.results if c.state == "leaking"]
        return tuple(sorted(leaking, key=lambda x: (gravity(x[1].metric)[0], -x[1].weight)))

    @property
    def holds(self) -> bool:
        """Whether the recipe was tested everywhere and no result is leaking."""
        return not (self.untested or self.leaking_results)

    @property
    def shown(self) -> bool:
        """Whether the recipe resists and every result is settled."""
        return self.holds and all(c.state in SETTLED for t in self.trials for c in t.results)

    @property
    def failed(self) -> tuple[tuple[str, LeakageResult], ...]:
        """Cells in which the attacks failed, with their places."""
        return tuple((t.place, c) for t in self.trials for c in t.results if c.attack_failed)

    @property
    def costliest(self) -> RecipeResult:
        """The trial on the table with the largest mean loss of utility."""
        return min(self.trials, key=lambda t: finite(t.utility_change.change.mean))

    @property
    def utility_change(self) -> UtilityChange:
        """The change in utility on the table where it is worst (`costliest`)."""
        return self.costliest.utility_change

    @property
    def bytes(self) -> float:
        """Mean traffic of training in bytes."""
        return mean_of(t.bytes for t in self.trials)

    @property
    def reason(self) -> str:
        """Why the recipe is not recommended, "" if there is no reason."""
        if len(self.untested) > MOST_NAMED:
            return f"untested at {len(self.untested)} places: {self.untested[0]}, ..."
        if self.untested:
            return f"untested: {'; '.join(self.untested)}"
        if not self.leaking_results:
            return ""
        place, result = self.leaking_results[0]
        return (
            f"leaking: {result.metric} {result.score:.3f} against {result.baseline:.3f} ({place})"
        )

    def remaining_leak(self, klass: str) -> float:
        """Return the largest `RecipeResult.weight` among the measures of one class."""
        results = [
            (t, c) for t in self.trials for c in t.results if measure(c.metric).klass == klass
        ]
        return max((t.weight(c) for t, c in results), default=0.0)

    def measured(self, klass: str) -> float:
        """Return the largest advantage that an attack reached by the measures of one class.

        Failed attacks are left out, in contrast to `remaining_leak`, which counts them as without a
        defense.
        """
        results = [c for t in self.trials for c in t.results if measure(c.metric).klass == klass]
        return max((c.weight for c in results if not c.attack_failed), default=0.0)

    @property
    def leak_steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The largest advantages about persons, guesses and groups, in steps of `_STEPS`.

        The first tuple contains the measured advantages. In the second one, failed attacks count as
        without the defense. A measured leak therefore weighs more than a leak that is only not
        excluded.
        """
        return (
            # Rounding to steps makes small differences equal, so that the change in utility
            # decides between them.
            tuple(round(self.measured(k) / step) for k, step in _STEPS.items()),
            tuple(round(self.remaining_leak(k) / step) for k, step in _STEPS.items()),
        )

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key of recipes, the best first."""
        cost = -round(finite(self.utility_change.change.mean, -1.0) / TOLERANCE)
        parts = len(parse_one(split_recipe(self.name)[1]).parts)
        return (
            not self.holds, bool(self.untested), self.holds and not self.shown,
            self.utility_change.tier, self.leak_steps, cost, parts,
            finite(self.bytes, math.inf), self.name,
        )  # fmt: skip


@dataclass(frozen=True)
class Recommendation:
    """All recipes of a run, the best first."""

    recipes: tuple[Recipe, ...]

    @property
    def choice(self) -> Recipe | None:
        """The first recipe that resists and whose model is better than a constant one, or None."""
        return next((c for c in self.recipes if c.holds and not c.utility_change.collapsed), None)

    @property
    def least(self) -> Recipe | None:
        """The fully tested recipe that leaves the least advantage. None if a recipe resists."""
        if self.choice is not None:
            return None
        every = [c for c in self.recipes if not (c.untested or c.utility_change.collapsed)]
        return min(every, key=lambda c: c.leak_steps, default=None)


def recommended() -> ProtocolRecipe:
    """Return the name of the recipe that the documentation recommends.

    `fedtrees.benchmarks.papers.recipes` computes it from four tables and stores it.
    """
    stored = resources.files(__package__) / RECOMMENDED
    return ProtocolRecipe(**json.loads(stored.read_text(encoding="utf-8")))


def recommend(trials: Mapping[str, Sequence[RecipeResult]], preferred: str = "") -> Recommendation:
    """Rank the recipes of a run, the best first.

    Parameters
    ----------
    trials : mapping of str to sequence of RecipeResult
        By name of the recipe, one trial for every table and adversary. The run without a defense is
        not a recipe.
    preferred : str
        A recipe that is placed first among those that resist, or among those that do not, unless it
        costs clearly more utility than the first of them. The recommendation of the documentation
        is based on more tables and seeds than a single run. A run therefore names another recipe
        only if the recommended one does not resist there or is too expensive.

    Returns
    -------
    recommendation : Recommendation
        All recipes in the order of `Recipe.rank`.
    """
    # A required measure that any recipe has at a place is needed from all recipes. Otherwise a
    # recipe could be ranked first because the gravest attack on it did not run.
    needed: dict[str, set[str]] = {}
    for tried in trials.values():
        for t in tried:
            scored = {c.metric for c in t.results if c.scores and measure(c.metric).required}
            needed.setdefault(t.place, set()).update(scored)
    # The results without a defense decide how failed attacks count (`RecipeResult.weight`).
    bare = {t.place: t.results for t in trials.get(UNDEFENDED, ())}
    candidates = [
        Recipe(
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
        if preferred_candidate.utility_change.tier <= ranked[first].utility_change.tier:
            ranked.remove(preferred_candidate)
            ranked.insert(first, preferred_candidate)
    return Recommendation(tuple(ranked))


def _missing(tried: Sequence[RecipeResult], needed: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the places at which a recipe was not run or lacks a required measure, with reasons."""
    by_place = {t.place: t for t in tried}
    for place, metrics in needed.items():
        if place not in by_place:
            yield f"{place}: not run"
        elif not by_place[place].untested:
            scored = {c.metric for c in by_place[place].results if c.state != "not-applicable"}
            lacking = sorted(metrics - scored)
            if lacking:
                yield f"{place}: no {' and no '.join(lacking)} was measured"


def helps(
    undefended: Sequence[LeakageResult], defended: Sequence[LeakageResult], margin: float = MARGIN
) -> bool:
    """Return whether a defense is shown to remove a leak, or a considerable part of one.

    This is the case if a result that is leaking without the defense is safe or not-applicable with
    it. It is also the case if the advantage falls clearly: the interval of the fall, paired by
    seed, is above zero, and its mean is at least the margin. For measures that count persons, the
    mean must be at least a tenth of the advantage instead. A fall to less than the baseline does
    not count, because it shows that the attack failed, and another attack may still succeed.

    Parameters
    ----------
    undefended, defended : sequence of LeakageResult
        Results of the same adversary.
    margin : float
        Margin of the run.
    """
    after = {c.metric: c for c in defended}
    for before in undefended:
        now = after.get(before.metric)
        if before.state != "leaking" or now is None or now.attack_failed:
            continue
        if now.state in ("safe", "not-applicable"):
            return True
        advantages = dict(zip(now.seeds, now.advantages, strict=True))
        falls = [
            advantage - advantages[seed]
            for seed, advantage in zip(before.seeds, before.advantages, strict=True)
            if seed in advantages
        ]
        fall = t_estimate(falls)
        # Counts of persons can be large, so that a relative fall is required instead of the margin.
        least = _RELIEF * before.advantage.mean if before.counts_persons else margin
        if fall.known and fall.low > 0 and fall.mean >= least:
            return True
    return False


def systems() -> tuple[str, ...]:
    """Return the names of the systems that run at least one registered protocol."""
    protocols = (register.get("protocol", name) for name in register.names("protocol"))
    return tuple(sorted({system for protocol in protocols for system in protocol.info.deployments}))  # type: ignore[attr-defined]


def runs_in(system: str, protocol: Spec, defenses: Sequence[Spec] = ()) -> bool:
    """Return whether a system supports a protocol with its parameters and all given defenses."""
    return all(
        support is not None and support.takes(values)
        for support, values in _supports(system, protocol, defenses)
    )


def settings(protocol: str, defense: str) -> Iterator[str]:
    """Yield one text per system that runs a recipe: its settings and the tested versions.

    Protocol and defense are given in the notation of the command line.
    """
    first, parts = parse_one(protocol).parts[0], parse_one(defense).parts
    for system in systems():
        if runs_in(system, first, parts):
            texts = [
                support.settings(values)
                for support, values in _supports(system, first, parts)
                if support is not None
            ]
            text = ". And: ".join(texts).removesuffix(".")
            yield f"In {system}: {text}. {name_versions(SYSTEMS.get(system, ()))}"


def _supports(
    system: str, protocol: Spec, defenses: Sequence[Spec]
) -> Iterator[tuple[Deployed | None, Mapping[str, Any]]]:
    """Yield the support of a system for each part of a recipe, and the parameters of the part.

    The support is None if the system lacks the part or the part is not registered.
    """
    for kind, spec in (("protocol", protocol), *(("defense", part) for part in defenses)):
        if spec.name in register.names(kind):
            plugin: Any = register.make(kind, spec)
            yield plugin.info.deployments.get(system), getattr(plugin, "parameters", vars(plugin))
        else:
            yield None, {}
