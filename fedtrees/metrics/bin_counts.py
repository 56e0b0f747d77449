"""Metric `bin-counts`: class counts per bin of a client's columns.

Several attacks infer how many rows of each class one client has in every histogram bin, for example
from gradient histograms. The metric `class-shares` scores the coarser claim about the class shares
of a client.
"""

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

#: Class counts of the bins, int64 array (total_bins, K), by victim.
Counts = Mapping[str, NDArray[np.int64]]
#: The baseline predicts separate counts for low, middle and high values of a column, so that it can
#: follow a class that is more frequent at one end.
_PARTS = 3


@dataclass(frozen=True, eq=False)
class VictimsCounts:
    """True class counts of the victims' bins.

    Attributes
    ----------
    counts : mapping of str to int64 array, shape (total_bins, K)
        Number of rows of each class in every bin, by victim.
    part : int64 array, shape (total_bins,)
        Third of its column in which each bin lies. 0 contains the lowest values.
    own : int64 array, shape (total_bins, K), or None
        Class counts of the complete rows of the adversary. None if it has none.
    """

    counts: Counts
    part: NDArray[np.int64]
    own: NDArray[np.int64] | None = None


@register.metric("bin-counts")
class BinCountsMetric(Metric[VictimsCounts]):
    """Share of bins in which the inferred counts of all classes are exact.

    The share is taken over all bins of all columns of the victims that the attack makes a claim
    about. Bins are defined by the cut points that were announced to the clients.

    The blind baseline is the best of three predictions:

    - Every bin of a client has the same counts, namely the average over its bins, rounded.
    - All bins in the same third of their columns (low, middle or high values) have the same counts,
      namely the most frequent ones among these bins.
    - The counts of the local rows of the adversary, scaled to the number of rows of the victim.

    The first two are computed from the true counts, which an adversary without messages does not
    know. The baseline is therefore optimistic, and the advantage of an attack is a cautious figure.
    """

    of: ClassVar[type[Claim]] = BinClassCounts
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("bin_counts", "class counts of one client's bins", "share of bins", klass="group",
                short="bin counts", severity=155,
                phrase="count the rows of each class of one client in {} of its bins"),
    )  # fmt: skip

    def truth(self, case: Case) -> VictimsCounts | None:
        """Count the rows of each victim with complete rows.

        None if no cut points were announced, no victim has complete rows, the target is numeric, or
        a victim's rows have sample weights. Sums over weighted rows do not determine their number.
        """
        cut_points = [d.message for d in case.transcript or () if isinstance(d.message, CutPoints)]
        tables = {n: h.table for n, h in case.victims.items() if h.covers(case.schema)}
        classes = len(case.schema.classes)
        weighted = any(table.weight is not None for table in tables.values())
        if not cut_points or not tables or not classes or weighted:
            return None
        m = cut_points[-1]
        cuts, counts = Cuts(m.values, m.offsets, m.minimum, m.categorical), {}
        for name, table in tables.items():
            counts[name] = _count_classes(table, cuts, classes)
        rows = case.blind_view().rows
        adversary_counts = (
            None if rows is None or not len(rows) else _count_classes(rows, cuts, classes)
        )
        return VictimsCounts(counts, parts_of(cuts.offsets), adversary_counts)

    def blind(self, case: Case, truth: VictimsCounts) -> dict[str, Sequence[Claim]]:
        """Return no blind claims, because `score` computes the baseline for the claimed victims."""
        return {}

    def score(self, claims: Sequence[BinClassCounts], truth: VictimsCounts) -> list[Score]:
        """Compute the share of exact bins of the claimed victims, and its blind baseline."""
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
        baseline = max(even, most_frequent)
        if truth.own is not None:
            prior = truth.own
            total = max(prior.sum(), 1)
            baseline = max(
                baseline, share(lambda n: np.rint(prior * (true_counts[n].sum() / total)))
            )
        return [Score("bin_counts", share(claimed.__getitem__), blind=baseline)]


def _count_classes(table: Table, cuts: Cuts, classes: int) -> NDArray[np.int64]:
    """Count the rows of each class in every bin, int64 array, shape (total_bins, K)."""
    bins = bin_rows(table.X, cuts)
    rows, columns = np.nonzero(bins.codes != bins.missing)
    # One pass over all columns: number the cells (bin, class) of the result in C order.
    cell = (bins.offsets[columns] + bins.codes[rows, columns]) * classes + table.y[rows]
    return np.bincount(cell, minlength=cuts.total_bins * classes).reshape(-1, classes)


def parts_of(offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the third of its column in which each bin lies, int64 array, shape (total_bins,).

    Examples
    --------
    Two columns, with three bins and with six bins:

    >>> parts_of(np.array([0, 3, 9])).tolist()
    [0, 1, 2, 0, 0, 1, 1, 2, 2]
    """
    size = np.diff(offsets)
    position = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], size)
    return np.asarray(position * _PARTS // np.repeat(size, size), dtype=np.int64)


def _most_frequent(counts: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace the class counts of every bin by the most frequent ones of its third.

    Ties are resolved in favour of the lexicographically smallest counts.
    """
    guesses = np.empty_like(counts)
    for third in np.unique(part):
        rows, times = np.unique(counts[part == third], axis=0, return_counts=True)
        guesses[part == third] = rows[times.argmax()]
    return guesses
