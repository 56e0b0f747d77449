"""Attacks on a captured vertical XGBoost training, which sends gradients and splits unencrypted.

`clear-gradients` infers the labels of all rows, and `split-values` infers values of columns of
other parties.

The values of a column are estimated from the known values and from bounds on its rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.forests import announced_rows, value_ends
from fedtrees.core.attack import Attack
from fedtrees.core.claims import ColumnValues, Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import BestSplits, RowGradients
from fedtrees.messages.vertical import TreeColumns

#: Largest number of decimal places that is tried.
_PLACES = 6
#: Values extend beyond the known ones by this share of their range if no range is declared.
_BEYOND = 0.25
# Iterations from equal densities. More of them make a few values too probable. On diabetes, the
# score is .411 with three iterations and .399 with more.
_STEPS = 3


def decimals(values: NDArray[np.float32]) -> int | None:
    """Return the smallest number of decimal places that represents all values, None above six."""
    for places in range(_PLACES + 1):
        if (np.round(values.astype(np.float64), places).astype(np.float32) == values).all():
            return places
    return None


def spread(
    read: NDArray[np.float32],
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    declared: tuple[float, float],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Estimate the values of all rows of a column.

    The rows between two known values are spread evenly over the numbers with the same number of
    decimal places, for example over 1.1, 1.2 and 1.3 between 1.0 and 1.4.

    Parameters
    ----------
    read : float32 array, shape (k,)
        Known values, ascending.
    low, high : float32 array, shape (n,)
        Bounds on the rows' values, infinite if unknown.
    declared : tuple of float
        Declared range of the column, NaN if there is none.

    Returns
    -------
    values : float32 array, shape (m,)
        Distinct values, which include all known ones.
    counts : int64 array, shape (m,)
        Number of rows with each value.
    """
    places, width = decimals(read), float(read[-1] - read[0])
    least, greatest = (
        quantile if np.isnan(end) else end
        for quantile, end in zip((read[0] - _BEYOND * width, read[-1] + _BEYOND * width), declared,
                           strict=True)
    )  # fmt: skip
    if places is None or greatest <= least or not len(low):
        return read, np.ones(len(read), np.int64)
    ends = np.unique(
        np.append(np.clip(read, least, greatest), (least, greatest)).astype(np.float64)
    )
    share = _shares(ends, low.astype(np.float64), high.astype(np.float64))
    quantile = (np.arange(len(low)) + 0.5) / len(low)
    estimated = np.interp(quantile, np.append(0.0, np.cumsum(share)), ends)
    rounded = np.round(estimated, places).astype(np.float32) + np.float32(0)
    missed = np.setdiff1d(read, rounded)
    values, counts = np.unique(np.append(rounded, missed), return_counts=True)
    return values, counts.astype(np.int64)


def _shares(
    ends: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Estimate the shares of rows between `ends` from interval data by EM (Turnbull 1976)."""
    width = np.diff(ends)
    inside = (low[:, None] < ends[None, 1:]) & (high[:, None] > ends[None, :-1])
    share = width / width.sum()
    for _ in range(_STEPS):
        responsibility = inside * share
        share = (
            responsibility / np.maximum(responsibility.sum(axis=1, keepdims=True), 1e-300)
        ).mean(axis=0)
    return share / share.sum()


@register.attack("clear-gradients")
@dataclass(frozen=True, kw_only=True)
class ClearGradients(Attack):
    """Infer every row's label from the sign of its gradient.

    XGBoost's column split broadcasts the gradients of all rows to all parties (``aggregator.h``).
    The gradient of a row of class 1 is p - 1, which is negative, and that of class 0 is p, in every
    round.
    """

    claims = (Labels,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no gradients of rows whose labels they lack."""
        seen = any(i.sender not in view.principals for i, _ in view.messages(RowGradients))
        unlabelled = view.local_data and all(local_data.y is None for local_data in view.local_data)
        return None if seen and unlabelled else Reason("no-gradients-in-clear")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the labels of all rows."""
        received = [m for i, m in view.messages(RowGradients) if i.sender not in view.principals]
        if not received or not view.local_data:
            return Guess.none(Reason("no-gradients-in-clear"))
        y = (received[0].g < 0).astype(np.int64)
        return Guess((Labels(view.local_data[0].ids, y, np.eye(2)[y]),))


@register.attack("split-values")
@dataclass(frozen=True, kw_only=True)
class SplitValues(Attack):
    """Infer values of other parties' columns from their best splits, chosen or not.

    Every party broadcasts its best split of every node (``evaluate_splits.h``). The cut points of
    XGBoost are values of the column, so that a threshold is a value of some row. The thresholds of
    splits that were not chosen occur in no model.
    """

    claims = (ColumnValues,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no best split of another party, None if they do."""
        seen = any(m.owner not in view.principals for _, m in view.messages(BestSplits))
        return None if seen else Reason("no-best-splits")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the thresholds, each as the value of at least one row.

        Diagnostics: ``splits`` counts the splits of other parties with a positive gain, and
        ``splits_that_lost`` those that were not chosen.
        """
        party_columns = {m.party: m.columns for _, m in view.messages(TreeColumns)}
        best: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        thresholds: dict[tuple[str, int], set[float]] = defaultdict(set)
        for _, m in view.messages(BestSplits):
            for node, gain in zip(m.node.tolist(), m.gain.tolist(), strict=True):
                best[m.round, node][m.first] = gain
        lost = total = 0
        for m in {(m.round, m.level, m.owner): m for _, m in view.messages(BestSplits)}.values():
            if m.owner in view.principals or m.owner not in party_columns:
                continue
            for k in np.flatnonzero(m.gain > 0).tolist():
                column = int(party_columns[m.owner][m.feature[k] - m.first])
                thresholds[m.owner, column].add(float(m.threshold[k]))
                rivals, total = best[m.round, int(m.node[k])], total + 1
                # XGBoost chooses the largest gain, and the first party among equal gains.
                lost += max(rivals, key=lambda f: (rivals[f], -f)) != m.first
        claims, ends, ranges = [], value_ends(view), view.schema.ranges
        anywhere = tuple(
            np.full(announced_rows(view), end, np.float32) for end in (-np.inf, np.inf)
        )
        for (owner, column), values in sorted(thresholds.items()):
            known_values = np.unique(np.array(sorted(values), np.float32))
            low, high = ends.get(column, anywhere)
            present = ~np.isnan(low)
            estimate = spread(
                known_values, low[present], high[present], (ranges[0][column], ranges[1][column])
            )
            claims.append(ColumnValues(owner, column, *estimate, False))
        notes = {"splits": float(total), "splits_that_lost": float(lost)}
        return Guess.of(claims, notes, otherwise=Reason("no-best-splits"))
