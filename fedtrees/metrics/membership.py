"""Which candidates were trained on: true positives at few false ones, beside what chance gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, Membership
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Candidates, Case, Metric, Score

#: False positives at which attacks are compared (Carlini et al. 2022, Sec. III).
FEW, FEWER = 0.01, 0.001
_RESAMPLED = 100


@dataclass(frozen=True)
class AtFew:
    """True positives at so many false ones as there may be.

    `tpr`: Share of members above the threshold.
    `allowed, others`: Non-members that may be above it, and how many there are.
    `null`: The mean of `tpr` where scores tell nothing: the threshold is a draw as well, so that it
    is not the false positive rate.
    `chance`: Probability that so many members or more are above it where scores tell nothing.
    """

    tpr: float
    allowed: int
    others: int
    null: float
    chance: float


def at_few(score: NDArray[np.float64], member: NDArray[np.bool_], fpr: float) -> AtFew:
    """Return true positives where ``floor(fpr * others)`` false ones are allowed.

    `score`: float64 array, shape (n,). Greater: more likely a member. Members that tie with the
    threshold are not above it.
    `member`: bool array, shape (n,).
    """
    from scipy.stats import betabinom

    mine, others = score[member], score[~member]
    k = allowed(len(others), fpr)
    above = int((mine > _threshold(others, k)).sum())
    law = betabinom(len(mine), k + 1, len(others) - k)
    return AtFew(
        above / len(mine), k, len(others), (k + 1) / (len(others) + 1), float(law.sf(above - 1))
    )


def allowed(others: int, fpr: float) -> int:
    """Return how many false positives there may be among so many non-members."""
    return int(np.floor(fpr * others + 1e-9))


def _threshold(others: NDArray[np.float64], k: int) -> float:
    return float(np.partition(others, len(others) - 1 - k)[len(others) - 1 - k])


def auc(score: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    """Return the chance that a member scores above a non-member, ties half."""
    n, m = int(member.sum()), int((~member).sum())
    above = middle_ranks(score)[member].sum() * (n + m) - n * n / 2
    return float(above / (n * m))


def error_of(
    score: NDArray[np.float64], member: NDArray[np.bool_], fpr: float, rng: np.random.Generator
) -> float:
    """Return the standard error of the true positive rate, over members and non-members drawn."""
    mine, others = score[member], score[~member]
    k, drawn = allowed(len(others), fpr), []
    for _ in range(_RESAMPLED):
        a, b = rng.choice(mine, len(mine)), rng.choice(others, len(others))
        drawn.append((a > _threshold(b, k)).mean())
    return float(np.std(drawn, ddof=1))


def blind_scores(table: Table, member: NDArray[np.bool_], folds: int = 5) -> NDArray[np.float64]:
    """Return what a classifier that sees rows alone makes of membership, out of fold, shape (n,).

    It is told who is a member among the other folds (Das, Zhang and Tramèr 2024): above chance, the
    candidates differ, and no model need have told.
    """
    X = np.column_stack([table.X, table.y]).astype(np.float64)
    return _out_of_fold(X.tobytes(), X.shape[1], member.tobytes(), folds)


@lru_cache(maxsize=8)  # a bench asks about the same candidates under every defense
def _out_of_fold(rows: bytes, width: int, members: bytes, folds: int) -> NDArray[np.float64]:
    from sklearn.linear_model import LogisticRegression

    X, member = np.frombuffer(rows).reshape(-1, width), np.frombuffer(members, dtype=bool)
    there = ~np.isnan(X)
    mean = np.where(there, X, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    X = np.where(there, X, mean)
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    found, fold = np.zeros(len(X)), np.arange(len(X)) % folds
    for k in range(folds):
        train = fold != k
        if train.all() or len(set(member[train].tolist())) < 2:  # so few rows tell nothing
            continue
        fitted = LogisticRegression(max_iter=200).fit(X[train], member[train])
        found[~train] = fitted.decision_function(X[~train])
    return found


@register.metric("membership")
class MembershipMetric(Metric[Candidates]):
    """Which candidates, victims' rows among others of the population, were trained on.

    ``members_1pct``: share of members above all but 1% of the non-members; ``members_01pct``: but
    0.1%, or above all where there are fewer than 1,000. ``members_auc``: probability that a member
    scores above a non-member. The first and the last decide the states of cells: with about 100
    non-members, 1% is one false alarm, so that the first varies by as much as its mean. Blind is
    the better of chance and of a classifier of the rows alone. Tests are also scored by themselves
    (``_of``).
    """

    of: ClassVar[type[Claim]] = Membership
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("members_1pct", "members found at 1% false alarms", "share of members",
                short="members", counted_by="members", severity=45,
                phrase="recognise {} at 1% false alarms",
                explained="Of rows that may have been trained on, it names those that were."),
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
        """Return candidates and which are members, None without rows that nobody holds."""
        return case.candidates

    def refuses(self, claims: Sequence[Membership], case: Case) -> str | None:
        """Refuse scores of other numbers of candidates, and tests that are claimed twice."""
        names, n = [c.test for c in claims], len(case.candidates.table) if case.candidates else 0
        wrong = [len(c.score) for c in claims if len(c.score) != n]
        if wrong:
            return f"it scored {wrong[0]} candidates of {n}"
        return "it claimed a test twice" if len({*names}) < len(names) else None

    def counted(self, truth: Candidates) -> int:
        """Return the number of members among the candidates."""
        return int(truth.member.sum())

    def score(self, claims: Sequence[Membership], truth: Candidates) -> list[Score]:
        """Score the first test as the attack's own, and every test by its name."""
        first, member, found = claims[0].score, truth.member, list[Score]()
        error = error_of(first, member, FEW, np.random.default_rng(0))
        found.append(Score("members_1pct", at_few(first, member, FEW).tpr, error=error))
        found.append(Score("members_01pct", at_few(first, member, FEWER).tpr))
        found.append(Score("members_auc", auc(first, member)))
        for c in claims:
            found.append(Score("members_1pct_of", at_few(c.score, member, FEW).tpr, part=c.test))
            found.append(Score("members_auc_of", auc(c.score, member), part=c.test))
        return found

    def line(
        self, case: Case, truth: Candidates, measured: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the better of chance and a classifier of the rows alone."""
        blind = blind_scores(truth.table, truth.member)
        line = {"members_auc": max(0.5, auc(blind, truth.member))}
        for name, fpr in (("members_1pct", FEW), ("members_01pct", FEWER)):
            got = at_few(blind, truth.member, fpr)
            line[name] = max(got.null, got.tpr)
        return line
