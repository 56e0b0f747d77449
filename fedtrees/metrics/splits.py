"""Metrics `column-ranks` and `moved-cuts`, about the position of values relative to splits.

- `column-ranks`: the inferred order of the rows in another party's columns, in vertical
  federations. Columns of a table are often correlated, so that the order of the rows in a local
  column is a guess of their order in another party's column. The metrics `column-ranks` and
  `column-bins` use these orders as blind baselines.
- `moved-cuts`: success of a malicious client that sends a false quantile sketch, so that merged cut
  points or splits of tree roots fall into windows that it chose. A value of a victim that is the
  only one in its bin can then be isolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.rows import most_similar_column
from fedtrees.core.claims import Claim, ColumnRanks, CutWindows
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.cut_points import local_sketch, merge_sketches

#: Ids and ranks of rows, shape (n,) each.
Order = tuple[NDArray[np.int64], NDArray[np.float64]]
#: Owner of a column, and its position in the schema.
Key = tuple[str, int]


def orders_of_own(
    case: Case, columns: Mapping[Key, tuple[NDArray[np.int64], Any]]
) -> dict[str, dict[Key, Order]]:
    """Return guesses of the order of rows in columns of other parties.

    Rows are ordered by the labels of a principal, by the first principal component of its columns,
    and by its column with the most similar name. For example, *mean radius* is ordered by *worst
    radius*. Colluding principals also use their columns together. A principal can have rows that a
    column does not have. They are omitted before the remaining rows are ranked, because they have
    no rank in this column.

    Parameters
    ----------
    case : Case
        Provides the local data of the principals.
    columns : mapping of (str, int) to tuple
        Columns to guess, by owner and position. The first entry of each tuple contains the ids of
        the rows of the column.

    Returns
    -------
    orders : dict of str to dict
        By the name of the guess, ids and ranks of the local rows for every column. The ids are a
        subset of the ids of the column.
    """
    keys, orders = list(columns), {}

    def restricted(order: Order, key: Key) -> Order:
        ids, rank = order
        shared = np.isin(ids, columns[key][0])
        return (ids, rank) if shared.all() else (ids[shared], middle_ranks(rank[shared]))

    for name_of_order, order in _common_orders(case).items():
        orders[name_of_order] = {key: restricted(order, key) for key in keys}
    for name, local_data in _parts_with_columns(case).items():
        # Missing values are ranked at the mean of their column.
        ranks = [middle_ranks(np.nan_to_num(x, nan=np.nanmean(x))) for x in local_data.X.T]
        similar = {
            key: most_similar_column(case.schema, local_data.columns, key[1]) for key in keys
        }
        orders[f"names-of-{name}"] = {
            key: restricted((local_data.ids, ranks[position]), key)
            for key, position in similar.items()
        }
    return orders


def _parts_with_columns(case: Case) -> dict[str, LocalData]:
    """Return the local data of every principal that has columns, by name.

    The entry ``all`` contains the columns of all of them, if there are several. A coalition can use
    them together.
    """
    parts = {name: h for name, h in case.adversary.items() if len(h.columns)}
    if len(parts) < 2:
        return parts
    ids = reduce(np.intersect1d, [part.ids for part in parts.values()])
    if not len(ids):
        return parts
    at = [np.intersect1d(ids, part.ids, return_indices=True)[2] for part in parts.values()]
    X = np.hstack([part.X[rows] for part, rows in zip(parts.values(), at, strict=True)])
    columns = np.concatenate([part.columns for part in parts.values()])
    return {**parts, "all": LocalData(ids, columns, X)}


def _common_orders(case: Case) -> dict[str, Order]:
    """Return the orders that are guessed for all columns: by labels, and by the main direction."""
    orders = {
        f"labels-of-{name}": (local_data.ids, middle_ranks(local_data.y))
        for name, local_data in case.adversary.items()
        if local_data.y is not None
    }
    for name, local_data in _parts_with_columns(case).items():
        orders[f"columns-of-{name}"] = local_data.ids, middle_ranks(main_direction(local_data.X))
    return orders


def misnamed(named: Sequence[tuple[str, int]], case: Case) -> str | None:
    """Return why claims about columns (owner and position) are invalid, None if they are valid."""
    if len(set(named)) < len(named):
        return "it claimed a column more than once"
    for owner, feature in named:
        if owner not in case.victims or feature not in case.victims[owner].columns:
            return f"it claimed column {feature} of {owner!r}; no victim has it"
    return None


def main_direction(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first principal component of the standardised columns, float64, shape (n,).

    Missing values are replaced by the mean. The sign is chosen so that the weights of the columns
    have a non-negative sum.
    """
    centred = X.astype(np.float64) - np.nanmean(X, axis=0, dtype=np.float64)
    spread = np.nanstd(centred, axis=0)
    Z = np.nan_to_num(centred / np.where(spread > 0, spread, 1.0))
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    component: NDArray[np.float64] = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return component


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
        Measure("rank_correlation", "rank correlation of other parties' columns", "correlation",
                slot="guess", short="rank correlation", head="order recovered", decimals=2,
                severity=70, phrase="order the other parties' values with a rank correlation of {}",
                covered_by=("bins_read",)),
        Measure("rank_width", "width of ranks", "share of ranks", 0.0, severity=190,
                phrase="narrow ranks down to {} of a column", covered_by=("rank_correlation",)),
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
        """Return orders by local labels and columns (`fedtrees.metrics.splits`), and intervals.

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


@dataclass(frozen=True, eq=False)
class TrainingCuts:
    """Cut points and root splits of a training, and the victims' values.

    Attributes
    ----------
    announced, honest : Cuts
        Cut points that were announced, and those that honest sketches of all parties would give.
    feature : int64 array, shape (n_trees,)
        Column of the split of every root.
    threshold : float64 array, shape (n_trees,)
        Threshold of the split of every root.
    X : float32 array, shape (n, d)
        Complete rows of the victims.
    """

    announced: Cuts
    honest: Cuts
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    X: NDArray[np.float32]


@register.metric("moved-cuts")
class MovedCutsMetric(Metric[TrainingCuts]):
    """Share of root splits and cut points in windows that a malicious client chose.

    ``cuts_won`` is the share of the claimed trees whose root is split in the claimed window. Its
    baseline is the same share of the respective next trees, for which the client does not lie.
    ``cuts_inside`` is the share of all cut points of a claimed column that are in its window.
    ``rows_alone`` is the share of the victims' values in the windows that are the only value of the
    victims in their bin. The baselines of both are computed with cut points of honest sketches.
    """

    of: ClassVar[type[Claim]] = CutWindows
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("cuts_won", "root splits that a client chose", "share of trees",
                klass="diagnostic"),
        Measure("cuts_inside", "cut points where a client wants them", "share of cut points",
                klass="diagnostic"),
        Measure("rows_alone", "values that are the only one in their bin", "share of values",
                klass="group"),
    )  # fmt: skip

    def truth(self, case: Case) -> TrainingCuts | None:
        """Return cut points and root splits.

        None if no common cut points were announced, the model has no trees, or no victim has
        complete rows.
        """
        cuts = case.cuts
        trees, rows = getattr(case.model, "trees", ()), case.victims_rows
        if cuts is None or not trees or rows is None:
            return None
        # Honest sketches are merged to as many bins as the announced cut points have.
        n_bins = max(int(cuts.n_bins.max()), 2)
        sketches = [local_sketch(local_data.X, n_bins) for local_data in case.local_data.values()]
        roots = np.array([(t.feature[0], t.threshold[0]) for t in trees])
        return TrainingCuts(cuts, merge_sketches(sketches, n_bins), roots[:, 0].astype(np.int64),
                       roots[:, 1], rows.X)  # fmt: skip

    def score(self, claims: Sequence[CutWindows], truth: TrainingCuts) -> list[Score]:
        """Score a claim about root splits or about cut points, together with the baseline."""
        (claim,) = claims
        trees = claim.tree >= 0
        if trees.any():
            # The trees after the claimed ones are the baseline, because the client does not lie in
            # them.
            value, blind = (_share_of_root_splits(claim, truth, after) for after in (0, 1))
            return [Score("cuts_won", value, blind)] if value is not None else []
        (inside, alone), (expected, alone_expected) = (
            _shares_in_windows(claim, cuts, truth.X) for cuts in (truth.announced, truth.honest)
        )
        return [Score("cuts_inside", inside, expected), Score("rows_alone", alone, alone_expected)]


def _share_of_root_splits(claim: CutWindows, truth: TrainingCuts, after: int) -> float | None:
    """Return the share of root splits as claimed, looked up `after` trees later.

    None if the model has no such tree.
    """
    exists = claim.tree + after < len(truth.feature)
    tree = claim.tree[exists] + after
    same = truth.feature[tree] == claim.feature[exists]
    within = (claim.low[exists] <= truth.threshold[tree]) & (
        truth.threshold[tree] <= claim.high[exists]
    )
    return float((same & within).mean()) if len(tree) else None


def _shares_in_windows(
    claim: CutWindows, cuts: Cuts, X: NDArray[np.float32]
) -> tuple[float | None, float | None]:
    """Return the share of cut points in the windows, and of values there that are single in a bin.

    A share is None if there is no cut point or no value to count.
    """
    codes = bin_rows(X, cuts).codes
    inside, alone = [], []
    for f, low, high in zip(claim.feature.tolist(), claim.low, claim.high, strict=True):
        # The last border separates no bins, because larger values belong to the last bin.
        inner = cuts.of(f)[:-1]
        inside.append((low <= inner) & (inner <= high))
        codes_in_window = codes[(low <= X[:, f]) & (X[:, f] <= high), f]
        alone.append(np.bincount(codes[:, f])[codes_in_window] == 1)
    shares = (np.concatenate(parts) for parts in (inside, alone))
    a, b = (float(share.mean()) if len(share) else None for share in shares)
    return a, b
