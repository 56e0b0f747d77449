"""Guessed class counts of bins against those of each victim's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import BinClassCounts, Claim
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.messages.cuts import CutPoints
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.trees.binning import Cuts, bin_rows

#: Class counts, int64 (total_bins, K), of each victim.
Counts = Mapping[str, NDArray[np.int64]]
#: Parts of a column's bins that the blind adversary claims the same counts in.
_PARTS = 3


@dataclass(frozen=True, eq=False)
class VictimsCounts:
    """Class counts of victims' bins, and which part of its column each bin is in.

    `part`: int64 array, shape (total_bins,). From 0 on, lowest values first. `own`: Class counts of
    the adversary's own rows, int64 (total_bins, K); None where it has none.
    """

    counts: Counts
    part: NDArray[np.int64]
    own: NDArray[np.int64] | None = None


@register.metric("bin-counts")
class BinCountsMetric(Metric[VictimsCounts]):
    """Share of the bins of a claimed victim's columns whose class counts are all exact.

    Bins are those of the cut points that clients were told. The blind adversary claims the same
    counts in every bin, its classes in equal parts; or in the low, middle and high third of every
    column those that most of such bins have. It is told either. With own rows it also claims their
    counts, scaled to the number of the victim's rows.
    """

    of: ClassVar[type[Claim]] = BinClassCounts
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("bin_counts", "class counts of one client's bins", "share of bins", klass="group",
                short="bin counts", severity=155,
                phrase="count the rows of each class of one client in {} of its bins"),
    )  # fmt: skip

    def truth(self, case: Case) -> VictimsCounts | None:
        """Count rows of who holds whole ones; None if bins were not told, or rows have weights."""
        cut_points = [d.message for d in case.transcript or () if isinstance(d.message, CutPoints)]
        tables = {n: h.table for n, h in case.victims.items() if h.covers(case.schema)}
        classes = len(case.schema.classes)
        weighted = any(table.weight is not None for table in tables.values())
        if not cut_points or not tables or not classes or weighted:
            return None
        m = cut_points[-1]
        cuts, counts = Cuts(m.values, m.offsets, m.minimum, m.categorical), {}
        for name, table in tables.items():
            counts[name] = _counted(table, cuts, classes)
        rows = case.blind_view().rows
        adversary_counts = None if rows is None or not len(rows) else _counted(rows, cuts, classes)
        return VictimsCounts(counts, parts_of(cuts.offsets), adversary_counts)

    def blind(self, case: Case, truth: VictimsCounts) -> dict[str, Sequence[Claim]]:
        """Return none: the baseline is of whom a claim is about, and stands beside its score."""
        return {}

    def score(self, claims: Sequence[BinClassCounts], truth: VictimsCounts) -> list[Score]:
        """Score the bins of those who are claimed, beside what is claimed blindly of the same."""
        true_counts = truth.counts
        claimed = {c.owner: c.counts for c in claims if c.owner in true_counts}
        bins = sum(len(true_counts[name]) for name in claimed)
        if not bins:
            return []

        def share(guess: Callable[[str], NDArray[Any]]) -> float:
            right = ((guess(n) == true_counts[n]).all(axis=1).sum() for n in claimed)
            return float(sum(right)) / bins

        even = share(lambda n: np.rint(true_counts[n].mean(axis=0, keepdims=True)))
        most_frequent = share(lambda n: _most_frequent(true_counts[n], truth.part))
        line = max(even, most_frequent)
        if truth.own is not None:
            prior = truth.own
            total = max(prior.sum(), 1)
            line = max(line, share(lambda n: np.rint(prior * (true_counts[n].sum() / total))))
        return [Score("bin_counts", share(claimed.__getitem__), blind=line)]


def _counted(table: Table, cuts: Cuts, classes: int) -> NDArray[np.int64]:
    """Return the rows of each class in every bin, int64, shape (total_bins, K)."""
    bins = bin_rows(table.X, cuts)
    rows, columns = np.nonzero(bins.codes != bins.missing)
    at = (bins.offsets[columns] + bins.codes[rows, columns]) * classes + table.y[rows]
    return np.bincount(at, minlength=cuts.total_bins * classes).reshape(-1, classes)


def parts_of(offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the third of its column that each bin is in, int64, shape (total_bins,)."""
    size = np.diff(offsets)
    place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], size)
    return np.asarray(place * _PARTS // np.repeat(size, size), dtype=np.int64)


def _most_frequent(counts: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return in every bin the counts that most bins of its part have."""
    guesses = np.empty_like(counts)
    for of in np.unique(part):
        rows, times = np.unique(counts[part == of], axis=0, return_counts=True)
        guesses[part == of] = rows[times.argmax()]
    return guesses
