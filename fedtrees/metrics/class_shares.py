"""Guessed shares of classes at single clients: property inference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, ClassShares
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Case, Metric, Score

#: Fewest victims of which the blind adversary is granted shares that are computed from the truth.
#: The median of one victim is the truth itself, and that of two is the middle between them.
FEWEST_TOLD = 3


@dataclass(frozen=True, eq=False)
class VictimsClasses:
    """Classes of the victims' rows.

    `counts`: Rows of each class, int64 (K,), by victim. `assumed`: Shares that are scored for a
    victim of whom nothing is claimed, float64 (K,): those among the adversary's own rows, or equal
    ones; of `FEWEST_TOLD` victims or more, those among the rows of all victims.
    """

    counts: Mapping[str, NDArray[np.int64]]
    assumed: NDArray[np.float64]


@register.metric("class-shares")
class ClassSharesMetric(Metric[VictimsClasses]):
    """How far the share of a class at one client is off (property inference; Ateniese et al. 2015).

    ``class_error`` is the absolute error, averaged over classes and over victims with whole rows.
    The blind adversary claims the same shares of every victim: those among its own rows, or equal
    ones. Of three victims or more it is also granted two sets of shares that are computed from the
    truth: those among all their rows, and those of the least error. With one victim either would
    be the answer itself.
    """

    of: ClassVar[type[Claim]] = ClassShares
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("class_error", "error of a class's share at one client", "share of rows", 0.0,
                "group", decimals=3, severity=165, short="class share error",
                beside=("bin_counts",),
                phrase="estimate the share of each class at one client with an error of {}"),
    )  # fmt: skip

    def truth(self, case: Case) -> VictimsClasses | None:
        """Count the classes of victims with whole rows; None where there are none, or no classes.

        Victims without rows have no shares and are not scored.
        """
        whole = {n: h.table for n, h in case.victims.items() if h.covers(case.schema) and len(h)}
        classes = max(len(case.schema.classes), 2)
        if not whole or not case.schema.classes:
            return None
        counts = {n: np.bincount(t.y, minlength=classes) for n, t in whole.items()}
        if len(counts) >= FEWEST_TOLD:
            return VictimsClasses(counts, _pooled(counts))
        return VictimsClasses(counts, _own_share(case, classes))

    def refuses(self, claims: Sequence[ClassShares], case: Case) -> str | None:
        """Refuse shares of other numbers of classes, of nobody's rows, and claimed twice."""
        owners, classes = [c.owner for c in claims], max(len(case.schema.classes), 2)
        if len({*owners}) < len(owners):
            return "it claimed the classes of one client twice"
        for c in claims:
            if c.owner not in case.victims or len(c.share) != classes:
                return f"it claimed {len(c.share)} classes of {c.owner!r}; no victim has these"
        return None

    def blind(self, case: Case, truth: VictimsClasses) -> dict[str, Sequence[Claim]]:
        """Return the same shares for every victim, as the class describes them."""
        counts, classes = truth.counts, len(truth.assumed)
        shares = {"own": _own_share(case, classes), "even": np.full(classes, 1 / classes)}
        if len(counts) >= FEWEST_TOLD:
            shares |= {"pooled": _pooled(counts), "median": _least_wrong(counts)}
        return {how: [ClassShares(n, share) for n in counts] for how, share in shares.items()}

    def score(self, claims: Sequence[ClassShares], truth: VictimsClasses) -> list[Score]:
        """Score all victims together."""
        claimed = {c.owner: c.share for c in claims}
        off = [
            np.abs(claimed.get(n, truth.assumed) - c / c.sum()).mean()
            for n, c in truth.counts.items()
        ]
        return [Score("class_error", float(np.mean(off)))]


def _own_share(case: Case, classes: int) -> NDArray[np.float64]:
    """Return the shares of the classes among the adversary's own rows; equal ones without rows."""
    own = case.blind_view().rows
    if own is None or not len(own):
        return np.full(classes, 1 / classes)
    return np.asarray(np.bincount(own.y, minlength=classes) / len(own))


def _least_wrong(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the shares of least absolute error: of every class the same quantile, adding up to 1.

    At the least, as many victims more are above as below in every class (the multiplier of their
    sum).
    """
    shares, low, high = np.array([c / c.sum() for c in counts.values()]), 0.0, 1.0

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


def _pooled(counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the shares of the classes among the rows of all victims."""
    together = np.sum([*counts.values()], axis=0)
    return np.asarray(together / together.sum(), dtype=np.float64)
