"""Compare the recipes of a run with the limits of a user.

A recipe is a protocol with a defense. `tried` compares every recipe of a run with a `Wish` and
lists the objections against it. A recipe is excluded only if a result is clearly beyond a limit,
because one seed near a limit settles nothing. `limits_below_guesses` returns the limits that no
defense can meet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedtrees.core.errors import many
from fedtrees.core.guarantee import ApproximateDP, PureDP, suitable_epsilon
from fedtrees.core.results import RAREST, UTILITY, measure
from fedtrees.report.adversaries import adversary_named
from fedtrees.report.coverage import role_names
from fedtrees.report.findings import RunAnalysis, SettingFindings
from fedtrees.report.guarantees import DefenseGuarantees, in_words
from fedtrees.report.leakage import FEWEST_SEEDS, LeakageResult, upper
from fedtrees.report.local_baseline import LocalComparison, compare_with_training_alone
from fedtrees.report.recipe import MOST_NAMED, Recipe, RecipeResult, recommend, recommended
from fedtrees.report.results import UNDEFENDED
from fedtrees.report.statistics import Estimate, by_seed, finite, t_estimate
from fedtrees.report.trials import trials_of
from fedtrees.report.wording import (
    ProtocolRecipe,
    amount,
    by_population,
    can,
    mean_and_interval,
    number,
    percent,
    split_recipe,
    word,
)

_UTILITY = UTILITY[0].key  # area under the ROC curve
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
        The claimed epsilon in words and its meaning. "" if none is claimed or if the run did not
        keep it.
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
            reasons = untested_in_words(self)
            more = "; ..." * (len(reasons) > MOST_NAMED)
            text = f"untested: {'; '.join(reasons[:MOST_NAMED])}{more}"
            beyond.append(Objection("untested", text))
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
        """Return the standard error of a score at its limit (`_error_at_limit`)."""
        trial = next((t for t in self.candidate.trials if cell in t.results), None)
        return _error_at_limit(cell, self.wish, trial)

    def _who(self, trial: RecipeResult) -> str:
        """Return the adversary of a trial in words."""
        return adversary_named(trial.threat, self.role_labels)[0] if trial.threat else trial.place

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


def _error_at_limit(cell: LeakageResult, wish: Wish, trial: RecipeResult | None) -> float:
    """Return the standard error of a score at its limit, from the number of rows and seeds.

    For a share of rows or members it is that of a binomial distribution. For the AUC of membership
    tests it is that of `auc_standard_error`, with as many other persons as members. The error is 0
    if the number of rows is not recorded.
    """
    limit = wish.limit_of(cell)
    if cell.metric in _RANDOM:
        counted = trial.result("members_1pct") if trial else None
        n = counted.rows if counted else math.nan
        error = auc_standard_error(limit, n, n)
    else:
        error = math.sqrt(limit * (1 - limit) / cell.rows) if cell.rows > 0 else 0.0
    return error / math.sqrt(len(cell.scores))


def untested_in_words(recipe: Tried) -> list[str]:
    """Return the adversaries against which a recipe was not tested completely, with reasons."""
    texts = list(recipe.candidate.untested)
    for trial in (t for t in recipe.candidate.trials if t.threat):
        who, _ = adversary_named(trial.threat, recipe.role_labels)
        texts = [text.replace(f"{trial.place}: ", f"{who}: ") for text in texts]
    return texts


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
        guarantee = guarantees.get((protocol, defense), "")
        group = groups.get((protocol, defense), trains.iloc[:0])
        name = ProtocolRecipe(protocol, defense)
        comparison = compare_with_training_alone(reference, name) if reference else None
        tried_candidates.append(
            Tried(
                candidate, by_seed(group, _UTILITY), wish, guarantee,
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


def _guarantees(rows: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the claimed epsilon and its meaning in words, by protocol and defense.

    The text is "" without a claim, or if the run did not keep it.
    """
    protocols = rows["setting"].map(lambda s: str(s.protocol) if s else "")
    texts = {}
    for (protocol, defense), group in rows.groupby([protocols, "defense_spec"]):
        guarantees = DefenseGuarantees.of_rows(group)
        claims = () if guarantees.failure else guarantees.claimed
        text = in_words(claims, brief=True)
        epsilons = [
            suitable_epsilon(g)
            for terms in claims
            for g in terms
            if isinstance(g, PureDP | ApproximateDP) and g.unit != "cuts"
        ]
        if text and epsilons:
            epsilon, relation = max(epsilons)
            text += (
                f". An epsilon of {epsilon:.3g} means that {relation} changes the probability of "
                f"any result by at most a factor of {math.exp(epsilon):.3g}, except with the "
                "probability delta, if one is stated"
            )
        texts[str(protocol), str(defense)] = text
    return texts


def recipe(name: str) -> tuple[str, str]:
    """Split the name of a recipe (see `fedtrees.report.trials.trials_of`) in two.

    The result contains the protocol and the defense.
    """
    protocol, defense = split_recipe(name)
    return (protocol, defense) if protocol else (defense, UNDEFENDED)


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
    """Return the result with the largest baseline of each measure whose limit it clearly exceeds.

    On fewer than `FEWEST_SEEDS` seeds, the baseline must exceed the limit by more than one standard
    error, because the baselines of further seeds can be smaller.
    """
    exceeding: dict[str, LeakageResult] = {}
    for trial in undefended:
        for cell in trial.results:
            if cell.metric not in wish.limits or not cell.scores:
                continue
            few = len(cell.scores) < FEWEST_SEEDS
            error = _error_at_limit(cell, wish, trial) if few else 0.0
            if cell.baseline > wish.limit_of(cell) + error:
                best = exceeding.get(cell.metric, cell)
                exceeding[cell.metric] = max(best, cell, key=lambda c: c.baseline)
    return exceeding


def possible_limit(cell: LeakageResult) -> str:
    """Return the smallest round limit that a defense can meet although a guess has a high score.

    It is the baseline and the margin of the measure, rounded up to a percentage, or to hundredths
    for an AUC. The margin is the largest advantage that counts as no better than the guess.
    """
    score = cell.baseline + cell.limit * (1 - cell.baseline)
    hundredths = min(math.ceil(100 * score - 1e-9), 100)
    return f"{hundredths / 100:g}" if cell.metric in _RANDOM else f"{hundredths}%"
