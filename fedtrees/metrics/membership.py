"""Metric `membership`: membership inference among candidate rows.

The candidates are training rows of the victims (members) and rows of the same distribution that
were not used (non-members). An attack assigns a score to every candidate. This module computes the
true positive rate at a low false positive rate (Carlini et al. 2022), the AUC, and baselines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.claims import Claim, Membership
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Candidates, Case, Metric, Score

#: False positive rates at which attacks are compared (Carlini et al. 2022, Sec. III).
FEW, FEWER = 0.01, 0.001
# Number of bootstrap samples for the standard error.
_RESAMPLED = 100


@dataclass(frozen=True)
class AtFew:
    """True positive rate at a given false positive rate.

    Attributes
    ----------
    tpr : float
        Share of the members whose score is above the threshold.
    allowed, n_nonmembers : int
        Number of non-members that may be above the threshold, and number of all non-members.
    null : float
        Expected `tpr` if scores are independent of membership. It differs from the false positive
        rate, because the threshold is the score of a random non-member.
    chance : float
        Probability of this `tpr` or a larger one if scores are independent of membership (p-value).
    """

    tpr: float
    allowed: int
    n_nonmembers: int
    null: float
    chance: float


def at_few(score: NDArray[np.float64], member: NDArray[np.bool_], fpr: float) -> AtFew:
    """Compute the true positive rate with at most ``floor(fpr * n_nonmembers)`` false positives.

    Parameters
    ----------
    score : float64 array, shape (n,)
        Scores. Larger scores indicate members. A score equal to the threshold is not above it.
    member : bool array, shape (n,)
        Which candidates are members.
    fpr : float
        False positive rate, for example 0.01.

    Returns
    -------
    rate : AtFew
        Rate, its expectation and its p-value.
    """
    from scipy.stats import betabinom

    member_scores, nonmember_scores = score[member], score[~member]
    n_allowed = allowed(len(nonmember_scores), fpr)
    # The threshold is the score of the (k+1)-th highest non-member. Only strictly larger scores
    # count.
    above = int((member_scores > _threshold(nonmember_scores, n_allowed)).sum())
    # Under the null hypothesis all orders of scores are equally likely. The number of members above
    # the (k+1)-th of m non-members then has a beta-binomial distribution.
    null_distribution = betabinom(
        len(member_scores), n_allowed + 1, len(nonmember_scores) - n_allowed
    )
    return AtFew(
        above / len(member_scores),
        n_allowed,
        len(nonmember_scores),
        (n_allowed + 1) / (len(nonmember_scores) + 1),
        float(null_distribution.sf(above - 1)),
    )


def allowed(n_others: int, fpr: float) -> int:
    """Return the allowed number of false positives among non-members, rounded down."""
    # The small addend guards against a product of floats that is just below an integer.
    return int(np.floor(fpr * n_others + 1e-9))


def _threshold(nonmember_scores: NDArray[np.float64], k: int) -> float:
    return float(
        np.partition(nonmember_scores, len(nonmember_scores) - 1 - k)[len(nonmember_scores) - 1 - k]
    )


def auc(score: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """Return the probability that a member scores above a non-member. A tie counts one half."""
    n, m = int(member.sum()), int((~member).sum())
    # Mann-Whitney U statistic from middle ranks, which count a tie as one half. It is a multiple of
    # one half, so that rounding removes the error of the sum.
    pairs = middle_ranks(score)[member].sum() * (n + m) - n * n / 2
    return float(np.rint(2 * pairs) / (2 * n * m))


def error_of(
    score: NDArray[np.float64], member: NDArray[np.bool_], fpr: float, rng: np.random.Generator
) -> float:
    """Return the standard error of the true positive rate by bootstrap.

    Members and non-members are resampled separately. The remaining arguments are those of `at_few`.
    """
    member_scores, nonmember_scores = score[member], score[~member]
    n_allowed, rates = allowed(len(nonmember_scores), fpr), []
    for _ in range(_RESAMPLED):
        a, b = (
            rng.choice(member_scores, len(member_scores)),
            rng.choice(nonmember_scores, len(nonmember_scores)),
        )
        rates.append((a > _threshold(b, n_allowed)).mean())
    return float(np.std(rates, ddof=1))


def blind_scores(table: Table, member: NDArray[np.bool_], folds: int = 5) -> NDArray[np.float64]:
    """Score candidates with a classifier that receives only the rows and not the model.

    A logistic regression is trained on the membership of the remaining folds (Das, Zhang and Tramèr
    2024). If it is better than chance, members and non-members differ in distribution, and a high
    score of an attack is not evidence of a leak.

    Parameters
    ----------
    table : Table
        n candidates. Missing values are replaced by the mean.
    member : bool array, shape (n,)
        Which candidates are members.
    folds : int
        Number of folds. Row i is in fold ``i % folds``.

    Returns
    -------
    score : float64 array, shape (n,)
        Log-odds of membership. It is 0 in a fold whose training rows are of one class.
    """
    X = np.column_stack([table.X, table.y]).astype(np.float64)
    return _out_of_fold(X.tobytes(), X.shape[1], member.tobytes(), folds)


@lru_cache(maxsize=8)  # a bench scores the same candidates under every defense
def _out_of_fold(rows: bytes, width: int, members: bytes, folds: int) -> NDArray[np.float64]:
    from sklearn.linear_model import LogisticRegression

    X, member = np.frombuffer(rows).reshape(-1, width), np.frombuffer(members, dtype=bool)
    present = ~np.isnan(X)
    mean = np.where(present, X, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    # Missing values are replaced by the mean, and columns are standardised.
    X = np.where(present, X, mean)
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    score, fold = np.zeros(len(X)), np.arange(len(X)) % folds
    for k in range(folds):
        train = fold != k
        if train.all() or len(set(member[train].tolist())) < 2:  # too few rows for a classifier
            continue
        fitted = LogisticRegression(max_iter=200).fit(X[train], member[train])
        score[~train] = fitted.decision_function(X[~train])
    return score


@register.metric("membership")
class MembershipMetric(Metric[Candidates]):
    """True positive rate at 1% and 0.1% false positives, and AUC, of membership inference.

    Candidates are training rows of the victims (members) and further rows of the population
    (non-members). ``members_1pct`` is the share of members whose score exceeds the scores of all
    except 1% of the non-members. ``members_01pct`` is the same for 0.1%. If there are fewer than
    1,000 non-members, no false positive is allowed. ``members_auc`` is the probability that a
    member has a higher score than a non-member.

    ``members_1pct`` and ``members_auc`` decide whether a cell counts as a leak. With about 100
    non-members, 1% is a single false positive, so that the standard deviation of ``members_1pct``
    is as large as its mean. The blind baseline is the better of chance and of a classifier that
    receives only the rows (`blind_scores`). If an attack contains several tests, the first one
    determines these scores, and each test is also scored separately (keys that end in ``_of``).
    """

    of: ClassVar[type[Claim]] = Membership
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("members_1pct", "members found at 1% false alarms", "share of members",
                short="members", counted_by="members", severity=45,
                phrase="recognise {} at 1% false alarms",
                explained="Of candidate rows, it names the rows that were used in the training."),
        Measure("members_01pct", "members found at 0.1% false alarms", "share of members",
                klass="person"),
        Measure("members_auc", "AUC of membership", "AUC", decimals=3, severity=46, margin=2.0,
                head="AUC of membership",
                phrase="distinguish members from other persons with an AUC of {}",
                explained="The probability that a row that was trained on has a higher score than "
                "one that was not: 0.5 is chance."),
        Measure("members_1pct_of", "members found at 1% false alarms by a test",
                "share of members", klass="person", part="test"),
        Measure("members_auc_of", "AUC of membership by a test", "AUC", part="test", decimals=3),
    )  # fmt: skip

    def truth(self, case: Case) -> Candidates | None:
        """Return candidates with their membership, see `Case.candidates` (also for None)."""
        return case.candidates

    def refuses(self, claims: Sequence[Membership], case: Case) -> str | None:
        """Refuse a number of scores other than that of candidates, and tests claimed twice."""
        names, n = [c.test for c in claims], len(case.candidates.table) if case.candidates else 0
        wrong = [len(c.score) for c in claims if len(c.score) != n]
        if wrong:
            return f"it scored {wrong[0]} candidates of {n}"
        return "it claimed a test twice" if len({*names}) < len(names) else None

    def counted(self, truth: Candidates) -> int:
        """Return the number of members among the candidates."""
        return int(truth.member.sum())

    def score(self, claims: Sequence[Membership], truth: Candidates) -> list[Score]:
        """Score the first test as the result of the attack, and every test by its name."""
        first, member, scores = claims[0].score, truth.member, list[Score]()
        # A fixed seed, so that the standard error of the same scores is always the same.
        error = error_of(first, member, FEW, np.random.default_rng(0))
        scores.append(Score("members_1pct", at_few(first, member, FEW).tpr, error=error))
        scores.append(Score("members_01pct", at_few(first, member, FEWER).tpr))
        scores.append(Score("members_auc", auc(first, member)))
        for c in claims:
            scores.append(Score("members_1pct_of", at_few(c.score, member, FEW).tpr, part=c.test))
            scores.append(Score("members_auc_of", auc(c.score, member), part=c.test))
        return scores

    def line(
        self, case: Case, truth: Candidates, measured: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the better of chance and a classifier that receives only the rows."""
        blind = blind_scores(truth.table, truth.member)
        baseline = {"members_auc": max(0.5, auc(blind, truth.member))}
        for name, fpr in (("members_1pct", FEW), ("members_01pct", FEWER)):
            classifier = at_few(blind, truth.member, fpr)
            # Chance is the expectation at the random threshold, not the false positive rate.
            baseline[name] = max(classifier.null, classifier.tpr)
        return baseline
