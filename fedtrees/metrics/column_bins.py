"""Guessed bins of rows against those that the victims' columns have."""

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
    """Ids and bins of rows, -1 for no value, by (owner, feature)."""

    columns: Mapping[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@register.metric("column-bins")
class ColumnBinsMetric(Metric[VictimsBins]):
    """Share of the cells of the victims' columns whose bin is named exactly.

    A cell without a value counts: naming it so is right. Columns that are not claimed are filled
    from the best blind guess. That one is told more than it can know: how many rows of each column
    are in every bin.
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
        """Return bins of rows whose ids a principal knows; None if there are none."""
        own = [case.local_data[p].ids for p in case.principals if p in case.local_data]
        if not own:
            return None
        known, found = np.unique(np.concatenate(own)), {}
        for (owner, feature), bin in case.bins_of_rows.items():
            if owner in case.victims:
                ids = case.victims[owner].ids
                shared = np.isin(ids, known)
                found[owner, feature] = ids[shared], bin[shared]
        return VictimsBins(found) if found else None

    def refuses(self, claims: Sequence[ColumnBins], case: Case) -> str | None:
        """Refuse columns that no victim has, or one that is claimed twice."""
        return misnamed([(c.owner, c.feature) for c in claims], case)

    def blind(self, case: Case, truth: VictimsBins) -> dict[str, Sequence[Claim]]:
        """Return the fullest bin of every column; and bins filled in the order of own data.

        The orders are those of `fedtrees.metrics.orders`.
        """
        fullest = [
            ColumnBins(*key, ids, np.full(len(ids), _fullest(bin)))
            for key, (ids, bin) in truth.columns.items()
        ]
        made: dict[str, Sequence[Claim]] = {"fullest-bin": fullest}
        for name, orders in orders_of_own(case, truth.columns).items():
            made[name] = [_filled(key, *orders[key], at) for key, at in truth.columns.items()]
        return {**made, **super().blind(case, truth)}

    def completed(
        self,
        claims: Sequence[ColumnBins],
        truth: VictimsBins,
        blind: Callable[[], Sequence[ColumnBins]],
    ) -> Sequence[ColumnBins]:
        """Fill columns that are not claimed."""
        claimed = {(c.owner, c.feature) for c in claims}
        if claimed >= set(truth.columns):
            return claims
        return [*claims, *(c for c in blind() if (c.owner, c.feature) not in claimed)]

    def counted(self, truth: VictimsBins) -> int:
        """Return the number of cells."""
        return sum(len(ids) for ids, _ in truth.columns.values())

    def score(self, claims: Sequence[ColumnBins], truth: VictimsBins) -> list[Score]:
        """Score all cells together; a row that is left out is wrong."""
        claimed = {(c.owner, c.feature): c for c in claims}
        right = 0
        for key, (ids, bin) in truth.columns.items():
            if key in claimed:
                _, mine, theirs = np.intersect1d(ids, claimed[key].ids, return_indices=True)
                right += int((bin[mine] == claimed[key].bin[theirs]).sum())
        return [Score("bins_read", right / max(self.counted(truth), 1))]


def _fullest(bin: NDArray[np.int64]) -> int:
    return int(np.bincount(bin + 1).argmax()) - 1


def _filled(
    key: tuple[str, int],
    ids: NDArray[np.int64],
    rank: NDArray[np.float64],
    truth: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> ColumnBins:
    """Fill bins from the lowest rank on, each with as many rows as it has."""
    sizes = np.sort(truth[1])
    order = np.argsort(rank, kind="stable")
    bin = np.full(len(ids), _fullest(truth[1]))
    n = min(len(sizes), len(bin))
    bin[order[:n]] = sizes[:n]
    return ColumnBins(*key, ids, bin)
