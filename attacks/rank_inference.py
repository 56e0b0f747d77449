"""Attack `split-ordering`: infer the order of rows in columns of other parties.

The adversary is the active party of a vertical federation. The owners of split columns send it the
rows on each side of a split, so that all splits of a column restrict each row to an interval of
ranks.

Within its interval, the rank of a row is estimated from the adversary's local data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fedtrees.attacks.observations.forests import column_owners, rank_ends, value_ends
from fedtrees.blind_baselines.rows import most_similar_column
from fedtrees.core.attack import Attack
from fedtrees.core.claims import ColumnRanks, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import BinCounts, ChosenSplits, OpenedBinSums, replayed

# Iterations of the EM algorithm.
_STEPS = 30
# Ridge penalty on every coefficient.
_RIDGE = 1.0


def encode_local_data(view: View) -> NDArray[np.float64]:
    """Return local columns as centred ranks, and one-hot labels, float64, shape (n, c).

    The columns of all principals come first, in the order of `view.local_data`, and then the
    labels.
    """
    ids, parts, labels = view.local_data[0].ids, [], []
    for local_data in view.local_data:
        order = np.argsort(local_data.ids)[np.argsort(np.argsort(ids))]
        parts += [_centred_ranks(x) for x in local_data.X[order].T]
        if local_data.y is not None and view.schema.classes:
            labels += [
                (local_data.y[order] == k) - np.mean(local_data.y == k)
                for k in np.unique(local_data.y)[1:]
            ]
        elif local_data.y is not None:
            labels.append(_centred_ranks(local_data.y[order]))
    parts += labels
    return np.column_stack(parts) if parts else np.zeros((len(ids), 0))


def expected_ranks(
    local_ranks: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    adjust: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float64]:
    """Estimate the rank of every row from its interval and the adversary's local data.

    The model is a normal regression of ranks on local columns, fitted to intervals by EM (the
    censored regression of Amemiya 1973, with both ends known).

    Parameters
    ----------
    local_ranks : float64 array, shape (n, c)
        Local columns as centred ranks.
    low, high : float64 array, shape (n,)
        Interval of each rank, 0 to 1.
    adjust : callable or None
        Adjusts the regression's predictions by further evidence, float64 arrays of shape (n,).

    Returns
    -------
    rank : float64 array, shape (n,)
    """
    X = np.column_stack([np.ones(len(low)), local_ranks])
    gram = X.T @ X + _RIDGE * np.eye(X.shape[1])
    rank, spread = (low + high) / 2, np.sqrt(1 / 12)
    extra = np.zeros(len(low))
    for _ in range(_STEPS):
        # M step: regression of the expected ranks. The E step below computes them from the
        # intervals.
        mean = X @ np.linalg.solve(gram, X.T @ rank)
        spread = max(float(np.sqrt(((rank - mean) ** 2 + extra).mean())), 1e-3)
        mean = mean if adjust is None else adjust(mean)
        rank, extra = _truncated_moments(mean, spread, low, high)
    return rank


def better_ranks(
    local_ranks: NDArray[np.float64],
    similar_column: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> tuple[NDArray[np.float64], bool]:
    """Return expected ranks by all local columns or by one of them, whichever predicts better.

    Both regressions are fitted to the intervals of one half of the rows and compared with the
    intervals of the other half.

    Parameters
    ----------
    local_ranks : float64 array, shape (n, c)
        Local columns as centred ranks.
    similar_column : float64 array, shape (n, 1)
        The column with the most similar name.
    low, high : float64 array, shape (n,)
        Interval of each rank, 0 to 1.

    Returns
    -------
    rank : float64 array, shape (n,)
    named : bool
        Whether the ranks were estimated from the one column.
    """
    first_half = np.arange(len(low)) % 2 == 0
    fits = [
        _agreement([expected_ranks(x, np.where(part, 0.0, low), np.where(part, 1.0, high))[part]
                    for part in (first_half, ~first_half)],
                   [(low + high)[part] for part in (first_half, ~first_half)])
        for x in (local_ranks, similar_column)
    ]  # fmt: skip
    named = fits[1] >= fits[0]
    return expected_ranks(similar_column if named else local_ranks, low, high), named


def _agreement(predicted: list[NDArray[np.float64]], observed: list[NDArray[np.float64]]) -> float:
    """Return the mean correlation of predicted with observed ranks, 0 for constants."""
    pairs = [
        (a, b) for a, b in zip(predicted, observed, strict=True) if np.ptp(a) > 0 and np.ptp(b) > 0
    ]
    return float(np.sum([np.corrcoef(a, b)[0, 1] for a, b in pairs])) / len(predicted)


def common_ranks(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks, 0 to 1, along the first principal component of columns.

    Its sign is chosen such that the ranks increase with most columns.
    """
    spread = columns.std(axis=0)
    Z = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    if not Z.any():
        return np.full(len(columns), 0.5)
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    along = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return _centred_ranks(along) + 0.5


def _truncated_moments(
    mean: NDArray[np.float64], spread: float, low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and variances of normal variables truncated to intervals."""
    a, b = (low - mean) / spread, (high - mean) / spread
    # Differences of the distribution function are accurate in the lower tail only. Intervals above
    # the mean are therefore mirrored.
    flip = a + b > 0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    mass = np.maximum(ndtr(b) - ndtr(a), 1e-300)
    density = [np.exp(-0.5 * np.clip(z, -38, 38) ** 2) / np.sqrt(2 * np.pi) for z in (a, b)]
    shift = np.where(flip, -1, 1) * (density[0] - density[1]) / mass
    variance = 1 + (a * density[0] - b * density[1]) / mass - shift**2
    # The mass underflows far from the mean. The middle of the interval replaces the mean there.
    far = (log_ndtr(b) < -300) | (b - a < 1e-6)
    middle = (low + high) / 2
    return (
        np.where(far, middle, np.clip(mean + spread * shift, low, high)),
        np.where(far, 0.0, np.clip(variance, 0.0, 1.0) * spread**2),
    )


def _centred_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return mid-ranks minus one half, 0 for a missing value."""
    present = ~np.isnan(x)
    order = np.sort(x[present])
    ends = np.searchsorted(order, x, "left") + np.searchsorted(order, x, "right")
    return np.where(present, ends / (2 * max(len(order), 1)) - 0.5, 0.0)


@dataclass(frozen=True, eq=False)
class RankBounds:
    """Known ranks of the rows in one column of another party.

    Attributes
    ----------
    owner : str
        Party that has the column.
    low, high : float64 array, shape (N,)
        Smallest and largest possible rank of every row, 0 to 1.
    """

    owner: str
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@register.attack("split-ordering")
@dataclass(frozen=True, kw_only=True)
class SplitOrdering(Attack):
    """Bound every row's bin in a column by the splits of that column on the row's path.

    Luo et al. 2021 (Sec. IV, path restriction) bound values by the paths that agree with a
    prediction. The active party of a training does not need to guess paths, because the column
    owners send it the rows that go left at each split. All splits of a column, over all trees,
    leave each row an interval of bins. The sums that were opened at tree roots show how many rows
    each bin contains, so that the interval of bins is an interval of
    ranks. For example, a row that went left at a split with 40% of all rows on the left has a rank
    of at most 0.4.

    The rank within the interval is estimated from the local columns and labels, or from the local
    column with the most similar name if it predicts the splits better (`better_ranks`). A column
    without a split is guessed from that column, or from the first principal component of the local
    and the split columns. The attack `linear-reconstruction` also uses the sums.

    Parameters
    ----------
    own_columns : bool
        Whether to use the local columns. If not, the guess is the middle of the interval.
    """

    claims = (ColumnRanks,)

    supports_regression: ClassVar[bool] = True

    own_columns: bool = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why no split of another party is known to the principals, None if one is."""
        if not view.local_data or not _bounds(view):
            return Reason("no-splits")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the ranks of the rows in every column of other parties."""
        bounds, claims = _bounds(view), []
        if not bounds:
            return Guess.none(Reason("no-splits"))
        ids, local_data = view.local_data[0].ids, encode_local_data(view)
        local_columns, name_votes = (
            [
                int(c)
                for local_data_of_party in view.local_data
                for c in local_data_of_party.columns
            ],
            0,
        )
        for column, bound in sorted(bounds.items()):
            rank = (bound.low + bound.high) / 2
            if self.own_columns and local_columns:
                similar = most_similar_column(view.schema, local_columns, column)
                similar_column = local_data[:, [similar]]
                rank, used_name = better_ranks(local_data, similar_column, bound.low, bound.high)
                name_votes += 1 if used_name else -1
            elif self.own_columns:
                # Without local columns, ranks are estimated from the labels only.
                rank = expected_ranks(local_data, bound.low, bound.high)
            claims.append(ColumnRanks(bound.owner, column, ids, rank, bound.low, bound.high))
        if self.own_columns:
            common = common_ranks(np.column_stack([local_data, *(c.rank - 0.5 for c in claims)]))
            highest_rank = np.ones(len(ids))
            for column, owner in sorted(owners_of_others(view).items()):
                if column not in bounds:
                    order = common
                    # The similar column was better for most columns with splits, so it is used for
                    # the remaining ones.
                    if name_votes > 0:
                        similar = most_similar_column(view.schema, local_columns, column)
                        order = local_data[:, similar] + 0.5
                    claims.append(
                        ColumnRanks(owner, column, ids, order, 0 * highest_rank, highest_rank)
                    )
        return Guess.of(claims, otherwise=Reason("no-splits"))


def _bounds(view: View) -> dict[int, RankBounds]:
    """Return the ranks that splits allow, by column of other parties.

    If candidates differ between nodes, bins have no common ranks. A split then still shows that the
    rows on the right have at least as many rows below them as there are on the left, and vice
    versa.
    """
    owners = owners_of_others(view)
    shares = cumulative(view)
    bounds: dict[int, RankBounds] = {}
    for split in _splits(view):
        if split.column not in owners:
            continue
        if split.column not in bounds:
            zeros = np.zeros(view.n_rows)
            bounds[split.column] = RankBounds(owners[split.column], zeros, zeros + 1)
        bound, n = bounds[split.column], view.n_rows
        below, above = len(split.left) / n, 1 - len(split.right) / n
        # With global candidates, a split at a bin is a split at a known rank.
        if split.column in shares:
            below = above = float(shares[split.column][max(split.bin, -1) + 1])
        bound.high[split.left] = np.minimum(bound.high[split.left], above)
        bound.low[split.right] = np.maximum(bound.low[split.right], below)
    for column, ends in value_ends(view).items():
        bounds[column] = RankBounds(owners[column], *rank_ends(*ends))
    # A missing value follows the default direction and has no rank. Its bounds may contradict each
    # other.
    for bound in bounds.values():
        np.minimum(bound.low, bound.high, out=bound.low)
    return bounds


def owners_of_others(view: View) -> dict[int, str]:
    """Return the party of every announced column that no principal has, by column."""
    local_columns = {int(c) for local_data in view.local_data for c in local_data.columns}
    announced = ((int(c), m.party) for _, m in view.messages(BinCounts) for c in m.columns)
    return {c: party for c, party in announced if c not in local_columns} | column_owners(view)


@dataclass(frozen=True, eq=False)
class Split:
    """A split that the principals requested, with the rows on either side."""

    column: int
    bin: int
    left: NDArray[np.int32]
    right: NDArray[np.int32]


def _splits(view: View) -> Iterator[Split]:
    """Yield the splits that the principals requested and whose sides they received."""
    trees = replayed(view)
    for _, m in view.messages(ChosenSplits):
        node_numbers = set(trees[m.tree].nodes) if m.tree in trees else set()
        for left, column, bin in zip(m.left.tolist(), m.columns, m.bins, strict=True):
            if left in node_numbers:
                sides = (trees[m.tree].rows_of(child) for child in (left, left + 1))
                yield Split(int(column), int(bin), *sides)


def cumulative(view: View) -> dict[int, NDArray[np.float64]]:
    """Return the share of rows up to each bin of a column, float64, (bins + 1,), first 0.

    The shares come from the first sums that were opened at a root. These are hessians, which are
    equal for all rows before the first tree, or class counts. The result is empty if candidates
    differ between nodes or a defense changes the sums.
    """
    shares: dict[int, NDArray[np.float64]] = {}
    global_bins = view.parameters.get("candidates", "global") == "global"
    if not global_bins or view.changes(OpenedBinSums, "sums"):
        return shares
    forest = "reg_lambda" not in view.parameters
    widths: dict[int, int] = {}
    for _, counts in view.messages(BinCounts):
        widths |= dict(zip(counts.columns.tolist(), counts.n_bins.tolist(), strict=True))
    for _, m in view.messages(OpenedBinSums):
        if len(m.nodes) != 1 or m.nodes[0] != 0:
            continue
        ends = np.cumsum([0, *(widths[c] for c in m.columns.tolist())])
        for column, a, b in zip(m.columns.tolist(), ends[:-1], ends[1:], strict=True):
            sums = m.sums[0, a:b].astype(np.float64)
            # Class counts of a forest add up to rows. Hessians are proportional to rows before the
            # first tree.
            rows = sums.sum(axis=1) if forest else sums[:, 1]
            total = np.cumsum(rows)
            if column not in shares and len(total) and total[-1] > 0:
                shares[column] = np.concatenate([[0.0], total / total[-1]])
    return shares
