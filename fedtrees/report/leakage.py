"""Decide what the results show about one adversary, one defense and one measure.

Each combination is a `LeakageResult` with one of six states:

- *leaking*: the strongest attack is clearly above its baseline.
- *safe*: the attacks reach their baseline and are shown not to exceed it by the margin.
- *not-applicable*: no attack can make a claim of this kind under this defense.
- *undefined*: the baseline already has the best score, so that no advantage exists.
- *unknown*: an attack that could give the result a score failed or did not run.
- *unsettled*: none of these is shown.

A result is *settled* if it is safe, not-applicable or undefined: it needs no further evidence.

A result is also unsettled if the strongest attack scored worse than its baseline. Such a score
shows that the attack failed, and a failed attack shows nothing about the defense. The same is true
if an applicable attack returned no claim (`fedtrees.core.claims.Guess.none`), unless another attack
shows that the result is leaking.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from fedtrees.core.reasons import NO_CLAIM, NOT_CERTAIN
from fedtrees.core.results import measure
from fedtrees.report.coverage import Coverage
from fedtrees.report.statistics import (
    ADVANTAGE_BOUNDS,
    Estimate,
    attack_metrics,
    finite,
    mean_of,
    t_estimate,
    worst_case,
)

State = Literal["leaking", "safe", "not-applicable", "undefined", "unknown", "unsettled"]

#: Words by which files of the first release, and JSON output, call some of the states.
STORED_STATES: Mapping[State, str] = {"leaking": "open", "safe": "shut", "not-applicable": "gone"}
#: States of settled results. A recipe is shown to resist every attack if all of its results are
#: settled.
SETTLED: frozenset[State] = frozenset({"safe", "not-applicable", "undefined"})
#: Largest advantage of an attack under a defense that still counts as no better than a blind
# guess. Between federations of one table, advantages differ by 0.01 to 0.03, so that three seeds
# can establish 0.05 but not much less.
MARGIN = 0.05
#: The margin for measures that count persons. One person beyond a blind guess is already a leak.
PERSONS_MARGIN = 0.02
FEWEST_SEEDS = 3  # an interval over fewer seeds is not used as evidence of safety
#: Classes of measures (`Measure.klass`) that are leaks, the gravest first.
CLASSES = ("person", "guess", "group")
_ALPHA = 0.05


def margin_of(metric: str, margin: float = MARGIN, counted: bool = True) -> float:
    """Return the largest advantage by a measure that still counts as no better than a blind guess.

    Parameters
    ----------
    metric : str
        Key of the measure.
    margin : float
        Margin of the run.
    counted : bool
        Whether the score is a share of a known number of rows.
    """
    limit = min(PERSONS_MARGIN, margin) if _counts_persons(metric, counted) else margin
    # A perfect attack has an advantage of 1. It must exceed the limit at every margin below 1.
    return min(limit * measure(metric).margin, (1 + margin) / 2)


def _counts_persons(metric: str, counted: bool) -> bool:
    """Return whether a measure is a share of a known number of persons."""
    return measure(metric).klass == "person" and counted


@dataclass(frozen=True)
class LeakageResult:
    """Results of one adversary against one defense by one measure: the strongest attack per seed.

    Attributes
    ----------
    metric : str
        Key of the measure.
    state : str
        Conclusion from the results, see the description of the module.
    scores, blinds : tuple of float
        By seed: the score of the attack with the largest advantage, and its blind baseline.
    populations : tuple of float
        By seed: the baseline of an adversary that knows other rows of the population. NaN if the
        adversary has local rows, because the blind baseline then uses them already.
    advantages : tuple of float
        By seed: the advantage over the better of the two baselines.
    errors : tuple of float
        Standard errors of the advantages, 0 if all rows were scored.
    seeds : tuple of int
        The seeds that have a score.
    attacks : tuple of str
        The attacks that were strongest on a seed, the most frequent first.
    rows : float
        Number of rows of which the score is a share. NaN if the score is not a share of rows, or if
        the number is not recorded.
    margin : float
        Margin of the run (`MARGIN`).
    no_claim : tuple of (str, str)
        Attacks that could have made such a claim and returned none on some seed, with the reason.
    strongest : tuple of str
        By seed: the attack with the largest advantage.
    score_errors : tuple of float
        Standard errors of the scores, 0 if all rows were scored.
    """

    metric: str
    state: State = "not-applicable"
    scores: tuple[float, ...] = ()
    blinds: tuple[float, ...] = ()
    populations: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    attacks: tuple[str, ...] = ()
    rows: float = math.nan
    margin: float = MARGIN
    no_claim: tuple[tuple[str, str], ...] = ()
    strongest: tuple[str, ...] = ()
    score_errors: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """Mean score over seeds."""
        return mean_of(self.scores)

    @property
    def baseline(self) -> float:
        """Mean over seeds of the better baseline.

        This is the blind baseline, or the population baseline if that exists and is better.
        """
        pairs = zip(self.blinds, self.populations, strict=True)
        better = max if measure(self.metric).sign > 0 else min
        return mean_of([b if math.isnan(p) else better(b, p) for b, p in pairs])

    @property
    def advantage(self) -> Estimate:
        """Mean with its 95% t interval over seeds."""
        return t_estimate(self.advantages, self.errors, ADVANTAGE_BOUNDS)

    @property
    def counts_persons(self) -> bool:
        """Whether the score is a share of a known number of persons."""
        return _counts_persons(self.metric, math.isfinite(self.rows))

    @property
    def limit(self) -> float:
        """Margin that applies to this measure, as an advantage."""
        return margin_of(self.metric, self.margin, counted=math.isfinite(self.rows))

    @property
    def below_baseline(self) -> bool:
        """Whether the strongest attack scored worse than its baseline by more than the margin.

        An adversary can always submit the guess of the baseline, so that a worse score is a failure
        of the attack. The result is then not settled, however narrow its interval is.
        """
        return bool(self.advantages) and self.advantage.mean < -self.limit

    @property
    def attack_failed(self) -> bool:
        """Whether the attacks ran and show nothing about the defense.

        This is the case if the strongest attack scored worse than its baseline, or if an attack
        returned no claim and no other attack has a score.
        """
        return self.below_baseline or bool(self.no_claim and not self.advantages)

    @property
    def weight(self) -> float:
        """Advantage by which recipes are compared, from 0 to 1.

        It is 1 if nothing is known, because attacks failed (`attack_failed`) or did not finish.
        """
        if self.state in SETTLED:
            return 0.0
        if self.state == "unknown" or self.attack_failed or not self.advantages:
            return 1.0
        return max(self.advantage.mean, 0.0)

    @property
    def has_population(self) -> bool:
        """Whether the population baseline exists on every seed."""
        return len(self.populations) > 0 and all(math.isfinite(p) for p in self.populations)

    @property
    def heavy_tailed(self) -> bool:
        """Whether few seeds determine the mean.

        This is the case if there are three or more seeds and their median is below half of the
        mean.
        """
        scores = self.scores
        if len(scores) < FEWEST_SEEDS or measure(self.metric).sign < 0:
            return False
        return statistics.median(scores) < self.score / 2

    @property
    def by_seed(self) -> dict[int, float]:
        """The scores by seed."""
        return dict(zip(self.seeds, self.scores, strict=True))


def leakage_by_defense(
    attacks: pd.DataFrame, coverage: Mapping[str, Coverage], metric: str, margin: float = MARGIN
) -> dict[str, LeakageResult]:
    """Compute the results of one adversary by one measure, for every attacked defense.

    Parameters
    ----------
    attacks : DataFrame
        Attack rows of this adversary in one setting (`fedtrees.report.results.load_rows`).
    coverage : mapping of str to Coverage
        By defense: which attacks apply, and how they ended.
    metric : str
        Key of the measure.
    margin : float
        Largest advantage that counts as no better than a blind guess.
    """
    worst = dict(iter(worst_case(attacks, metric).groupby("defense_spec")))
    # An attack that never scores this metric has no influence on the result, even if it fails.
    scored = (attacks["metric"] == metric) & (attacks["status"] == "ok")
    able = set(attacks.loc[scored, "attack"])  # attacks that scored this metric somewhere
    results = {}
    for spec, rows in attacks.groupby("defense_spec", sort=False):
        covered = coverage.get(spec, Coverage())
        silent = _no_claims(metric, rows, able, attacks, covered)
        if spec in worst:
            result = replace(_build_result(metric, worst[spec]), margin=margin, no_claim=silent)
            state = state_of(result, covered.complete)
        else:
            result = LeakageResult(metric, margin=margin, no_claim=silent)
            state = _state_without_scores(result, rows, able, covered)
        results[str(spec)] = replace(result, state=state)
    return results


def classified_metrics(attacks: pd.DataFrame) -> tuple[str, ...]:
    """Return the metrics that describe a leak in words, those about persons first.

    Metrics without a class or without a phrase are neither about persons nor part of sentences.
    """
    classified = [
        m for m in _defined_metrics(attacks) if measure(m).klass in CLASSES and measure(m).phrase
    ]
    return tuple(sorted(classified, key=gravity))


def _no_claims(
    metric: str, rows: pd.DataFrame, able: set[str], attacks: pd.DataFrame, coverage: Coverage
) -> tuple[tuple[str, str], ...]:
    """Return the attacks that could have scored a metric and returned no claim, with the reason.

    The rows of such an attack name the metrics of the claims that it declares. An attack that
    declares none counts in two cases: it scored the metric under another defense, or it scored
    nothing at all, so that its intended claim is not known. Two kinds of attacks do not count:
    those that exist for comparison, because another attack uses everything that they use, and those
    that return only certain claims, if another attack scored the metric on the same seeds.

    Parameters
    ----------
    metric : str
        Key of the measure.
    rows : DataFrame
        Attack rows of one defense.
    able : set of str
        Attacks that scored the metric under some defense.
    attacks : DataFrame
        Attack rows of all defenses.
    coverage : Coverage
        Coverage of the defense.
    """
    silent = rows[(rows["status"] == NO_CLAIM) & rows["metric"].isin([metric, ""])]
    if silent.empty:
        return ()
    scored = set(attacks.loc[(attacks["status"] == "ok") & attacks["blind"].notna(), "attack"])
    guessed = rows[(rows["status"] == "ok") & (rows["metric"] == metric) & rows["value"].notna()]
    if coverage.applicable is not None:  # without attacks that exist for comparison
        guessed = guessed[guessed["attack"].isin(coverage.applicable)]
    settled_seeds = {*guessed["seed"]}
    pairs: dict[tuple[str, str], None] = {}
    columns = (silent[c] for c in ("attack", "metric", "why", "reason_code", "seed"))
    for name, key, why, code, seed in zip(*columns, strict=True):
        counts = coverage.applicable is None or name in coverage.applicable
        if code in NOT_CERTAIN and seed in settled_seeds:
            continue
        if counts and (key == metric or name in able or name not in scored):
            pairs[name, str(why)] = None
    return tuple(pairs)


def _defined_metrics(attacks: pd.DataFrame) -> list[str]:
    """Return the metrics that have results.

    These are the scored ones, including those whose advantage is undefined everywhere, and those of
    claims that an attack did not make.
    """
    ok = attacks[(attacks["status"] == "ok") & attacks["value"].notna() & attacks["blind"].notna()]
    silent = {*attacks.loc[attacks["status"] == NO_CLAIM, "metric"]} - {""}
    return [*dict.fromkeys([*attack_metrics(attacks), *sorted({*ok["metric"]} | silent)])]


def _build_result(metric: str, worst: pd.DataFrame) -> LeakageResult:
    """Build a result, still without its state, from the worst-case row of each seed."""
    worst = worst.sort_values("seed")
    blinds, populations = worst["blind"].tolist(), worst["population"].tolist()
    return LeakageResult(
        metric,
        scores=tuple(worst["value"]),
        blinds=tuple(blinds),
        populations=tuple(populations),
        advantages=tuple(worst["advantage"]),
        errors=tuple(worst["advantage_error"]),
        seeds=tuple(int(s) for s in worst["seed"]),
        strongest=tuple(worst["attack_spec"]),
        attacks=tuple(name for name, _ in Counter(worst["attack_spec"]).most_common()),
        score_errors=tuple(worst["value_error"]),
        rows=float(worst["n"].mean()) if measure(metric).counted_by else math.nan,
    )


def state_of(result: LeakageResult, complete: bool) -> State:
    """Return the state of a result that has scores.

    Parameters
    ----------
    result : LeakageResult
        A result with at least one advantage. Its attribute `state` is ignored.
    complete : bool
        Whether every applicable attack ran to its end on every seed.
    """
    if is_leaking(result):
        return "leaking"
    return "safe" if complete and not result.no_claim and is_safe(result) else "unsettled"


def _state_without_scores(
    result: LeakageResult, attacks: pd.DataFrame, able: set[str], coverage: Coverage
) -> State:
    """Return the state of a result in which no attack has a defined advantage.

    `attacks` are the attack rows of this defense. `able` contains the attacks that scored the
    metric under some defense.
    """
    relevant = attacks[attacks["attack"].isin(able)]
    # The missing score could have shown that the result is leaking.
    if relevant["status"].isin(["failed", "timeout"]).any() or able & {*coverage.left_out}:
        return "unknown"
    if result.no_claim:
        return "unsettled"
    scored = relevant[(relevant["metric"] == result.metric) & (relevant["status"] == "ok")]
    return "undefined" if len(scored) else "not-applicable"


def is_leaking(result: LeakageResult) -> bool:
    """Return whether a result is clearly above its baseline.

    Two conditions are necessary. The advantage is above zero with its complete interval or on every
    seed. Its mean exceeds the margin. If the measure counts persons, the second condition is an
    excess of one person instead (`_fewest_persons`).
    """
    if not result.advantages:
        return False
    e = result.advantage
    # A positive advantage on every seed is also accepted, because one seed has no interval, and the
    # intervals of two or three seeds are wide.
    clear = e.low > 0 if math.isfinite(e.low) else False
    clear = clear or all(a > 0 for a in result.advantages)
    if result.counts_persons:
        return clear and (result.score - result.baseline) * result.rows >= _fewest_persons(result)
    return clear and e.mean > result.limit


def is_safe(result: LeakageResult) -> bool:
    """Return whether the scores show that an advantage lies within the margin.

    At least `FEWEST_SEEDS` seeds are necessary, and two conditions. The upper end of the interval
    lies below the margin, and the mean is at least minus the margin. Without the second one, an
    attack that failed completely would give the best evidence of safety.
    """
    if len(result.seeds) < FEWEST_SEEDS or result.below_baseline:
        return False
    return upper(result) < result.limit


def _fewest_persons(result: LeakageResult) -> float:
    """Return by how many persons a count must exceed its baseline to be a leak.

    The number is 1. With fewer than `FEWEST_SEEDS` seeds it is at least two standard deviations of
    the count of the baseline (Poisson), because a single federation gives no interval.
    """
    few = len(result.advantages) < FEWEST_SEEDS
    return max(1.0, 2 * math.sqrt(max(result.baseline, 0.0) * result.rows)) if few else 1.0


def upper(result: LeakageResult) -> float:
    """Return the upper end of the 95% interval of an advantage.

    If nothing was counted on any seed, the t interval has length zero. The exact binomial bound for
    zero successes (Clopper and Pearson 1934) is then a lower limit of the result.
    """
    e = result.advantage
    high = e.high if math.isfinite(e.high) else math.inf
    if math.isfinite(result.rows) and result.rows > 0 and not any(result.scores):
        # With n trials and no success, the bound p solves (1 - p)^n = alpha / 2.
        high = max(high, 1 - (_ALPHA / 2) ** (1 / (result.rows * len(result.scores))))
    return high


def gravity(metric: str) -> tuple[int, int]:
    """Return a sort key that puts the gravest leaks of persons first."""
    m = measure(metric)
    return CLASSES.index(m.klass) if m.klass in CLASSES else len(CLASSES), m.severity


def gravity_key(result: LeakageResult) -> tuple[float, float, float]:
    """Return a sort key of results that puts the gravest leak, and the largest advantage, first."""
    return *gravity(result.metric), -finite(result.advantage.mean)


def plain(results: Sequence[LeakageResult]) -> list[LeakageResult]:
    """Return the results without those whose leak another result expresses more clearly."""
    here = {c.metric for c in results}
    return [c for c in results if not here & {*measure(c.metric).covered_by}]
