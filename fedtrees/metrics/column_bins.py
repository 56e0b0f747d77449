"""Metric `column-bins`: inferred histogram bins of another party's values.

It applies to vertical federations in which the adversary has other columns of the same rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, ColumnBins
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.orders import misnamed, orders_of_own


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
        Measure("bins_read", "bins of others' values named", "share of cells", slot="guess",
                short="bins named", head="bins named", severity=60,
                phrase="infer the bin of {} of the other parties' values"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("bins_read",)
    prominence: ClassVar[int] = 1

    def truth(self, case: Case) -> VictimsBins | None:
        """Return the bins of the victims' columns in rows that a principal has in its local data.

        None if the principals have no data, or the training used no bins of a victim's column.
        """
        adversary_ids = [case.local_data[p].ids for p in case.principals if p in case.local_data]
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
        rows by local data of the adversary (`fedtrees.metrics.orders`), and fill the bins in this
        order.
        """
        fullest = [
            ColumnBins(*key, ids, np.full(len(ids), _fullest(bin)))
            for key, (ids, bin) in truth.columns.items()
        ]
        guesses: dict[str, Sequence[Claim]] = {"fullest-bin": fullest}
        for name, orders in orders_of_own(case, truth.columns).items():
            guesses[name] = [
                _filled(key, *orders[key], bins) for key, bins in truth.columns.items()
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


def _filled(
    key: tuple[str, int],
    ids: NDArray[np.int64],
    rank: NDArray[np.float64],
    truth: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> ColumnBins:
    """Assign bins to rows in the order of their ranks, each bin to as many rows as it contains."""
    # Sorted bins: the row with the k-th smallest rank gets the k-th smallest bin.
    sizes = np.sort(truth[1])
    order = np.argsort(rank, kind="stable")
    bin = np.full(len(ids), _fullest(truth[1]))
    n = min(len(sizes), len(bin))
    bin[order[:n]] = sizes[:n]
    return ColumnBins(*key, ids, bin)
