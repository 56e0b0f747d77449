"""Metric `column-ranks`: inferred order of the rows in another party's columns.

It applies to vertical federations in which the adversary has other columns of the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.columns import Measure
from fedtrees.core.guess import Claim, ColumnRanks
from fedtrees.core.registry import register
from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.metrics.orders import misnamed, orders_of_own

#: Half widths of the rank intervals that the blind adversary claims with every order.
REACHES = (0.1, 0.25, 0.4)
# Number of quantiles of a column at which the best common interval may begin and end.
_ENDS = 65


@dataclass(frozen=True, eq=False)
class VictimsOrders:
    """True orders: ids of the rows with a value and their middle ranks, by (owner, feature).

    Ranks are between 0 and 1. Equal values share the mean of their ranks.
    """

    columns: Mapping[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.float64]]]


@register.metric("column-ranks")
class ColumnRanksMetric(Metric[VictimsOrders]):
    """Rank correlation of the inferred order of rows in the victims' columns.

    ``rank_correlation`` is Spearman's correlation of claimed and true ranks, averaged over the
    victims' columns. A column without a claim counts 0, and a row without a claim gets the middle
    rank. ``rank_width`` is the mean width of the claimed rank intervals. It is between 0 (best) and
    1. An interval that does not contain the true rank counts 1.
    """

    of: ClassVar[type[Claim]] = ColumnRanks
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("rank_correlation", "rank correlation of others' columns", "correlation",
                slot="guess", short="rank correlation", head="order recovered", decimals=2,
                severity=70, phrase="order the other parties' values with a rank correlation of {}",
                beside=("bins_read",)),
        Measure("rank_width", "width of ranks", "share of ranks", 0.0, severity=190,
                phrase="narrow ranks down to {} of a column", beside=("rank_correlation",)),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("rank_correlation", "rank_width")

    def truth(self, case: Case) -> VictimsOrders | None:
        """Return the ranks of the victims' columns in rows that a principal has in its local data.

        Columns with less than two different values are omitted. None if there is no such column.
        """
        adversary_ids = [case.local_data[p].ids for p in case.principals if p in case.local_data]
        if not adversary_ids:
            return None
        known_ids, orders = np.unique(np.concatenate(adversary_ids)), {}
        for name, victim in case.victims.items():
            shared = np.isin(victim.ids, known_ids)
            for position, column in enumerate(victim.columns.tolist()):
                x = victim.X[:, position]
                present = shared & ~np.isnan(x)
                if len(np.unique(x[present])) > 1:
                    orders[name, column] = (victim.ids[present], middle_ranks(x[present]))
        return VictimsOrders(orders) if orders else None

    def refuses(self, claims: Sequence[ColumnRanks], case: Case) -> str | None:
        """Refuse columns that no victim has, and columns that are claimed twice."""
        return misnamed([(c.owner, c.feature) for c in claims], case)

    def blind(self, case: Case, truth: VictimsOrders) -> dict[str, Sequence[Claim]]:
        """Return orders by local labels and columns (`fedtrees.metrics.orders`), and intervals.

        Each order is also claimed with rank intervals of the half widths `REACHES`.
        ``one-interval`` claims the same interval for all rows of a column, namely the one of least
        mean width. The blind adversary is granted this interval, which depends on the truth.
        """
        guesses: dict[str, Sequence[Claim]] = {"one-interval": _one_interval(truth)}
        for name, orders in orders_of_own(case, truth.columns).items():
            guesses[name] = [
                ColumnRanks(*key, ids, rank, 0 * rank, 0 * rank + 1)
                for key, (ids, rank) in orders.items()
            ]
            for reach in REACHES:
                guesses[f"{name}-within-{reach:g}"] = [
                    ColumnRanks(
                        *key, ids, rank, np.maximum(rank - reach, 0), np.minimum(rank + reach, 1)
                    )
                    for key, (ids, rank) in orders.items()
                ]
        return {**guesses, **super().blind(case, truth)}

    def score(self, claims: Sequence[ColumnRanks], truth: VictimsOrders) -> list[Score]:
        """Compute correlation and width, averaged over all columns of the victims."""
        claimed = {(c.owner, c.feature): c for c in claims}
        correlation, width = [], []
        for key, (ids, rank) in truth.columns.items():
            guess, low, high = (np.full(len(ids), end) for end in (0.5, 0.0, 1.0))
            c = claimed.get(key)
            if c is not None:
                _, true_at, guessed_at = np.intersect1d(ids, c.ids, return_indices=True)
                guess[true_at], low[true_at], high[true_at] = (
                    c.rank[guessed_at],
                    c.low[guessed_at],
                    c.high[guessed_at],
                )
            guess = middle_ranks(guess)
            # The correlation is undefined for constant ranks. They contain no order and count 0.
            flat = guess.std() == 0
            correlation.append(0.0 if flat else float(np.corrcoef(guess, rank)[0, 1]))
            inside = (low <= rank) & (rank <= high)
            width.append(float(np.where(inside, np.minimum(high - low, 1.0), 1.0).mean()))
        return [
            Score("rank_correlation", float(np.mean(correlation))),
            Score("rank_width", float(np.mean(width))),
        ]


def _one_interval(truth: VictimsOrders) -> list[Claim]:
    """Return for every column the common interval of all rows that has the best `rank_width`."""
    claims: list[Claim] = []
    for key, (ids, rank) in truth.columns.items():
        # A row inside an interval of width w counts w, and a row outside counts 1. The mean is
        # smallest where the share of rows inside times (1 - w) is largest.
        # Ends are restricted to quantiles, because the search over all pairs of ranks is quadratic.
        ends = np.unique(np.quantile(rank, np.linspace(0, 1, _ENDS), method="nearest"))
        order = np.sort(rank)
        below = np.searchsorted(order, ends, side="left")
        up_to = np.searchsorted(order, ends, side="right")
        inside = (up_to[None, :] - below[:, None]) / len(rank)
        saved = np.where(ends[None, :] >= ends[:, None], inside, 0.0) * (
            1 - np.maximum(ends[None, :] - ends[:, None], 0.0)
        )
        low, high = np.unravel_index(int(saved.argmax()), saved.shape)
        interval = np.full(len(ids), ends[low]), np.full(len(ids), ends[high])
        claims.append(ColumnRanks(*key, ids, np.full(len(ids), 0.5), *interval))
    return claims
