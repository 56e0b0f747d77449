"""Recommend a recipe from results, and write the page of advice.

`fedtrees.report.limits` compares the recipes of a run with the limits of a user. `Advice` contains
the result of a search, and writes it as terminal lines, as Markdown and as HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from fedtrees import __version__
from fedtrees.core.errors import listed, many
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_one
from fedtrees.report.adversaries import adversary_named
from fedtrees.report.coverage import coverage, role_names
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.limits import (
    Objection,
    Tried,
    Wish,
    describe_limit,
    limits_below_guesses,
    recipe,
    unreachable_limits,
    untested_in_words,
)
from fedtrees.report.local_baseline import LocalComparison
from fedtrees.report.recipe import Recipe, RecipeResult, settings
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import finite
from fedtrees.report.trials import trials_of
from fedtrees.report.web_page import render
from fedtrees.report.wording import (
    can,
    capital,
    change,
    mean_and_interval,
    number,
    settled,
    some,
)

#: Explanations at the end of the page, for readers who have not used fedtrees.
_TERMS = {
    "Row": "the record of one person. A row is exact if every category is right and "
    "every number is within 0.319 standard deviations",
    "Member": "a person whose row was used for the training",
    "At 1% false alarms": "the attack may wrongly name 1% of the persons who are not members",
    "Blind": "the score of the best guess of the same adversary without any message. Only the "
    "difference to it was learned from the training",
    "Population": "the score of a guess from rows of other persons, for adversaries without rows",
    "AUC of the model": "the quality of its predictions; 0.5 is a random guess, and 1 is perfect",
    "Epsilon": "a limit for how much any attack can learn about one row, except with the small "
    "probability delta",
    "Seed": "one repetition of the experiment with other random choices",
    "Not settled": "the results show neither that there is a leak nor that there is none",
}


@dataclass(frozen=True)
class Experiment:
    """Description of the experiment on which advice is based.

    Attributes
    ----------
    of : str
        Table, parties and number of seeds, in words.
    version : str
        Version of fedtrees that produced the results.
    cut : tuple of str
        Attacks that stopped at the limit of their search, with these limits.
    role_labels : mapping of str to (str, str)
        Singular and plural name of each role of the protocol, in words.
    simulated : str
        How the parties were simulated, "" if they are those of the table.
    data : str
        Description of the table without any of its values, "" if it is not known.
    """

    of: str
    version: str
    cut: tuple[str, ...] = ()
    role_labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    simulated: str = ""
    data: str = ""


@dataclass(frozen=True)
class SearchEnd:
    """How a search ended.

    Attributes
    ----------
    left_out : str
        Description of the candidates that were not run, "" if there are none.
    nearest_name : str
        Name of the recipe that the search found nearest to the limits before its time ran out. ""
        for the nearest one of those that were fully tested.
    stopped : str
        Why the search ended before its time, "" if it did not.
    command : str
        Command that continues the search, "" if there is none.
    """

    left_out: str = ""
    nearest_name: str = ""
    stopped: str = ""
    command: str = ""


@dataclass(frozen=True)
class Advice:
    """The recommendation for one table, with the evidence for it.

    Attributes
    ----------
    wish : Wish
        The limits of the user.
    tried : tuple of Tried
        All compared recipes. Those that ran on all seeds come first, the best one first.
    undefended : tuple of RecipeResult
        Results without a defense, one per adversary and table.
    experiment : Experiment
        Description of the experiment.
    end : SearchEnd
        How the search ended.
    """

    wish: Wish
    tried: tuple[Tried, ...]
    undefended: tuple[RecipeResult, ...]
    experiment: Experiment
    end: SearchEnd = SearchEnd()

    @classmethod
    def of_rows(
        cls,
        rows: pd.DataFrame,
        wish: Wish,
        tried: tuple[Tried, ...],
        left_out: str = "",
        nearest_name: str = "",
        stopped: str = "",
    ) -> Advice:
        """Build the advice of a run from the rows of its last round.

        Parameters
        ----------
        rows : DataFrame
            Results of the last round. Empty if the time ran out before the first training ended.
        wish : Wish
            The limits of the user.
        tried : tuple of Tried
            The compared recipes of all rounds.
        left_out : str
            Description of the candidates that were not run.
        nearest_name : str
            Name of the recipe that is nearest to the limits, "" to choose it here.
        stopped : str
            Why the search ended before its time, "" if it did not.
        """
        end = SearchEnd(left_out, nearest_name, stopped)
        trains = rows[rows["stage"] == "train"]
        if trains.empty:
            return cls(wish, tried, (), Experiment("no result yet", __version__), end)
        first = trains.iloc[0]
        seeds = many(int(rows["seed"].dropna().nunique()), "seed")
        parties, simulated = describe_partition(first["partition"])
        attacks = rows[rows["stage"] == "attack"]
        experiment = Experiment(
            f"{first['dataset']}, {parties}, {seeds}",
            first["version"],
            coverage(rows[rows["stage"] == "adversary"], attacks).early,
            _neutral(role_names(first["setting"])),
            simulated,
        )
        return cls(wish, tried, tuple(trials_of(rows).get(UNDEFENDED, [])), experiment, end)

    @cached_property
    def met(self) -> tuple[Tried, ...]:
        """The recipes that meet the wish, the best first."""
        return tuple(t for t in self.tried if not t.unmet)

    @property
    def choice(self) -> Tried | None:
        """The recommended recipe, None if no recipe meets the limits."""
        return next(iter(self.met), None)

    @property
    def nearest(self) -> Tried | None:
        """The fully tested recipe nearest to the limits, or the one that the search found.

        Recipes that are not excluded come first. None if a recipe meets the limits, or if no recipe
        was fully tested.
        """
        every = [t for t in self.tried if t.name == self.end.nearest_name]
        every = every or [t for t in self.tried if not t.candidate.untested]
        if self.choice:
            return None
        return min(every, key=lambda t: (bool(t.broken), t.excess), default=None)

    @property
    def undecided(self) -> tuple[Tried, ...]:
        """The recipes that are neither excluded nor shown to meet the limits."""
        return tuple(t for t in self.tried if t.unmet and not t.broken)

    @property
    def result(self) -> str:
        """One sentence with the result of the search, without the name of a recipe."""
        # A recipe without all attacks is not tested.
        tested = [t for t in self.tried if not t.candidate.untested]
        if self.choice:
            return f"{_capital_number(len(self.met), len(tested))} your limits."
        if self.limits_below_guesses:
            return "The search stopped, because no defense can meet your limits on this table."
        if not tested:
            why = (
                "the time ran out"
                if self.end.left_out
                else "an attack is missing on every candidate"
            )
            return f"No recipe was tested completely, because {why}."
        recipes = many(len(tested), "tested recipe")
        if len(tested) == 1 and self.undecided:
            return "The only tested recipe is not shown to meet your limits yet."
        if not self.undecided:
            subject = {1: "The only tested recipe is", 2: "Both tested recipes are"}
            return f"{subject.get(len(tested), f'All {recipes} are')} excluded by your limits."
        if len(self.undecided) == len(tested):
            return f"None of {recipes} is shown to meet your limits yet, and none is excluded."
        excluded, unsettled = (
            "one is" if n == 1 else f"{n} are"
            for n in (len(tested) - len(self.undecided), len(self.undecided))
        )
        return (
            f"None of {recipes} is shown to meet your limits: {excluded} excluded, and {unsettled} "
            "not settled yet."
        )

    @property
    def verdict(self) -> tuple[str, ...]:
        """The recommendation as lines of text.

        The lines state the result with the recommended recipe or the nearest one, its comparison
        with parties that train without the others, and the limits that were not met. They are
        followed by the limits, the leaks without a defense, the remaining leaks and settings of the
        recipe, the second best recipe, and the reasons against the remaining ones.
        """
        lines = [*self._summary]
        for heading, items in self._reasons:
            lines += [heading, *(f"- `{name}`: {text}" for name, text in items)]
        return tuple(_neutral_text(line) for line in lines)

    @property
    def _summary(self) -> list[str]:
        """The lines of the recommendation without the reasons against other recipes."""
        lines = [self.headline, *self._important()]
        lines += [f"Your limits: {self.wish}."]
        if self.undefended:
            lines += [f"Without a defense: {self._describe_undefended()}."]
        if self.choice:
            still = [
                f"{self._who(trial)} can {can(cell)}"
                for trial in self.choice.candidate.trials
                for cell in trial.leaks
            ]
            lines += [f"It leaves: {some(still)}."] * bool(still)
            lines += [f"Next best: {_describe_recipe(t)}." for t in self.met[1:2]]
            lines += self._systems
        return lines

    @property
    def headline(self) -> str:
        """The recommended recipe, or the result of the search with the nearest recipe."""
        if self.choice:
            return f"Take {_describe_recipe(self.choice)}."
        # If no recipe meets the limits, the nearest one shows which limit is too strict.
        near = f" Nearest: {_describe_recipe(self.nearest)}." if self.nearest else ""
        return f"{self.result}{near}"

    @property
    def comparison(self) -> LocalComparison | None:
        """The AUC of the recommended or nearest recipe, and without the federation."""
        taken = self.choice or self.nearest
        return taken.comparison if taken else None

    @property
    def limits_below_guesses(self) -> dict[str, LeakageResult]:
        """The result with the largest baseline of each measure whose limit it exceeds."""
        return limits_below_guesses(self.undefended, self.wish)

    def _important(self) -> Iterator[str]:
        """Yield the sentences directly below the headline."""
        if self.comparison and self.comparison.sentence:
            yield self.comparison.sentence
        yield from unreachable_limits(self.undefended, self.wish)
        yield from self._limits_that_no_recipe_met()
        if self.end.left_out:
            yield f"{capital(self.end.left_out)}."
        if self.end.stopped:
            yield self.end.stopped

    def _describe_undefended(self) -> str:
        """Describe the leak without a defense that exceeds its limit by the largest factor."""
        recipe = Recipe(UNDEFENDED, self.undefended)
        plain = Tried(recipe, {}, self.wish, role_labels=self.experiment.role_labels)
        if leaks := [o.text for o in plain.objections if o.kind in self.wish.limits]:
            return leaks[0]
        if any(t.untested for t in self.undefended):
            return "not every attack ran, and none that ran exceeds your limits on the mean"
        return "no attack exceeds your limits on the mean"

    @property
    def _systems(self) -> list[str]:
        """How to configure the recommended recipe in other systems."""
        assert self.choice is not None
        return [*settings(*recipe(self.choice.name))] or [
            "No other known system runs it unchanged. `fedtrees federation run` does."
        ]

    @property
    def _reasons(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The reasons against all other recipes, grouped by the limit that they exceed.

        Each group has a heading and pairs of a recipe and its measured value.
        """
        groups: dict[tuple[bool, str], list[tuple[str, str]]] = {}
        for t in self.tried:
            if t.objections:
                first = t.objections[0]
                key = (first.excludes, self._heading(first))
                groups.setdefault(key, []).append((t.name, f"{first.text}."))
        # Recipes that further seeds can still settle are first.
        ordered = sorted(groups.items(), key=lambda group: group[0][0])
        return [(heading, items) for (_, heading), items in ordered]

    def _heading(self, objection: Objection) -> str:
        """Return the heading of all recipes to which an objection of the same kind applies."""
        if not objection.excludes:
            return "Not settled, because the evidence is not sufficient:"
        if objection.kind == "untested":
            return "Not tested completely:"
        if objection.kind == "auc":
            return f"Excluded by your limit for the AUC of the model (at least {self.wish.auc:g}):"
        limit = describe_limit(objection.kind, self.wish.limits[objection.kind])
        more = " beyond a guess" * (self.wish.above_guess and objection.kind == "exact_rows")
        name = measure(objection.kind).name
        return f"Excluded by your limit for {name} (at most {limit}{more}):"

    def _limits_that_no_recipe_met(self) -> Iterator[str]:
        """Yield the limits that no tested recipe meets on the mean, with the best score of each.

        Nothing is yielded as long as a recipe is not excluded.
        """
        if self.choice or self.undecided:  # more seeds can show that a recipe meets the limits
            return
        tested = [t for t in self.tried if not t.candidate.untested]
        for metric in (m for m in self.wish.limits if m not in self.limits_below_guesses):
            worst = [(cell, t.name) for t in tested if (cell := t.worst(metric)) is not None]
            if not worst:
                continue
            cell, name = min(worst, key=lambda pair: pair[0].score - self.wish.limit_of(pair[0]))
            limit = self.wish.limit_of(cell)
            if cell.score > limit:
                yield (
                    f"No tested recipe meets your limit of {describe_limit(metric, limit)} for "
                    f"{measure(metric).name}: the smallest value is "
                    f"{describe_limit(metric, round(cell.score, 3))} on "
                    f"{many(len(cell.scores), 'seed')} (`{name}`)."
                )
        best = max(tested, key=lambda t: finite(t.utility.mean), default=None)
        if best is not None and finite(best.utility.mean) < self.wish.auc:
            yield (
                f"No tested recipe has an AUC of at least {self.wish.auc:g}: the largest is "
                f"{number(best.utility.mean)} on {many(len(best.auc), 'seed')} (`{best.name}`)."
            )

    @property
    def next_steps(self) -> list[str]:
        """What to do after reading the page, as paragraphs. A command is a separate paragraph."""
        if self.choice:
            costs = self.comparison is not None and self.comparison.joining_costs
            first = (
                "Do not join yet: with this recipe, a party gains nothing from the federation. "
                "Relax a limit, or train without the others."
                if costs
                else "Agree on this recipe with the other parties, and train the final model with "
                "it. The models of this experiment are not private."
            )
            return [first, "Read the remaining risks and the list of what was not tested below."]
        if self.limits_below_guesses:
            steps = ["Repeat the search with limits that can be met:"]
        elif self.end.left_out or self.undecided:
            steps = ["Do not use any of these recipes yet. Continue the search with more time:"]
        else:
            steps = [
                "Do not join with one of these recipes. Change a limit that no recipe met if you "
                "can accept this, or give the search more time:"
            ]
        return [*steps, f"`{self.end.command}`"] if self.end.command else steps

    @property
    def sections(self) -> dict[str, list[str]]:
        """Sections of a data protection impact assessment by heading.

        An entry is a paragraph, or a list with one item per line.
        """
        taken = self.choice or self.nearest
        measures = [_neutral_text(line) for line in self._summary]
        groups = [
            [heading, "\n".join(f"- `{name}`: {text}" for name, text in items)]
            for heading, items in self._reasons
        ]
        parts = {
            "What to do now": self.next_steps,
            "Purpose": [f"To train one model over several parties, with {self.wish}."],
            "Data": [
                *filter(None, [self.experiment.data, self.experiment.simulated]),
                f"Experiment: {self.experiment.of}. Computed by fedtrees "
                f"{self.experiment.version}.",
            ],
            "Adversaries": [
                "Each adversary follows the protocol and uses everything that it receives "
                f"(honest-but-curious): {'; '.join(self._who(t) for t in self.undefended)}."
            ]
            if self.undefended
            else ["No adversary was tested."],
            "Risks without a measure": self._risks(self.undefended),
            "Measures": [*measures, *(text for group in groups for text in group)],
            "Residual risk": self._residual_risk(taken),
            "Not tested": [*self._untested()],
            "Terms": ["\n".join(f"- {term}: {meaning}" for term, meaning in _TERMS.items())],
        }
        return {head: [*map(_neutral_text, texts)] for head, texts in parts.items()}

    def _residual_risk(self, taken: Tried | None) -> list[str]:
        """Return the remaining leaks and the guarantee of the recommended or nearest recipe."""
        if taken is None:
            return ["Not known, because no recipe was tested completely."]
        role = "the recommended recipe" if self.choice else (
            "the nearest recipe, which is not shown to meet your limits"
        )  # fmt: skip
        return [
            f"Of `{taken.name}`, {role}:",
            *self._risks(taken.candidate.trials),
            _describe_guarantee(taken),
        ]

    def page(self) -> str:
        """Return the advice as Markdown."""
        parts = [f"## {head}\n\n" + "\n\n".join(lines) for head, lines in self.sections.items()]
        return "\n\n".join(["# Advice", self.result, *parts]) + "\n"

    def html(self) -> str:
        """Return the advice as one HTML document. The same run gives the same bytes."""
        taken = self.choice or self.nearest
        comparison = self.comparison
        return render(
            "advice.html.j2",
            title=self.experiment.of,
            result=self.result,
            role="" if taken is None else "Recommended recipe" if self.choice else "Nearest recipe",
            name=taken.name if taken else "",
            description=_describe_result(taken) if taken else "",
            comparison=comparison.sentence if comparison else "",
            sections=self.sections,
            version=self.experiment.version,
        )

    def _who(self, trial: RecipeResult) -> str:
        """Return the adversary of a trial in words, for example ``the server``."""
        if not trial.threat:
            return trial.place
        return adversary_named(trial.threat, self.experiment.role_labels)[0]

    def _risks(self, trials: Iterable[RecipeResult]) -> list[str]:
        """List the leaks as Markdown, one line per adversary.

        If not every applicable attack ran, this is written, because a missing attack is no evidence
        that nothing leaks.
        """
        lines = []
        for t in trials:
            leaks = [f"can {can(r)}" for r in t.leaks if r.scores]
            more = [
                f"{remark}: {some([measure(r.metric).name for r in results])}"
                for remark, results in (
                    ("not settled", t.doubtful),
                    ("the attack scored worse than a guess, which shows nothing", t.failed),
                )
                if results
            ]
            if t.untested:
                more.append(f"not tested completely: {t.untested}")
            elif not leaks:
                leaks = ["no leak is shown"]
            lines.append(f"- {capital(self._who(t))}: {'; '.join([*leaks, *more])}")
        return ["\n".join(lines)] if lines else ["Not known, because no attack has finished."]

    def _untested(self) -> Iterator[str]:
        """Yield sentences about the limits, attacks and adversaries that the run did not test."""
        measured = {c.metric for t in self.tried for trial in t.candidate.trials
                    for c in trial.results if c.scores}  # fmt: skip
        for metric in self.wish.limits if self.tried else ():
            if metric not in measured:
                yield f"{measure(metric).name}: no attack that applies measures it."
        for t in self.tried:
            if t.candidate.untested:
                yield f"`{t.name}`: {some(untested_in_words(t))}."
        if self.end.left_out:
            yield f"{capital(self.end.left_out)}."
        if searches := self.experiment.cut:
            yield f"The searches of {listed(searches)} stopped at their limits and may find more."
        yield (
            "Not tested at all: adversaries that are not named above, attacks that fedtrees does "
            "not contain, parties that do not follow the protocol, and other tables."
        )


def describe_partition(partition: str) -> tuple[str, str]:
    """Describe the parties of a partition in a few words, and how they were simulated.

    Parameters
    ----------
    partition : str
        Partition in results, for example ``iid[clients=3]``.

    Returns
    -------
    parties, simulated : str
        For example "3 simulated parties", and a sentence. The sentence is "" if the parties are
        those of the table.

    Examples
    --------
    >>> describe_partition("iid[clients=3]")[0]
    '3 simulated parties'
    >>> describe_partition("by-client[clients=4]")
    ('4 parties', '')
    """
    spec = parse_one(partition).parts[0]
    clients = spec.params.get("clients")
    parties = many(clients, "party", "parties") if isinstance(clients, int) else "parties"
    if spec.name not in ("iid", "label-skew", "quantity-skew", "feature-bands", "shares", "named"):
        return parties, ""
    how = "random parts of one table" if spec.name == "iid" else f"parts of one table ({spec.name})"
    return f"{parties.replace(' ', ' simulated ')}", (
        f"The parties were simulated: they have {how}. Real parties differ more from one another, "
        "so that their leaks and their AUC can differ from these results."
    )


def _neutral(labels: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return names of roles for a reader who may not operate any party: ``the server``."""
    return {role: (_neutral_text(one), several) for role, (one, several) in labels.items()}


def _neutral_text(text: str) -> str:
    """Replace ``your server`` by ``the server``, because the reader may belong to any party."""
    return text.replace("your server", "the server").replace("Your server", "The server")


def _capital_number(met: int, tested: int) -> str:
    """Write how many of the tested recipes meet something: ``One of 3 tested recipes meets``."""
    if tested == 1:
        return "The tested recipe meets"
    if met == tested == 2:
        return "Both tested recipes meet"
    return f"{'One' if met == 1 else met} of {tested} tested recipes meet{'s' * (met == 1)}"


def _describe_guarantee(taken: Tried) -> str:
    """Describe the epsilon that a recipe claims."""
    if not taken.guarantee:
        return "Guarantee: none. No epsilon limits the attacks that fedtrees does not contain."
    return (
        f"Guarantee: this recipe claims {taken.guarantee}. It also limits attacks that fedtrees "
        "does not contain. A smaller epsilon is a stronger limit."
    )


def _describe_recipe(tried: Tried) -> str:
    """Write a recipe with its AUC and its utility change."""
    return f"`{tried.name}`, {_describe_result(tried)}"


def _describe_result(tried: Tried) -> str:
    """Write the AUC of a recipe and its utility change, with the number of seeds."""
    utility_change = tried.candidate.utility_change
    auc = mean_and_interval(tried.utility)
    gap = ", not every attack ran on it" * bool(tried.candidate.untested)
    seeds = many(len(tried.auc), "seed")
    return (
        f"AUC {auc} on {seeds}, a change of {change(utility_change.change)} against the undefended "
        f"run ({settled(utility_change)}){gap}"
    )
