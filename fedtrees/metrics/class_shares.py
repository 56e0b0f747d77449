"""Guessed shares of classes at single clients: property inference."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, ClassShares
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Case, Metric, Score

#: Rows of each class, int64 (K,), of each victim.
Counts = Mapping[str, NDArray[np.int64]]


@register.metric("class-shares")
class ClassSharesMetric(Metric[Counts]):
    """How far the share of a class at one client is off (property inference; Ateniese et al. 2015).

    ``class_error``: averaged over victims with whole rows, and classes. Who sees nothing claims the
    same of each: the blind baseline is told the shares of which that is least wrong, their medians
    of two classes. The share among all rows is claimed of who is left out.
    """

    of: ClassVar[type[Claim]] = ClassShares
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("class_error", "error of a class's share at one client", "share of rows", 0.0,
                "group", decimals=3, severity=165, short="class share error",
                beside=("bin_counts",),
                phrase="tell the share of each class at one client, wrong by {}"),
    )  # fmt: skip

    def truth(self, case: Case) -> Counts | None:
        """Count rows of who holds whole ones; None where rows have no classes."""
        whole = {n: h.table for n, h in case.victims.items() if h.covers(case.schema) and len(h)}
        classes = max(len(case.schema.classes), 2)
        if not whole or not case.schema.classes:
            return None
        return {n: np.bincount(t.y, minlength=classes) for n, t in whole.items()}

    def refuses(self, claims: Sequence[ClassShares], case: Case) -> str | None:
        """Refuse shares of other numbers of classes, of nobody's rows, and claimed twice."""
        owners, classes = [c.owner for c in claims], max(len(case.schema.classes), 2)
        if len({*owners}) < len(owners):
            return "it claimed the classes of one client twice"
        for c in claims:
            if c.owner not in case.victims or len(c.share) != classes:
                return f"it claimed {len(c.share)} classes of {c.owner!r}; no victim has these"
        return None

    def blind(self, case: Case, truth: Counts) -> dict[str, Sequence[Claim]]:
        """Return the same shares for every victim: of all their rows, or the least wrong ones."""
        told = {"pooled": _pooled(truth), "median": _least_wrong(truth)}
        return {how: [ClassShares(n, share) for n in truth] for how, share in told.items()}

    def score(self, claims: Sequence[ClassShares], truth: Counts) -> list[Score]:
        """Score all victims together."""
        claimed, pooled = {c.owner: c.share for c in claims}, _pooled(truth)
        off = [np.abs(claimed.get(n, pooled) - c / c.sum()).mean() for n, c in truth.items()]
        return [Score("class_error", float(np.mean(off)))]


def _least_wrong(truth: Counts) -> NDArray[np.float64]:
    """Return the shares of least absolute error: of every class the same quantile, adding up to 1.

    At the least, as many victims more are above as below in every class (the multiplier of their
    sum).
    """
    shares, low, high = np.array([c / c.sum() for c in truth.values()]), 0.0, 1.0

    def at(level: float) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.quantile(shares, level, axis=0, method="inverted_cdf")
        return found

    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).sum() < 1 else (low, middle)
    below, above = at(low), at(high)
    gap = above.sum() - below.sum()
    found = below + (above - below) * ((1 - below.sum()) / gap if gap > 0 else 0.0)
    return np.asarray(found / found.sum())


def _pooled(truth: Counts) -> NDArray[np.float64]:
    counts = np.sum([*truth.values()], axis=0)
    return np.asarray(counts / counts.sum(), dtype=np.float64)
