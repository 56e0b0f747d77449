"""Metric `class-shares`: inferred class distribution of single clients (property inference)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, ClassShares
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Case, Metric, Score

#: Smallest number of victims at which the blind adversary is granted shares that are computed from
#: the truth. With one victim, the median is the truth itself. With two, it is their mean.
FEWEST_TOLD = 3


@dataclass(frozen=True, eq=False)
class VictimsClasses:
    """Classes of the victims' rows.

    Attributes
    ----------
    counts : mapping of str to int64 array, shape (K,)
        Number of rows of each class, by victim.
    assumed : float64 array, shape (K,)
        Class shares that are scored for a victim without a claim. With `FEWEST_TOLD` or more
        victims, these are the shares among the rows of all victims. Otherwise they are the shares
        among the local rows of the adversary, or equal shares if it has none.
    """

    counts: Mapping[str, NDArray[np.int64]]
    assumed: NDArray[np.float64]


@register.metric("class-shares")
class ClassSharesMetric(Metric[VictimsClasses]):
    """Mean absolute error of the inferred class shares of single clients.

    ``class_error`` is the absolute difference between claimed and true share of a class at one
    client, averaged over classes and over victims with complete rows (property inference; Ateniese
    et al. 2015). It is 0 for a perfect guess.

    The blind adversary claims the same shares for every victim: the shares among its local rows, or
    equal shares. With three or more victims it is also granted two predictions that are computed
    from the truth: the shares among the rows of all victims, and the shares of least error. With
    one victim, both would be the truth itself.
    """

    of: ClassVar[type[Claim]] = ClassShares
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("class_error", "error of a class's share at one client", "share of rows", 0.0,
                "group", decimals=3, severity=165, short="class share error",
                beside=("bin_counts",),
                phrase="estimate the share of each class at one client with an error of {}"),
    )  # fmt: skip

    def truth(self, case: Case) -> VictimsClasses | None:
        """Count the classes of all victims with one or more complete rows.

        None if there is no such victim or the target is numeric.
        """
        # A client without rows has no class shares.
        tables = {n: h.table for n, h in case.victims.items() if h.covers(case.schema) and len(h)}
        classes = max(len(case.schema.classes), 2)
        if not tables or not case.schema.classes:
            return None
        counts = {n: np.bincount(t.y, minlength=classes) for n, t in tables.items()}
        if len(counts) >= FEWEST_TOLD:
            return VictimsClasses(counts, _pooled(counts))
        return VictimsClasses(counts, _own_share(case, classes))

    def refuses(self, claims: Sequence[ClassShares], case: Case) -> str | None:
        """Refuse a wrong number of classes, clients that are no victims, and repeated claims."""
        owners, classes = [c.owner for c in claims], max(len(case.schema.classes), 2)
        if len({*owners}) < len(owners):
            return "it claimed the classes of one client twice"
        for c in claims:
            if c.owner not in case.victims or len(c.share) != classes:
                return f"it claimed {len(c.share)} classes of {c.owner!r}; no victim has these"
        return None

    def blind(self, case: Case, truth: VictimsClasses) -> dict[str, Sequence[Claim]]:
        """Return claims of the same shares for every victim, see the class."""
        counts, classes = truth.counts, len(truth.assumed)
        shares = {"own": _own_share(case, classes), "even": np.full(classes, 1 / classes)}
        if len(counts) >= FEWEST_TOLD:
            shares |= {"pooled": _pooled(counts), "median": _least_wrong(counts)}
        return {how: [ClassShares(n, share) for n in counts] for how, share in shares.items()}

    def score(self, claims: Sequence[ClassShares], truth: VictimsClasses) -> list[Score]:
        """Compute the mean error over all victims."""
        claimed = {c.owner: c.share for c in claims}
        off = [
            np.abs(claimed.get(n, truth.assumed) - c / c.sum()).mean()
            for n, c in truth.counts.items()
        ]
        return [Score("class_error", float(np.mean(off)))]


def _own_share(case: Case, classes: int) -> NDArray[np.float64]:
    """Return the class shares among the local rows of the adversary, equal shares without rows."""
    rows = case.blind_view().rows
    if rows is None or not len(rows):
        return np.full(classes, 1 / classes)
    return np.asarray(np.bincount(rows.y, minlength=classes) / len(rows))


def _least_wrong(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the shares with the least mean absolute error over all victims.

    Without the condition that the shares sum to 1, these are the medians over the victims. With the
    condition, they are the same quantile of every class, at the level at which the quantiles sum to
    1 (by the Lagrange multiplier of the sum). The level is found by bisection.
    """
    shares, low, high = np.array([c / c.sum() for c in counts.values()]), 0.0, 1.0

    def quantiles(level: float) -> NDArray[np.float64]:
        shares_at_level: NDArray[np.float64] = np.quantile(
            shares, level, axis=0, method="inverted_cdf"
        )
        return shares_at_level

    # 50 bisections reduce the interval of levels to 2^-50. Quantiles are step functions, so that
    # the sum may jump over 1. The shares are then interpolated between both sides of the jump.
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if quantiles(middle).sum() < 1 else (low, middle)
    below, above = quantiles(low), quantiles(high)
    gap = above.sum() - below.sum()
    shares_at_level = below + (above - below) * ((1 - below.sum()) / gap if gap > 0 else 0.0)
    return np.asarray(shares_at_level / shares_at_level.sum())


def _pooled(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the class shares among the rows of all victims."""
    together = np.sum([*counts.values()], axis=0)
    return np.asarray(together / together.sum(), dtype=np.float64)
