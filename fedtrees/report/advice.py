"""Compute which recipe meets a user's limits from results, and write the page of advice.

A recipe is a protocol with a defense. `tried` compares every recipe of a run with a `Wish`.
`Advice` contains the result, and writes it as terminal lines, as Markdown and as HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from fedtrees.core.errors import listed, many
from fedtrees.core.results import UTILITY, measure
from fedtrees.report.adversaries import adversary_named
from fedtrees.report.coverage import coverage, role_names
from fedtrees.report.guarantees import DefenseGuarantees, in_words
from fedtrees.report.leakage import FEWEST_SEEDS, LeakageResult, upper
from fedtrees.report.recipe import Recipe, RecipeResult, recommend, recommended, settings
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate, by_seed, finite, t_estimate
from fedtrees.report.trials import trials_of
from fedtrees.report.web_page import render
from fedtrees.report.wording import (
    amount,
    by_population,
    can,
    change,
    mean_and_interval,
    number,
    percent,
    settled,
    some,
    split_recipe,
    word,
)

_UTILITY = UTILITY[0].key  # area under the ROC curve
_REJECTED = "Not recommended: "  # begins the line on a recipe that is not shown to meet the limits
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
#: Option of `fedtrees recommend` that states the limit of each measure.
_OPTIONS = {"exact_rows": "--max-exact-rows", "members_1pct": "--max-membership"}


@dataclass(frozen=True)
class Wish:
    """Limits of the user: how much may leak, and how accurate the model must be.

    Attributes
    ----------
    exact_rows : float
        Largest acceptable share of the rows of other parties that an adversary reconstructs
        exactly.
    membership : float
        Largest acceptable share of members that an adversary recognises at 1% false alarms.
    auc : float
        Smallest acceptable AUC on test rows.
    """

    exact_rows: float = 0.01
    membership: float = 0.05
    auc: float = 0.75

    @property
    def limits(self) -> dict[str, float]:
        """The largest acceptable share by key of the measure."""
        return {"exact_rows": self.exact_rows, "members_1pct": self.membership}

    def __str__(self) -> str:
        rows, members = percent(self.exact_rows), percent(self.membership)
        return (
            f"at most {rows} of the other parties' rows reconstructed exactly, at most {members} "
            f"of members recognised at 1% false alarms, an AUC of at least {self.auc:g}"
        )


@dataclass(frozen=True)
class Tried:
    """A recipe, compared with the limits of a user.

    Attributes
    ----------
    candidate : Recipe
        The recipe and its trials.
    auc : mapping of int to float
        AUC on test rows, by seed.
    wish : Wish
        The limits.
    guarantee : str
        The claimed epsilon in words, "" if none is claimed or if the run did not keep it.
    """

    candidate: Recipe
    auc: Mapping[int, float]
    wish: Wish
    guarantee: str = ""

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.candidate.name

    @property
    def utility(self) -> Estimate:
        """Mean AUC with its 95% t interval over seeds."""
        return t_estimate(self.auc.values(), bounds=UTILITY[0].bounds)

    @property
    def broken(self) -> str:
        """Reason not to run further seeds of this recipe, "" if there is none.

        The reason is a mean beyond the limits, or a missing attack.
        """
        return next(self._reasons(), "")

    @property
    def unmet(self) -> str:
        """First reason why the recipe is not recommended, "" if it is shown to meet the limits.

        In contrast to `broken`, this includes the ends of the confidence intervals.
        """
        reason = self.broken
        if not reason and len(self.auc) < FEWEST_SEEDS:
            return f"{many(len(self.auc), 'seed')} ran; {FEWEST_SEEDS} are needed for an interval"
        return reason or next(self._reasons(shown=True), "")

    @property
    def read(self) -> float:
        """Largest quotient of a mean score and its limit. Values up to 1 are within the limits.

        A limit that a guess without any message exceeds is replaced by the score of this guess
        (`_reachable`). Otherwise it would decide alone which recipe is the nearest one.
        """
        return max((c.score / self._reachable(c) for _, c in self._limited()), default=0.0)

    @property
    def excess(self) -> float:
        """Distance from the limits, including that of the AUC (see `read`).

        Values up to 1 meet the limits on the means, as far as they can be met.
        """
        return max(self.read, self.wish.auc / self.utility.mean if self.auc else math.inf)

    def worst(self, metric: str) -> float | None:
        """Return the largest mean score by a measure with a limit, None if nothing measured it."""
        return max((c.score for _, c in self._limited() if c.metric == metric), default=None)

    def _limited(self) -> Iterator[tuple[RecipeResult, LeakageResult]]:
        """Yield the trials and cells with a score by a measure that has a limit above 0."""
        limits = self.wish.limits
        yield from (
            (t, c)
            for t in self.candidate.trials
            for c in t.results
            if c.scores and limits.get(c.metric)
        )

    def _reachable(self, cell: LeakageResult) -> float:
        """Return the limit of a measure, or the score of the baseline if it is larger."""
        return max(self.wish.limits[cell.metric], finite(cell.baseline))

    def read_beyond(self, shown: bool = False) -> str:
        """Describe the score that exceeds its limit by the largest factor, "" if none does.

        With `shown`, the upper end of the interval is compared instead of the mean.
        """
        over = []
        for trial, cell in self._limited():
            value, limit = highest(cell) if shown else cell.score, self.wish.limits[cell.metric]
            if value > limit:
                end = f", up to {percent(value)} by the interval" if shown else ""
                reason = f"{trial.place} can {can(cell)}{end}; your limit: {percent(limit)}"
                # Limits of different measures are compared by the factor by which they are
                # exceeded.
                over.append((value / self._reachable(cell), reason))
        return max(over)[1] if over else ""

    def _failed_attacks(self) -> Iterator[str]:
        """Yield the measures with a limit for which a failed attack leaves no evidence.

        Without this check, an attack that scored worse than its baseline or returned no claim would
        meet every limit.
        """
        for trial in self.candidate.trials:
            for cell in (c for c in trial.results if self.wish.limits.get(c.metric)):
                if cell.below_baseline or (cell.no_claim and cell.state != "leaking"):
                    yield f"{trial.place}: by {measure(cell.metric).name}, {word(cell)}"

    def _reasons(self, shown: bool = False) -> Iterator[str]:
        """Yield the reasons against a recipe.

        With `shown`, the ends of the intervals are compared with the limits instead of the means.
        """
        if read := self.read_beyond(shown):
            yield read
        if shown:
            yield from self._failed_attacks()
        least = self.utility.low if shown else self.utility.mean
        # The negation also rejects NaN, which is the AUC of a recipe that has not been trained.
        if not least >= self.wish.auc:
            auc = mean_and_interval(self.utility) if shown else number(self.utility.mean)
            yield f"AUC {auc}; your limit: at least {self.wish.auc:g}"
        if self.candidate.untested:
            yield self.candidate.reason


def highest(cell: LeakageResult) -> float:
    """Return the upper end of the 95% interval of a share, at most 1.

    If the share is 0 on every seed, the exact binomial bound of `upper` is used, because the t
    interval has length zero.
    """
    high = finite(t_estimate(cell.scores, cell.errors, measure(cell.metric).bounds).high, 1.0)
    return high if any(cell.scores) else max(high, min(1.0, upper(cell)))


def tried(rows: pd.DataFrame, wish: Wish) -> tuple[Tried, ...]:
    """Compare every recipe of a run with a wish, the best recipe first.

    Parameters
    ----------
    rows : DataFrame
        Results on one table (`fedtrees.report.results.load_rows`).
    wish : Wish
        The limits of the user.

    Returns
    -------
    tried : tuple of Tried
        In the order of `fedtrees.report.recipe.recommend`.
    """
    trains = rows[rows["stage"] == "train"]
    auc: dict[tuple[str, str], Mapping[int, float]] = {
        (protocol, spec): by_seed(group, _UTILITY)
        for (protocol, spec), group in trains.groupby(
            [trains["setting"].map(lambda s: s.protocol).astype(str), "defense_spec"]
        )
    }
    guarantees = _guarantees(rows)
    tried_candidates = []
    for candidate in recommend(trials_of(rows, bare=True), recommended()).recipes:
        protocol, defense = recipe(candidate.name)
        guarantee = guarantees.get((protocol, defense), "")
        scores = auc.get((protocol, defense), {})
        tried_candidates.append(Tried(candidate, scores, wish, guarantee))
    return tuple(tried_candidates)


def _guarantees(rows: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the claimed epsilon in words by protocol and defense, "" without a kept claim."""
    protocols = rows["setting"].map(lambda s: str(s.protocol) if s else "")
    texts = {}
    for (protocol, defense), group in rows.groupby([protocols, "defense_spec"]):
        guarantees = DefenseGuarantees.of_rows(group)
        claimed = "" if guarantees.failure else in_words(guarantees.claimed)
        texts[str(protocol), str(defense)] = claimed
    return texts


def recipe(name: str) -> tuple[str, str]:
    """Split the name of a recipe (see `fedtrees.report.trials.trials_of`) in two.

    The result contains the protocol and the defense.
    """
    protocol, defense = split_recipe(name)
    return (protocol, defense) if protocol else (defense, UNDEFENDED)


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
    of : str
        Table, partition and number of seeds, in words.
    version : str
        Version of fedtrees that produced the results.
    cut : tuple of str
        Attacks that stopped at the limit of their search, with these limits.
    left_out : str
        Description of the candidates that were not run, "" if there are none.
    role_labels : mapping of str to (str, str)
        Singular and plural name of each role of the protocol, in words.
    nearest_name : str
        Name of the recipe that a search found nearest to the limits before its time ran out. ""
        for the nearest one of those that were fully tested.
    data : str
        Description of the table without any of its values, "" if it is not known.
    """

    wish: Wish
    tried: tuple[Tried, ...]
    undefended: tuple[RecipeResult, ...]
    of: str
    version: str
    cut: tuple[str, ...] = ()
    left_out: str = ""
    role_labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    nearest_name: str = ""
    data: str = ""

    @classmethod
    def of_rows(
        cls,
        rows: pd.DataFrame,
        wish: Wish,
        tried: tuple[Tried, ...],
        left_out: str = "",
        nearest_name: str = "",
    ) -> Advice:
        """Build the advice of a run from the rows of its last round.

        Parameters
        ----------
        rows : DataFrame
            Results of the last round.
        wish : Wish
            The limits of the user.
        tried : tuple of Tried
            The compared recipes of all rounds.
        left_out : str
            Description of the candidates that were not run.
        nearest_name : str
            Name of the recipe that is nearest to the limits, "" to choose it here.
        """
        first = rows[rows["stage"] == "train"].iloc[0]
        seeds = many(int(rows["seed"].dropna().nunique()), "seed")
        summary = f"{first['dataset']}, {first['partition']}, {seeds}"
        plain = trials_of(rows).get(UNDEFENDED, [])
        attacks = rows[rows["stage"] == "attack"]
        cut = coverage(rows[rows["stage"] == "adversary"], attacks).early
        labels = role_names(first["setting"])
        more = (cut, left_out, labels, nearest_name)
        return cls(wish, tried, tuple(plain), summary, first["version"], *more)

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

        None if a recipe meets the limits, or if no recipe was fully tested.
        """
        every = [t for t in self.tried if t.name == self.nearest_name]
        every = every or [t for t in self.tried if not t.candidate.untested]
        return None if self.choice else min(every, key=lambda t: t.excess, default=None)

    @property
    def verdict(self) -> tuple[str, ...]:
        """The recommendation as lines of text.

        The lines state the recommended recipe, or the nearest one and the limits that were not met,
        followed by the limits, the leaks without a defense, the remaining leaks and settings of the
        recipe, the second best recipe, and the reason against each remaining one.
        """
        plain = Tried(Recipe(UNDEFENDED, self.undefended), {}, self.wish).read_beyond()
        unfinished = [t for t in self.undefended if t.untested]
        without = plain or (
            "not every attack ran, and none that ran exceeds your limits on the mean"
            if unfinished
            else "no attack exceeds your limits on the mean"
        )
        lines = [self.headline, *unreachable_limits(self.undefended, self.wish)]
        lines += self._limits_that_no_recipe_met()
        lines += [f"Your limits: {self.wish}.", f"Without a defense: {without}."]
        if self.choice:
            still = [
                f"{place} can {can(cell)}" for place, cell in self.choice.candidate.leaking_results
            ]
            lines += [f"It leaves: {some(still)}."] * bool(still)
            lines += [f"Next best: {_describe_recipe(t)}." for t in self.met[1:2]]
            lines += [*settings(*recipe(self.choice.name))] or [
                "No other known system runs it unchanged. `fedtrees federation run` does."
            ]
        lines += [f"{_REJECTED}`{t.name}`. Reason: {t.unmet}." for t in self.tried if t.unmet]
        return tuple(lines)

    @property
    def headline(self) -> str:
        """The recommended recipe, or the statement that no recipe meets the limits."""
        if self.choice:
            return f"Take {_describe_recipe(self.choice)}."
        # If no recipe meets the limits, the nearest one shows which limit is too strict.
        near = f" Nearest: {_describe_recipe(self.nearest)}." if self.nearest else ""
        tested = many(len(self.tried), "tested recipe")
        more = " The time ran out before every candidate was tested." if self.left_out else ""
        return f"None of {tested} is shown to meet your limits.{more}{near}"

    def _limits_that_no_recipe_met(self) -> Iterator[str]:
        """Yield the limits that no tested recipe meets on the mean, with the best score of each."""
        exceeded = _guesses_beyond_limits(self.undefended, self.wish)
        for metric in self.wish.limits.keys() - exceeded.keys():
            limit = self.wish.limits[metric]
            worst = [(score, t.name) for t in self.tried if (score := t.worst(metric)) is not None]
            least, name = min(worst, default=(0.0, ""))
            if least > limit:
                yield (
                    f"No tested recipe meets your limit of {percent(limit)} for "
                    f"{measure(metric).name}: the smallest value is {percent(least)} (`{name}`)."
                )
        largest, name = max(
            ((finite(t.utility.mean), t.name) for t in self.tried), default=(math.inf, "")
        )
        if largest < self.wish.auc:
            yield (
                f"No tested recipe has an AUC of at least {self.wish.auc:g}: the largest is "
                f"{number(largest)} (`{name}`)."
            )

    @property
    def sections(self) -> dict[str, list[str]]:
        """Sections of a data protection impact assessment by heading.

        An entry is a paragraph, or a list with one item per line.
        """
        taken = self.choice or self.nearest
        reasons: list[str] = []
        lines: list[str] = []
        for line in self.verdict:
            (reasons if line.startswith(_REJECTED) else lines).append(line)
        return {
            "Purpose": [f"To train one model over several parties, with {self.wish}."],
            "Data": [
                *filter(None, [self.data]),
                f"Experiment: {self.of}. Computed by fedtrees {self.version}.",
            ],
            "Adversaries": [
                "Each adversary follows the protocol and uses everything that it receives "
                f"(honest-but-curious): {listed([*map(self._with_role, self.undefended)])}."
            ],
            "Risks without a measure": _risks(self.undefended),
            "Measures": [*lines, *filter(None, ["\n".join(f"- {text}" for text in reasons)])],
            "Residual risk": self._residual_risk(taken),
            "Not tested": [*self._untested()],
            "Terms": ["\n".join(f"- {term}: {meaning}" for term, meaning in _TERMS.items())],
        }

    def _residual_risk(self, taken: Tried | None) -> list[str]:
        """Return the remaining leaks and the guarantee of the recommended or nearest recipe."""
        if taken is None:
            return ["Not known, because no recipe was tested completely."]
        role = "the recommended recipe" if self.choice else (
            "the nearest recipe, which is not shown to meet your limits"
        )  # fmt: skip
        guarantee = (
            f"Guarantee: this recipe claims {taken.guarantee}. It also limits attacks that "
            "fedtrees does not contain. A smaller epsilon is a stronger limit."
            if taken.guarantee
            else "Guarantee: none. No epsilon limits the attacks that fedtrees does not contain."
        )
        return [f"Of `{taken.name}`, {role}:", *_risks(taken.candidate.trials), guarantee]

    def page(self) -> str:
        """Return the advice as Markdown."""
        parts = [f"## {head}\n\n" + "\n\n".join(lines) for head, lines in self.sections.items()]
        return "\n\n".join(["# Advice", *parts]) + "\n"

    def html(self) -> str:
        """Return the advice as one HTML document. The same run gives the same bytes."""
        return render(
            "advice.html.j2",
            title=self.of,
            headline=self.headline,
            sections=self.sections,
            version=self.version,
        )

    def _with_role(self, trial: RecipeResult) -> str:
        """Return the place of a trial and its adversary: ``pima · server (your server)``."""
        words, _ = adversary_named(trial.threat, self.role_labels)
        return f"{trial.place} ({words})"

    def _untested(self) -> Iterator[str]:
        """Yield sentences about the limits, attacks and adversaries that the run did not test."""
        measured = {c.metric for t in self.tried for trial in t.candidate.trials
                    for c in trial.results if c.scores}  # fmt: skip
        for metric in self.wish.limits:
            if metric not in measured:
                yield f"{measure(metric).name}: no attack that applies measures it."
        for t in self.tried:
            if t.candidate.untested:
                yield f"{t.name}: {some(t.candidate.untested)}."
        if self.left_out:
            yield f"{self.left_out[0].upper()}{self.left_out[1:]}."
        if self.cut:
            yield f"The searches of {listed(self.cut)} stopped at their limits and may find more."
        yield (
            "Not tested at all: adversaries that are not named above, attacks that fedtrees does "
            "not contain, parties that do not follow the protocol, and other tables."
        )


def unreachable_limits(undefended: Sequence[RecipeResult], wish: Wish) -> Iterator[str]:
    """Yield the limits of a user that no defense can meet on this table, with the reason.

    A limit of a leak cannot be met if a guess without any message exceeds it. The guess is the
    blind one, or the guess from other rows of the population if it is better. The limit of the AUC
    is out of reach if it exceeds the AUC of the model without a defense, because defenses cost
    accuracy.

    Parameters
    ----------
    undefended : sequence of RecipeResult
        Results without a defense.
    wish : Wish
        The limits of the user.
    """
    for metric, best in _guesses_beyond_limits(undefended, wish).items():
        guesser = "from rows of other persons" if by_population(best) else "by the same adversary"
        yield (
            f"No defense can meet your limit of {percent(wish.limits[metric])} for "
            f"{measure(metric).name}, because a guess {guesser}, without any message, already "
            f"reaches {percent(best.baseline)} ({amount(best, best.baseline)}). With this limit, "
            f"no recipe can be recommended. Repeat the search with {_OPTIONS[metric]} clearly "
            f"above {percent(best.baseline)}."
        )
    auc = max((finite(t.utility_change.mean_utility) for t in undefended), default=math.inf)
    if auc < wish.auc:
        yield (
            f"A defense can hardly meet your limit of {wish.auc:g} for the AUC, because the model "
            f"without a defense has {number(auc)}. Choose a smaller --min-auc."
        )


def _guesses_beyond_limits(
    undefended: Iterable[RecipeResult], wish: Wish
) -> dict[str, LeakageResult]:
    """Return the result with the largest baseline of each measure whose limit it exceeds."""
    results = [c for t in undefended for c in t.results if c.scores]
    best = {
        metric: max(cells, key=lambda c: c.baseline)
        for metric in wish.limits
        if (cells := [c for c in results if c.metric == metric])
    }
    return {metric: c for metric, c in best.items() if c.baseline > wish.limits[metric]}


def _describe_recipe(recipe: Tried) -> str:
    """Write a recipe with its AUC and its utility change."""
    utility_change = recipe.candidate.utility_change
    cost = f"{change(utility_change.change)} ({settled(utility_change)})"
    auc = mean_and_interval(recipe.utility)
    gap = ", not every attack ran on it" * bool(recipe.candidate.untested)
    return f"`{recipe.name}`, AUC {auc}, against the undefended run {cost}{gap}"


def _risks(trials: Iterable[RecipeResult]) -> list[str]:
    """List the leaks as Markdown, one line per adversary.

    If not every applicable attack ran, this is written, because a missing attack is no evidence
    that nothing leaks.
    """
    lines = []
    for t in trials:
        leaks = [can(r) for r in t.results if r.state == "leaking" and r.scores]
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
        lines.append(f"- {t.place}: {'; '.join([*leaks, *more])}")
    return ["\n".join(lines)]
