"""Metrics `bin-counts` and `column-bins`: inferred contents of histogram bins.

- `bin-counts`: the number of rows of each class that one client has in every histogram bin. Several
  attacks infer it, for example from gradient histograms. The metric `class-shares` scores the
  coarser claim about the class shares of a client.
- `column-bins`: the bins of another party's values, in vertical federations in which the adversary
  has other columns of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.claims import BinClassCounts, Claim, ColumnBins
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Table
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.splits import misnamed, orders_of_own
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
    third : int64 array, shape (total_bins,)
        Third of its column in which each bin lies: 0, 1 or 2. 0 contains the lowest values.
    adversary_counts : int64 array, shape (total_bins, K), or None
        Class counts of the complete rows of the adversary. None if it has none.
    """

    counts: Counts
    third: NDArray[np.int64]
    adversary_counts: NDArray[np.int64] | None = None


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

        None if no common cut points were announced, no victim has complete rows, the target is
        numeric, or a victim's rows have sample weights. Sums over weighted rows do not determine
        their number.
        """
        cuts, tables = case.cuts, case.complete
        classes = len(case.schema.classes)
        weighted = any(table.weight is not None for table in tables.values())
        if cuts is None or not tables or not classes or weighted:
            return None
        counts = {n: _count_classes(table, cuts, classes) for n, table in tables.items()}
        rows = case.blind_view().rows
        adversary_counts = (
            None if rows is None or not len(rows) else _count_classes(rows, cuts, classes)
        )
        return VictimsCounts(counts, thirds_of_columns(cuts.offsets), adversary_counts)

    def blind(self, case: Case, truth: VictimsCounts) -> dict[str, Sequence[Claim]]:
        """Return no claims. `score` computes the baseline, for the victims that are claimed."""
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

        average_counts = share(lambda n: np.rint(true_counts[n].mean(axis=0, keepdims=True)))
        most_frequent = share(lambda n: _most_frequent(true_counts[n], truth.third))
        baseline = max(average_counts, most_frequent)
        if (local := truth.adversary_counts) is not None:
            scaled = share(
                lambda n: np.rint(local * (true_counts[n].sum() / max(int(local.sum()), 1)))
            )
            baseline = max(baseline, scaled)
        return [Score("bin_counts", share(claimed.__getitem__), blind=baseline)]


def _count_classes(table: Table, cuts: Cuts, classes: int) -> NDArray[np.int64]:
    """Count the rows of each class in every bin, int64 array, shape (total_bins, K)."""
    bins = bin_rows(table.X, cuts)
    rows, columns = np.nonzero(bins.codes != bins.missing)
    # One pass over all columns: number the cells (bin, class) of the result in C order.
    cell = (bins.offsets[columns] + bins.codes[rows, columns]) * classes + table.y[rows]
    return np.bincount(cell, minlength=cuts.total_bins * classes).reshape(-1, classes)


def thirds_of_columns(offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the third of its column in which each bin lies, int64 array, shape (total_bins,).

    Examples
    --------
    Two columns, with three bins and with six bins:

    >>> thirds_of_columns(np.array([0, 3, 9])).tolist()
    [0, 1, 2, 0, 0, 1, 1, 2, 2]
    """
    size = np.diff(offsets)
    position = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], size)
    return np.asarray(position * _PARTS // np.repeat(size, size), dtype=np.int64)


def _most_frequent(counts: NDArray[np.int64], third: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace the class counts of every bin by the most frequent ones of its third.

    Ties are resolved in favour of the lexicographically smallest counts.
    """
    guesses = np.empty_like(counts)
    for number in np.unique(third):
        rows, times = np.unique(counts[third == number], axis=0, return_counts=True)
        guesses[third == number] = rows[times.argmax()]
    return guesses


@dataclass(frozen=True, eq=False)
class VictimsBins:
    """True bins: ids of rows and their bins (-1 for a missing value), by (owner, feature)."""

    columns: Mapping[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@register.metric("column-bins")
class ColumnBinsMetric(Metric[VictimsBins]):
    """Share of the cells of the victims' columns whose bin is inferred exactly.

    The denominator is the number of cells of the victims' columns in rows that the adversary also
    has. A cell without a value is correct if the claim marks it as missing. Columns without a claim
    are filled from the best blind guess. The blind adversary is granted more than it can know: the
    number of rows in every bin of each column.
    """

    of: ClassVar[type[Claim]] = ColumnBins
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("bins_read", "bins of other parties named", "share of cells", slot="guess",
                short="bins named", head="bins named", severity=60,
                phrase="infer the bin of {} of the other parties' values"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("bins_read",)
    prominence: ClassVar[int] = 1

    def truth(self, case: Case) -> VictimsBins | None:
        """Return the bins of the victims' columns in rows that a principal has in its local data.

        None if the principals have no data, or the training used no bins of a victim's column.
        """
        adversary_ids = [local_data.ids for local_data in case.adversary.values()]
        if not adversary_ids:
            return None
        # Only rows that the adversary has in its local data can be claimed by id.
        known_ids, columns = np.unique(np.concatenate(adversary_ids)), {}
        for (owner, feature), bin in case.bins_of_rows.items():
            if owner in case.victims:
                ids = case.victims[owner].ids
                shared = np.isin(ids, known_ids)
                columns[owner, feature] = ids[shared], bin[shared]
        return VictimsBins(columns) if columns else None

    def refuses(self, claims: Sequence[ColumnBins], case: Case) -> str | None:
        """Refuse columns that no victim has, and columns that are claimed twice."""
        return misnamed([(c.owner, c.feature) for c in claims], case)

    def blind(self, case: Case, truth: VictimsBins) -> dict[str, Sequence[Claim]]:
        """Return blind guesses of the bins.

        ``fullest-bin`` claims the most frequent bin of every column. The remaining guesses sort the
        rows by local data of the adversary (`fedtrees.metrics.splits`), and fill the bins in this
        order.
        """
        fullest = [
            ColumnBins(*key, ids, np.full(len(ids), _fullest(bin)))
            for key, (ids, bin) in truth.columns.items()
        ]
        guesses: dict[str, Sequence[Claim]] = {"fullest-bin": fullest}
        for name, orders in orders_of_own(case, truth.columns).items():
            guesses[name] = [
                _fill_bins(key, *orders[key], bins) for key, bins in truth.columns.items()
            ]
        return {**guesses, **super().blind(case, truth)}

    def completed(
        self,
        claims: Sequence[ColumnBins],
        truth: VictimsBins,
        blind: Callable[[], Sequence[ColumnBins]],
    ) -> Sequence[ColumnBins]:
        """Fill columns without a claim from the best blind guess."""
        claimed = {(c.owner, c.feature) for c in claims}
        if claimed >= set(truth.columns):
            return claims
        return [*claims, *(c for c in blind() if (c.owner, c.feature) not in claimed)]

    def counted(self, truth: VictimsBins) -> int:
        """Return the number of scored cells."""
        return sum(len(ids) for ids, _ in truth.columns.values())

    def score(self, claims: Sequence[ColumnBins], truth: VictimsBins) -> list[Score]:
        """Compute the share of correct bins over all cells. A row without a claim is wrong."""
        claimed = {(c.owner, c.feature): c for c in claims}
        right = 0
        for key, (ids, bin) in truth.columns.items():
            if key in claimed:
                _, true_at, claimed_at = np.intersect1d(ids, claimed[key].ids, return_indices=True)
                right += int((bin[true_at] == claimed[key].bin[claimed_at]).sum())
        return [Score("bins_read", right / max(self.counted(truth), 1))]


def _fullest(bin: NDArray[np.int64]) -> int:
    """Return the most frequent bin, possibly -1 for missing values."""
    return int(np.bincount(bin + 1).argmax()) - 1


def _fill_bins(
    key: tuple[str, int],
    ids: NDArray[np.int64],
    rank: NDArray[np.float64],
    truth: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> ColumnBins:
    """Assign bins to rows in the order of their ranks, each bin to as many rows as it contains.

    The rows must be rows of the column. They can be fewer, and then have the bins that these rows
    contain.
    """
    # Sorted bins: the row with the k-th smallest rank gets the k-th smallest bin.
    bin = np.empty(len(ids), dtype=np.int64)
    bin[np.argsort(rank, kind="stable")] = np.sort(truth[1][np.isin(truth[0], ids)])
    return ColumnBins(*key, ids, bin)
