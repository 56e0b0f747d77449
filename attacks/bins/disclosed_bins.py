"""Infer the bins (buckets) of rows from those that a passive party announces.

For example, FederBoost sends the bin of every row unprotected or with randomised response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.bins.column_shares import likeliest
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Claim, ColumnBins, ColumnRanks, Guess
from fedtrees.core.local_data import LocalData
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import RowBuckets
from fedtrees.privacy.mechanisms import odds_within


@register.attack("bucket-reading")
@dataclass(frozen=True, kw_only=True)
class BucketReading(Attack):
    """Return the most probable bin of every row, given the bin that its party announced.

    Unprotected bins (FederBoost) are the answer. For randomised bins, the distribution of true bins
    is estimated from the announced ones, over all rows and over rows with similar values in a local
    column. The bin with the largest product of prior probability and odds of the announcement is
    chosen.
    """

    claims = (ColumnBins, ColumnRanks)

    supports_regression: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no bins of other parties are seen, else None."""
        seen = any(item.sender not in view.principals for item, _ in view.messages(RowBuckets))
        return None if seen and view.local_data else Reason("no-buckets-received")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the bins of all rows in every announced column, and the ranks they imply."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        epsilon = float(view.parameters.get("epsilon", np.inf))
        claims, own_data, ids = list[Claim](), view.local_data[0], view.local_data[0].ids
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
        return Guess.of(claims, otherwise=Reason("no-buckets-received"))


ToldBins = BucketReading  # former name, for one release


def _likeliest(
    reported: NDArray[np.int64], bins: int, epsilon: float, own_data: LocalData
) -> NDArray[np.int64]:
    """Return the most probable true bin of every row. -1 is replaced by an additional last bin."""
    features = np.column_stack(
        [np.nan_to_num(own_data.X), *([] if own_data.y is None else [own_data.y])]
    )
    reported_bins = np.where(reported < 0, bins - 1, reported)
    likely = likeliest(
        reported_bins, bins, float(odds_within(epsilon)), features.astype(np.float64)
    )
    return np.where((reported < 0) & (likely == bins - 1), -1, likely)


def _ranks(bin: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of rows below each row's bin, and up to it, float64, shape (n,)."""
    counts = np.bincount(bin + 1)
    ends = np.cumsum(counts) / len(bin)
    return (ends - counts / len(bin))[bin + 1], ends[bin + 1]
