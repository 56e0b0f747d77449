"""Guessed orders of rows against the victims' columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.guess import Claim, ColumnRanks
from fedtrees.core.registry import register
from fedtrees.metrics.metric import Case, Metric, Score


@dataclass(frozen=True, eq=False)
class VictimsOrders:
    """Ids and middle ranks, 0 to 1, of the rows that have a value, by (owner, feature)."""

    columns: Mapping[tuple[str, int], tuple[NDArray[np.int64], NDArray[np.float64]]]


@register.metric("column-ranks")
class ColumnRanksMetric(Metric[VictimsOrders]):
    """How well the order of rows in the victims' columns is known.

    ``rank_correlation``: Spearman's, of claimed with true ranks, mean over the victims' columns; a
    column that is not claimed counts 0, a row that is left out stands in the middle.
    ``rank_width``: mean width of the claimed intervals of ranks; one that misses the middle rank of
    the value is as wide as all, 1.
    """

    of: ClassVar[type[Claim]] = ColumnRanks
    main: ClassVar[tuple[str, ...]] = ("rank_correlation", "rank_width")

    def truth(self, case: Case) -> VictimsOrders | None:
        """Return columns of rows whose other columns a principal holds; None if there are none."""
        own = [case.holdings[p].ids for p in case.principals if p in case.holdings]
        if not own:
            return None
        known, found = np.unique(np.concatenate(own)), {}
        for name, held in case.victims.items():
            shared = np.isin(held.ids, known)
            for place, column in enumerate(held.columns.tolist()):
                x = held.X[:, place]
                there = shared & ~np.isnan(x)
                if len(np.unique(x[there])) > 1:
                    found[name, column] = (held.ids[there], _middle_ranks(x[there]))
        return VictimsOrders(found) if found else None

    def refuses(self, claims: Sequence[ColumnRanks], case: Case) -> str | None:
        """Refuse columns that no victim has, or one that is claimed twice."""
        named = [(c.owner, c.feature) for c in claims]
        if len(set(named)) < len(named):
            return "it claimed the order of a column more than once"
        for owner, feature in named:
            if owner not in case.victims or feature not in case.victims[owner].columns:
                return f"it claimed column {feature} of {owner!r}; no victim has it"
        return None

    def blind(self, case: Case, truth: VictimsOrders) -> dict[str, Sequence[Claim]]:
        """Return one order for every column: by the labels, or by what own columns have in common.

        That is their first principal component, turned so that columns grow with it.
        """
        made: dict[str, Sequence[Claim]] = {}
        for name in case.principals:
            held = case.holdings.get(name)
            if held is not None and held.y is not None:
                rank, whole = _middle_ranks(held.y), np.ones(len(held))
                made["own-labels"] = [
                    ColumnRanks(*key, held.ids, rank, 0 * whole, whole) for key in truth.columns
                ]
            if held is not None and len(held.columns):
                rank, whole = _middle_ranks(_main_direction(held.X)), np.ones(len(held))
                made[f"columns-of-{name}"] = [
                    ColumnRanks(*key, held.ids, rank, 0 * whole, whole) for key in truth.columns
                ]
        return {**made, **super().blind(case, truth)}

    def score(self, claims: Sequence[ColumnRanks], truth: VictimsOrders) -> list[Score]:
        """Score all columns together."""
        claimed = {(c.owner, c.feature): c for c in claims}
        correlation, width = [], []
        for key, (ids, rank) in truth.columns.items():
            guess, low, high = (np.full(len(ids), end) for end in (0.5, 0.0, 1.0))
            c = claimed.get(key)
            if c is not None:
                _, mine, theirs = np.intersect1d(ids, c.ids, return_indices=True)
                guess[mine], low[mine], high[mine] = c.rank[theirs], c.low[theirs], c.high[theirs]
            guess = _middle_ranks(guess)
            flat = guess.std() == 0
            correlation.append(0.0 if flat else float(np.corrcoef(guess, rank)[0, 1]))
            inside = (low <= rank) & (rank <= high)
            width.append(float(np.where(inside, np.minimum(high - low, 1.0), 1.0).mean()))
        return [
            Score("rank_correlation", float(np.mean(correlation))),
            Score("rank_width", float(np.mean(width)), best=0.0),
        ]


def _main_direction(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first principal component of the standardised columns, float64, shape (n,)."""
    centred = X.astype(np.float64) - np.nanmean(X, axis=0, dtype=np.float64)
    spread = np.nanstd(centred, axis=0)
    Z = np.nan_to_num(centred / np.where(spread > 0, spread, 1.0))
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    found: NDArray[np.float64] = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return found


def _middle_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the share of values below, and half of the equal ones, float64, in (0, 1)."""
    order = np.sort(x)
    ends = (np.searchsorted(order, x, side) for side in ("left", "right"))
    return np.asarray(sum(ends) / (2 * len(x)), dtype=np.float64)
