"""Compute which recipe meets a user's limits from results, and write the page of advice.

A recipe is a protocol with a defense. `tried` compares every recipe of a run with a `Wish`.
`Advice` contains the result, and writes it as terminal lines, as Markdown and as HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedtrees import __version__
from fedtrees.core.errors import listed, many
from fedtrees.core.guarantee import ApproximateDP, PureDP
from fedtrees.core.results import RAREST, UTILITY, measure
from fedtrees.core.specs import parse_one
from fedtrees.report.adversaries import adversary_named
from fedtrees.report.coverage import coverage, role_names
from fedtrees.report.findings import RunAnalysis, SettingFindings
from fedtrees.report.guarantees import DefenseGuarantees, in_words
from fedtrees.report.leakage import FEWEST_SEEDS, LeakageResult, upper
from fedtrees.report.local_baseline import LocalComparison, compare_with_training_alone
from fedtrees.report.recipe import Recipe, RecipeResult, recommend, recommended, settings
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate, by_seed, finite, t_estimate
from fedtrees.report.trials import trials_of
from fedtrees.report.web_page import render
from fedtrees.report.wording import (
    ProtocolRecipe,
    amount,
    by_population,
    can,
    capital,
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
LIMIT_OPTIONS = {
    "exact_rows": "--max-exact-rows",
    "members_1pct": "--max-membership",
    "members_auc": "--max-membership-auc",
}
# Score of a random guess by the measures with a limit. The other ones count rows or members.
_RANDOM = {"members_auc": 0.5}


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
    membership_auc : float
        Largest acceptable AUC of membership tests: the probability that a random member gets a
        higher score than a random person who is not a member. 0.5 is a random guess.
    above_guess : bool
        Whether `exact_rows` is added to the share that the same adversary guesses exactly without
        any message.
    """

    exact_rows: float = 0.01
    membership: float = 0.05
    auc: float = 0.75
    membership_auc: float = 0.55
    above_guess: bool = False

    @property
    def limits(self) -> dict[str, float]:
        """The largest acceptable score by key of the measure, without the share of a guess."""
        return {
            "exact_rows": self.exact_rows,
            "members_1pct": self.membership,
            "members_auc": self.membership_auc,
        }

    def limit_of(self, cell: LeakageResult) -> float:
        """Return the largest acceptable score of a result, by a measure that has a limit."""
        limit = self.limits[cell.metric]
        if self.above_guess and cell.metric == "exact_rows":
            return min(limit + finite(cell.baseline, 0.0), 1.0)
        return limit

    def __str__(self) -> str:
        rows, members = percent(self.exact_rows), percent(self.membership)
        more = ", beyond those that a guess reconstructs" if self.above_guess else ""
        return (
            f"at most {rows} of the other parties' rows reconstructed exactly{more}, at most "
            f"{members} of members recognised at 1% false alarms, an AUC of membership tests of at "
            f"most {self.membership_auc:g}, an AUC of the model of at least {self.auc:g}"
        )


def describe_limit(metric: str, limit: float) -> str:
    """Format a limit: an AUC as a number, a share of rows or members as a percentage."""
    return f"{limit:g}" if metric in _RANDOM else percent(limit)


@dataclass(frozen=True)
class Objection:
    """A reason why a recipe is not shown to meet the limits of a user.

    Attributes
    ----------
    kind : str
        Key of the measure with the limit, "auc" for the AUC of the model, "untested" for a missing
        attack, or "evidence" for a result that more seeds or another attack must settle.
    text : str
        The measured value with the number of seeds, and the limit.
    excludes : bool
        Whether the recipe is excluded. Otherwise, more seeds can still show that it meets the
        limits.
    factor : float
        Quotient by which the limit is exceeded, for the order of the reasons.
    """

    kind: str
    text: str
    excludes: bool = True
    factor: float = 1.0


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
    epsilon : float
        The claimed epsilon of the model, NaN without a guarantee.
    auc_error : float
        Standard error of the AUC of one seed at its limit, 0 if the number of test rows is not
        recorded.
    comparison : LocalComparison or None
        The comparison with parties that train without the others. None if it was not measured.
    role_labels : mapping of str to (str, str)
        Singular and plural name of each role of the protocol.
    """

    candidate: Recipe
    auc: Mapping[int, float]
    wish: Wish
    guarantee: str = ""
    epsilon: float = math.nan
    auc_error: float = 0.0
    comparison: LocalComparison | None = None
    role_labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)

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

        The reason is a mean that is clearly beyond a limit (`_is_clear`), or a missing attack.
        """
        return next((o.text for o in self.objections if o.excludes), "")

    @property
    def unmet(self) -> str:
        """First reason why the recipe is not recommended, "" if it is shown to meet the limits.

        In contrast to `broken`, this includes means that are not clearly beyond a limit, and the
        ends of the confidence intervals.
        """
        return next((o.text for o in self.objections), "")

    @cached_property
    def objections(self) -> tuple[Objection, ...]:
        """All reasons why the recipe is not shown to meet the limits, those that exclude it first.

        If a mean is beyond a limit, or if fewer than `FEWEST_SEEDS` seeds ran, the ends of the
        intervals are not compared.
        """
        beyond = sorted(self._leaks_beyond(), key=lambda o: -o.factor)
        beyond += self._auc_beyond()
        if self.candidate.untested:
            beyond.append(Objection("untested", self.candidate.reason))
        if not beyond and len(self.auc) < FEWEST_SEEDS:
            text = f"{many(len(self.auc), 'seed')} ran; {FEWEST_SEEDS} are needed for an interval"
            beyond.append(Objection("evidence", text, excludes=False))
        if not beyond:
            beyond += self._evidence_missing()
        return tuple(sorted(beyond, key=lambda o: not o.excludes))

    @property
    def read(self) -> float:
        """Largest quotient of a mean score and its limit. Values up to 1 are within the limits.

        A limit that a guess without any message exceeds is replaced by the score of this guess
        (`_factor`). Otherwise it would decide alone which recipe is the nearest one.
        """
        return max((self._factor(c, c.score) for _, c in self._limited()), default=0.0)

    @property
    def excess(self) -> float:
        """Distance from the limits, including that of the AUC (see `read`).

        Values up to 1 meet the limits on the means, as far as they can be met.
        """
        return max(self.read, self.wish.auc / self.utility.mean if self.auc else math.inf)

    def worst(self, metric: str) -> LeakageResult | None:
        """Return the result by a measure that is farthest from its limit, None without a result."""
        cells = [c for _, c in self._limited() if c.metric == metric]
        return max(cells, key=lambda c: self._factor(c, c.score), default=None)

    def _limited(self) -> Iterator[tuple[RecipeResult, LeakageResult]]:
        """Yield the trials and cells with a score by a measure that has a limit above 0."""
        limits = self.wish.limits
        yield from (
            (t, c)
            for t in self.candidate.trials
            for c in t.results
            if c.scores and limits.get(c.metric)
        )

    def _factor(self, cell: LeakageResult, score: float) -> float:
        """Return the quotient of a score and its limit, or of the score and a better guess.

        Scores of an AUC are measured from 0.5, that of a random guess.
        """
        floor = _RANDOM.get(cell.metric, 0.0)
        reachable = max(self.wish.limit_of(cell), finite(cell.baseline)) - floor
        return (score - floor) / reachable if reachable > 0 else math.inf

    def _is_clear(self, cell: LeakageResult) -> bool:
        """Return whether a mean score is clearly beyond its limit, so that the recipe is excluded.

        This is the case if at least `FEWEST_SEEDS` seeds have a score, or if the score exceeds the
        limit by more than one standard error (`_standard_error`).
        """
        if len(cell.scores) >= FEWEST_SEEDS:
            return True
        return cell.score - self.wish.limit_of(cell) > self._standard_error(cell)

    def _standard_error(self, cell: LeakageResult) -> float:
        """Return the standard error of a score at its limit, from the number of rows and seeds.

        For a share of rows or members it is that of a binomial distribution. For the AUC of
        membership tests it is that of `auc_standard_error`, with as many other persons as members.
        The error is 0 if the number of rows is not recorded.
        """
        limit = self.wish.limit_of(cell)
        if cell.metric in _RANDOM:
            trial = next((t for t, c in self._limited() if c is cell), None)
            counted = trial.result("members_1pct") if trial else None
            n = counted.rows if counted else math.nan
            error = auc_standard_error(limit, n, n)
        else:
            n = cell.rows
            error = math.sqrt(limit * (1 - limit) / n) if n > 0 else 0.0
        return error / math.sqrt(len(cell.scores))

    def _who(self, trial: RecipeResult) -> str:
        """Return the adversary of a trial in words."""
        return adversary_named(trial.threat, self.role_labels)[0] if trial.threat else trial.place

    def read_beyond(self) -> str:
        """Describe the mean that exceeds its limit by the largest factor, "" if none does."""
        return max(self._leaks_beyond(), key=lambda o: o.factor, default=Objection("", "")).text

    def _leaks_beyond(self) -> Iterator[Objection]:
        """Yield the mean scores that exceed their limits."""
        for trial, cell in self._limited():
            limit = self.wish.limit_of(cell)
            if cell.score <= limit:
                continue
            clear = self._is_clear(cell)
            text = (
                f"{self._who(trial)} can {can(cell)} on {many(len(cell.scores), 'seed')}; "
                f"your limit: {describe_limit(cell.metric, limit)}"
            )
            if not clear:
                error = describe_limit(cell.metric, round(self._standard_error(cell), 3))
                text += f". {_not_clear(error)}"
            yield Objection(cell.metric, text, clear, self._factor(cell, cell.score))

    def _auc_beyond(self) -> Iterator[Objection]:
        """Yield the objection that the mean AUC of the model is below its limit."""
        mean, seeds = self.utility.mean, len(self.auc)
        # The negation also rejects NaN, which is the AUC of a recipe that has not been trained.
        if mean >= self.wish.auc:
            return
        error = self.auc_error / math.sqrt(seeds) if seeds else 0.0
        clear = seeds >= FEWEST_SEEDS or not mean >= self.wish.auc - error
        text = (
            f"AUC {number(mean)} on {many(seeds, 'seed')}; your limit: at least {self.wish.auc:g}"
        )
        if not clear:
            text += f". {_not_clear(number(error))}"
        yield Objection("auc", text, clear)

    def _evidence_missing(self) -> Iterator[Objection]:
        """Yield what is missing to show that a recipe with means within the limits meets them.

        These are the ends of intervals beyond a limit, and measures for which a failed attack
        leaves no evidence. Otherwise an attack that scored worse than its baseline, or returned no
        claim, would meet every limit.
        """
        ends = []
        for trial, cell in self._limited():
            end, limit = highest(cell), self.wish.limit_of(cell)
            if end > limit:
                text = (
                    f"{self._who(trial)} can {can(cell)} on {many(len(cell.scores), 'seed')}, up "
                    f"to {describe_limit(cell.metric, round(end, 3))} by the interval; your limit: "
                    f"{describe_limit(cell.metric, limit)}"
                )
                ends.append(Objection("evidence", text, False, self._factor(cell, end)))
        yield from sorted(ends, key=lambda o: -o.factor)
        for trial in self.candidate.trials:
            for cell in (c for c in trial.results if self.wish.limits.get(c.metric)):
                if cell.below_baseline or (cell.no_claim and cell.state != "leaking"):
                    text = f"{self._who(trial)}: by {measure(cell.metric).name}, {word(cell)}"
                    yield Objection("evidence", text, False)
        if not self.utility.low >= self.wish.auc:
            text = (
                f"AUC {mean_and_interval(self.utility)} on {many(len(self.auc), 'seed')}; your "
                f"limit: at least {self.wish.auc:g}"
            )
            yield Objection("evidence", text, False)


def _not_clear(error: str) -> str:
    """Write why a mean beyond a limit does not exclude a recipe yet."""
    return (
        f"The difference is within the standard error of ±{error}, so that {FEWEST_SEEDS} seeds "
        "are needed"
    )


def auc_standard_error(auc: float, positives: float, negatives: float) -> float:
    """Return the standard error of an AUC that is computed from two samples.

    The formula is that of Hanley and McNeil 1982, for two exponential distributions of scores. The
    result is 0 if the size of a sample is not known.

    Parameters
    ----------
    auc : float
        The area under the ROC curve.
    positives, negatives : float
        Number of rows of each class.

    Examples
    --------
    >>> round(auc_standard_error(0.75, 54, 100), 3)
    0.043
    """
    if not (positives > 0 and negatives > 0):
        return 0.0
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (
        auc * (1 - auc) + (positives - 1) * (q1 - auc**2) + (negatives - 1) * (q2 - auc**2)
    ) / (positives * negatives)
    return math.sqrt(max(variance, 0.0))


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
    if rows.empty:
        return ()
    trains = rows[rows["stage"] == "train"]
    groups = {
        (str(protocol), str(spec)): group
        for (protocol, spec), group in trains.groupby(
            [trains["setting"].map(lambda s: s.protocol).astype(str), "defense_spec"]
        )
    }
    guarantees = _guarantees(rows)
    reference = _reference(rows)
    labels = role_names(trains.iloc[0]["setting"]) if len(trains) else {}
    tried_candidates = []
    for candidate in recommend(trials_of(rows, bare=True), recommended()).recipes:
        protocol, defense = recipe(candidate.name)
        guarantee, epsilon = guarantees.get((protocol, defense), ("", math.nan))
        group = groups.get((protocol, defense), trains.iloc[:0])
        name = ProtocolRecipe(protocol, defense)
        comparison = compare_with_training_alone(reference, name) if reference else None
        tried_candidates.append(
            Tried(
                candidate, by_seed(group, _UTILITY), wish, guarantee, epsilon,
                _error_of_auc(group, wish.auc), comparison, labels,
            )
        )  # fmt: skip
    return tuple(tried_candidates)


def _reference(rows: pd.DataFrame) -> SettingFindings | None:
    """Return the most accurate setting without a defense and without a guarantee, if there is one.

    This is the setting to which the prices of recipes refer (`fedtrees.report.trials.trials_of`).
    """
    run = RunAnalysis(Path(), rows)
    plain = [
        f
        for f in run.by_setting.values()
        if not f.has_guarantee and UNDEFENDED in f.fitting and math.isfinite(f.undefended)
    ]
    return max(plain, key=lambda f: f.utility.sign * f.undefended, default=None)


def _error_of_auc(trains: pd.DataFrame, limit: float) -> float:
    """Return the standard error of the AUC of one seed at a limit, 0 if it is not known.

    The rows of a training contain the number of test rows and that of the rarest class.
    """
    ok = trains[trains["status"] == "ok"]
    total = float(ok.loc[ok["metric"] == _UTILITY, "n"].min())
    rarest = float(ok.loc[ok["metric"] == RAREST.key, "value"].min())
    return auc_standard_error(limit, rarest, total - rarest)


def _guarantees(rows: pd.DataFrame) -> dict[tuple[str, str], tuple[str, float]]:
    """Return the claimed epsilon by protocol and defense, in words and as a number.

    The entry is ("", NaN) without a claim, or if the run did not keep it.
    """
    protocols = rows["setting"].map(lambda s: str(s.protocol) if s else "")
    claims = {}
    for (protocol, defense), group in rows.groupby([protocols, "defense_spec"]):
        guarantees = DefenseGuarantees.of_rows(group)
        kept = () if guarantees.failure else guarantees.claimed
        epsilons = [
            g.epsilon
            for terms in kept
            for g in terms
            if isinstance(g, PureDP | ApproximateDP) and getattr(g, "unit", "") != "cuts"
        ]
        epsilon = max(epsilons, default=math.nan)
        claims[str(protocol), str(defense)] = (in_words(kept, brief=True), epsilon)
    return claims


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
        Table, parties and number of seeds, in words.
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
    simulated : str
        How the parties were simulated, "" if they are those of the table.
    stopped : str
        Why the search ended before its time, "" if it did not.
    command : str
        Command that continues the search, "" if there is none.
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
    simulated: str = ""
    stopped: str = ""
    command: str = ""

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
        trains = rows[rows["stage"] == "train"] if len(rows) else rows
        if trains.empty:
            of = "no result yet"
            return cls(wish, tried, (), of, __version__, left_out=left_out, stopped=stopped)
        first = trains.iloc[0]
        seeds = many(int(rows["seed"].dropna().nunique()), "seed")
        parties, simulated = describe_partition(first["partition"])
        summary = f"{first['dataset']}, {parties}, {seeds}"
        plain = trials_of(rows).get(UNDEFENDED, [])
        attacks = rows[rows["stage"] == "attack"]
        cut = coverage(rows[rows["stage"] == "adversary"], attacks).early
        return cls(
            wish, tried, tuple(plain), summary, first["version"], cut, left_out,
            _neutral(role_names(first["setting"])), nearest_name, simulated=simulated,
            stopped=stopped,
        )  # fmt: skip

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
        every = [t for t in self.tried if t.name == self.nearest_name]
        every = every or [t for t in self.tried if not t.candidate.untested]
        if self.choice:
            return None
        return min(every, key=lambda t: (bool(t.broken), t.excess), default=None)

    @property
    def open(self) -> tuple[Tried, ...]:
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
            why = "the time ran out" if self.left_out else "an attack is missing on every candidate"
            return f"No recipe was tested completely, because {why}."
        recipes = many(len(tested), "tested recipe")
        if not self.open:
            subject = {1: "The only tested recipe is", 2: "Both tested recipes are"}
            return f"{subject.get(len(tested), f'All {recipes} are')} excluded by your limits."
        undecided = "one is" if len(self.open) == 1 else f"{len(self.open)} are"
        return (
            f"None of {recipes} is shown to meet your limits: {len(tested) - len(self.open)} are "
            f"excluded, and {undecided} not settled yet."
        )

    @property
    def verdict(self) -> tuple[str, ...]:
        """The recommendation as lines of text.

        The lines state the result with the recommended recipe or the nearest one, its comparison
        with parties that train without the others, and the limits that were not met. They are
        followed by the limits, the leaks without a defense, the remaining leaks and settings of the
        recipe, the second best recipe, and the reasons against the remaining ones.
        """
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
        for heading, items in self._reasons:
            lines += [heading, *(f"- `{name}`: {text}" for name, text in items)]
        return tuple(_neutral_text(line) for line in lines)

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
        if self.left_out:
            yield f"{capital(self.left_out)}."
        if self.stopped:
            yield self.stopped

    def _describe_undefended(self) -> str:
        """Describe the leak without a defense that exceeds its limit by the largest factor."""
        recipe = Recipe(UNDEFENDED, self.undefended)
        plain = Tried(recipe, {}, self.wish, role_labels=self.role_labels).read_beyond()
        if plain:
            return plain
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
        groups: dict[str, list[tuple[str, str]]] = {}
        for t in self.tried:
            if t.objections:
                first = t.objections[0]
                groups.setdefault(self._heading(first), []).append((t.name, f"{first.text}."))
        return sorted(groups.items(), key=lambda group: not group[0].startswith("Not settled"))

    def _heading(self, objection: Objection) -> str:
        """Return the heading of all recipes to which an objection of the same kind applies."""
        if not objection.excludes:
            return "Not settled, because the evidence is not sufficient:"
        if objection.kind == "untested":
            return "Not tested completely:"
        if objection.kind == _UTILITY:
            return f"Excluded by your limit for the AUC of the model (at least {self.wish.auc:g}):"
        limit = describe_limit(objection.kind, self.wish.limits[objection.kind])
        more = " beyond a guess" * (self.wish.above_guess and objection.kind == "exact_rows")
        name = measure(objection.kind).name
        return f"Excluded by your limit for {name} (at most {limit}{more}):"

    def _limits_that_no_recipe_met(self) -> Iterator[str]:
        """Yield the limits that no tested recipe meets on the mean, with the best score of each."""
        tested = [t for t in self.tried if not t.candidate.untested]
        for metric in self.wish.limits.keys() - self.limits_below_guesses.keys():
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
        elif self.left_out or self.open:
            steps = ["Do not use any of these recipes yet. Continue the search with more time:"]
        else:
            steps = [
                "Do not join with one of these recipes. Change a limit that no recipe met if you "
                "can accept this, or give the search more time:"
            ]
        return [*steps, f"`{self.command}`"] if self.command else steps

    @property
    def sections(self) -> dict[str, list[str]]:
        """Sections of a data protection impact assessment by heading.

        An entry is a paragraph, or a list with one item per line.
        """
        taken = self.choice or self.nearest
        headings = {heading for heading, _ in self._reasons}
        measures = [
            line for line in self.verdict if line not in headings and not line.startswith("- ")
        ]
        groups = [
            [heading, "\n".join(f"- `{name}`: {text}" for name, text in items)]
            for heading, items in self._reasons
        ]
        parts = {
            "What to do now": self.next_steps,
            "Purpose": [f"To train one model over several parties, with {self.wish}."],
            "Data": [
                *filter(None, [self.data, self.simulated]),
                f"Experiment: {self.of}. Computed by fedtrees {self.version}.",
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
            title=self.of,
            result=self.result,
            role="" if taken is None else "Recommended recipe" if self.choice else "Nearest recipe",
            name=taken.name if taken else "",
            description=_describe_result(taken) if taken else "",
            comparison=comparison.sentence if comparison else "",
            sections=self.sections,
            version=self.version,
        )

    def _who(self, trial: RecipeResult) -> str:
        """Return the adversary of a trial in words, for example ``the server``."""
        if not trial.threat:
            return trial.place
        return adversary_named(trial.threat, self.role_labels)[0]

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
                yield f"`{t.name}`: {some(t.candidate.untested)}."
        if self.left_out:
            yield f"{capital(self.left_out)}."
        if self.cut:
            yield f"The searches of {listed(self.cut)} stopped at their limits and may find more."
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
    return f"{'One' if met == 1 else met} of {tested} tested recipes meet{'s' * (met == 1)}"


def _describe_guarantee(taken: Tried) -> str:
    """Describe the epsilon that a recipe claims, and its meaning."""
    if not taken.guarantee:
        return "Guarantee: none. No epsilon limits the attacks that fedtrees does not contain."
    text = f"Guarantee: this recipe claims {taken.guarantee}."
    if math.isfinite(taken.epsilon):
        text += (
            f" An epsilon of {taken.epsilon:.3g} means that the presence of one person's row "
            "changes the probability of any result by at most a factor of "
            f"{math.exp(taken.epsilon):.3g}, except with the small probability delta."
        )
    return (
        f"{text} It also limits attacks that fedtrees does not contain. A smaller epsilon is a "
        "stronger limit."
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
    for metric, best in limits_below_guesses(undefended, wish).items():
        guesser = "from rows of other persons" if by_population(best) else "by the same adversary"
        guess = describe_limit(metric, round(best.baseline, 3))
        amount_text = amount(best, best.baseline)
        total = f" ({amount_text})" * (amount_text not in (guess, f"{best.baseline:.3f}"))
        yield (
            f"No defense can meet your limit of {describe_limit(metric, wish.limit_of(best))} for "
            f"{measure(metric).name}, because a guess {guesser}, without any message, already "
            f"reaches {guess}{total}. With this limit, no recipe can be recommended. The smallest "
            "limit that a defense can meet is about "
            f"{possible_limit(best)} ({LIMIT_OPTIONS[metric]})."
        )
    auc = max((finite(t.utility_change.mean_utility) for t in undefended), default=math.inf)
    if auc < wish.auc:
        yield (
            f"A defense can hardly meet your limit of {wish.auc:g} for the AUC, because the model "
            f"without a defense has {number(auc)}. Choose a smaller --min-auc."
        )


def limits_below_guesses(
    undefended: Iterable[RecipeResult], wish: Wish
) -> dict[str, LeakageResult]:
    """Return the result with the largest baseline of each measure whose limit it exceeds."""
    results = [c for t in undefended for c in t.results if c.scores]
    best = {
        metric: max(cells, key=lambda c: c.baseline)
        for metric in wish.limits
        if (cells := [c for c in results if c.metric == metric])
    }
    return {metric: c for metric, c in best.items() if c.baseline > wish.limit_of(c)}


def possible_limit(cell: LeakageResult) -> str:
    """Return the smallest round limit that a defense can meet although a guess has a high score.

    It is the baseline and the margin of the measure, rounded up to a percentage, or to hundredths
    for an AUC. The margin is the largest advantage that counts as no better than the guess.
    """
    score = cell.baseline + cell.limit * (1 - cell.baseline)
    hundredths = min(math.ceil(100 * score - 1e-9), 100)
    return f"{hundredths / 100:g}" if cell.metric in _RANDOM else f"{hundredths}%"


def _describe_recipe(tried: Tried) -> str:
    """Write a recipe with its AUC and its utility change."""
    return f"`{tried.name}`, {_describe_result(tried)}"


def _describe_result(tried: Tried) -> str:
    """Write the AUC of a recipe and its utility change, with the number of seeds."""
    utility_change = tried.candidate.utility_change
    cost = f"{change(utility_change.change)} ({settled(utility_change)})"
    auc = mean_and_interval(tried.utility)
    gap = ", not every attack ran on it" * bool(tried.candidate.untested)
    seeds = many(len(tried.auc), "seed")
    return f"AUC {auc} on {seeds}, against the undefended run {cost}{gap}"
