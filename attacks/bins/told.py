"""`told-bins`: what a passive party says of the bins of its rows, taken as it is."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.bins.beside import likeliest
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, ColumnBins, ColumnRanks, Guess
from fedtrees.core.local_data import LocalData
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import RowBuckets
from fedtrees.privacy.randomised_response import odds_within


@register.attack("told-bins")
@dataclass(frozen=True, kw_only=True)
class ToldBins(Attack):
    """Name the likeliest bin of every row, given the one that its party told.

    Bins in clear (FederBoost) are the answer. Of randomised ones the shares of true bins, over all
    rows and over those with like values in an own column, follow from those of answers; a row is in
    the bin for which share times odds of the answer is greatest.
    """

    claims = (ColumnBins, ColumnRanks)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why no bins of others are seen, None if some are."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(RowBuckets))
        return None if seen and view.own else Reason("no-bins-told")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the bins of all rows in every column that was told, and ranks by them."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        epsilon = float(view.parameters.get("epsilon", np.inf))
        claims, own_data, ids = list[Claim](), view.own[0], view.own[0].ids
        for item, message in view.messages(RowBuckets):
            if item.sender in view.principals:
                continue
            for column, n, reported in zip(
                message.columns.tolist(), message.n_bins.tolist(), message.bins, strict=True
            ):
                clear = bool(np.isinf(epsilon))
                every = n if view.schema.complete[column] else n + 1
                bin = (
                    reported.astype(np.int64)
                    if clear
                    else _likeliest(reported, every, epsilon, own_data)
                )
                claims.append(ColumnBins(item.sender, column, ids, bin))
                low, high = _ranks(bin)
                middle, none = (low + high) / 2, np.zeros(len(ids))
                bounds = (low, high) if clear else (none, none + 1)
                claims.append(ColumnRanks(item.sender, column, ids, middle, *bounds))
        return Guess.of(claims, otherwise=Reason("no-bins-told"))


def _likeliest(
    reported: NDArray[np.int64], bins: int, epsilon: float, own_data: LocalData
) -> NDArray[np.int64]:
    """Return the likeliest true bin of every row; the last stands for no value where -1 may be."""
    features = np.column_stack(
        [np.nan_to_num(own_data.X), *([] if own_data.y is None else [own_data.y])]
    )
    reported_bins = np.where(reported < 0, bins - 1, reported)
    likely = likeliest(
        reported_bins, bins, float(odds_within(epsilon)), features.astype(np.float64)
    )
    return np.where((reported < 0) & (likely == bins - 1), -1, likely)


def _ranks(bin: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares of rows below each row's bin, and up to it, float64, shape (n,)."""
    counts = np.bincount(bin + 1)
    ends = np.cumsum(counts) / len(bin)
    return (ends - counts / len(bin))[bin + 1], ends[bin + 1]
