"""Base records: records that reach a split of another party for certain.

A base record reaches a split of the victim for certain, because its other values are outside the
intervals of all thresholds on its path. The search (`fedtrees.attacks.queries.attack`) varies the
victim's column of a base record and narrows the interval of the threshold by the answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.endpoint import Endpoint
from fedtrees.attacks.queries.splits import LARGEST, LEFT, Splits
from fedtrees.core.view import View

# Base records that are drawn per threshold. The one that separates the two sides best is used.
_TRIES = 40
# The same for labels and rounded scores, because most splits do not change them.
_HARD_TRIES = 400


@dataclass(frozen=True, eq=False)
class Base:
    """A base record, from which the records of a request are derived.

    Attributes
    ----------
    x : float32 array, shape (d,)
        Values of the record.
    free : tuple of int
        Columns of other parties that do not affect whether the record reaches the split.
    within : tuple of numpy.float32
        Interval of values of the split column with which the record certainly reaches the split.
    lefts : frozenset of int
        If the split column is unknown: the candidate columns whose value is below every threshold.
    apart : float
        How well the answers distinguish the two sides (`Endpoint.apart`).
    """

    x: NDArray[np.float32]
    free: tuple[int, ...] = ()
    within: tuple[np.float32, np.float32] = (np.float32(-np.inf), np.float32(np.inf))
    lefts: frozenset[int] = frozenset()
    apart: float = np.inf


class BaseRecords:
    """Draw base records for the present intervals of thresholds.

    Parameters
    ----------
    view : View
        Local data of the active party.
    rng : numpy.random.Generator
        Draws the records.
    splits : Splits
        Intervals of all thresholds.
    endpoint : Endpoint
        Model of the prediction endpoint.
    leaf_ids : bool
        Whether the endpoint answers with leaf numbers.
    m : int
        Number of records per request, including both ends of the interval.
    """

    def __init__(
        self,
        view: View,
        rng: np.random.Generator,
        splits: Splits,
        endpoint: Endpoint,
        leaf_ids: bool,
        m: int,
    ) -> None:
        self.rng, self.splits, self.endpoint = rng, splits, endpoint
        self.leaf_ids, self.m = leaf_ids, m
        sorted_values = [h.X[np.argsort(h.ids)] for h in view.local_data] or [np.zeros((1, 0))]
        local_values = np.nan_to_num(np.concatenate(sorted_values, axis=1))
        self.local_values = local_values.astype(np.float32)

    @property
    def hidden(self) -> bool:
        """Whether the column of a split is still unknown."""
        return any(u.column < 0 for u in self.splits.unknown)

    def best(self, u: int) -> Base | None:
        """Return the base record that separates the sides of a split best, None if none does."""
        best = None
        rarely_separated = (self.endpoint.labels or self.endpoint.rounded) and not self.hidden
        for _ in range(1 if self.leaf_ids else _HARD_TRIES if rarely_separated else _TRIES):
            candidate = self._reaching(u)
            if candidate is None or self.leaf_ids:
                return candidate
            ways = self.splits.ways(candidate.x)
            candidate = replace(candidate, apart=self.endpoint.apart(ways, u) if ways else 0.0)
            if candidate.apart > (best.apart if best else 0.0):
                best = candidate
                if not self.endpoint.scale and candidate.apart == 1:
                    break
        return best

    def _reaching(self, u: int) -> Base | None:
        """Return a record that reaches one of a threshold's splits for certain.

        The result is None if the known thresholds do not determine a path to any of its splits.
        """
        s, threshold = self.splits, self.splits.unknown[u]
        ends = [bounds for at in threshold.nodes if (bounds := self._bounds(at)) is not None]
        if not ends:
            return None
        lower, upper = ends[self.rng.integers(len(ends))]
        x = self._anything()
        # Columns without bounds do not affect whether the record reaches the split.
        bound = np.isfinite(lower) | np.isfinite(upper)
        x = np.minimum(np.maximum(x, lower), upper)
        if threshold.column < 0:
            count = len(threshold.columns) // 2 if self.leaf_ids else len(threshold.columns) - 1
            lefts = self.rng.permutation(threshold.columns)[:count].tolist()
            x[threshold.columns] = np.minimum(s.most, upper)[threshold.columns]
            x[lefts] = np.maximum(s.least, lower)[lefts]
            return Base(x, lefts=frozenset(lefts))
        c = threshold.column
        within = lower[c], upper[c]
        points = self.points(u, within)
        # The path to the split already excludes all values inside the interval.
        if not len(points):
            return None
        x[c] = points[0]
        if self.hidden and not self.leaf_ids:
            return Base(x, within=within)
        free = np.setdiff1d(np.flatnonzero(~bound), [*s.own_columns, c])
        return Base(x, tuple(free.tolist()), within=within)

    def _anything(self) -> NDArray[np.float32]:
        """Return a record with local values of some row and values of known sides elsewhere."""
        s = self.splits
        if self.leaf_ids:
            x = np.where(self.rng.random(len(s.least)) < 0.5, s.least, s.most)
        # Values below all thresholds turn few splits, which limits the possible paths while split
        # columns are unknown.
        elif self.hidden:
            x = s.least.copy()
        else:
            x = np.array([self._sure_value(c) for c in range(len(s.least))], dtype=np.float32)
        x[s.own_columns] = self.local_values[self.rng.integers(len(self.local_values))]
        return x

    def _bounds(
        self, at: tuple[int, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Return intervals of values that lead a record to a node, None if none is certain."""
        d = len(self.splits.least)
        lower, upper = np.full(d, -np.inf, np.float32), np.full(d, np.inf, np.float32)
        for place, side in self.splits.way_to[at]:
            u = self.splits.unknown[place]
            if u.column < 0:
                return None
            if side == LEFT:
                upper[u.column] = min(upper[u.column], u.low)
            else:
                lower[u.column] = max(lower[u.column], u.high)
        return None if (lower > upper).any() or np.isneginf(upper).any() else (lower, upper)

    def _sure_value(self, column: int) -> np.float32:
        """Return a random value of a column whose side is known at every threshold."""
        s = self.splits
        thresholds = [u for u in s.unknown if column in u.columns]
        values = [s.least[column], s.most[column]]
        values += [v for u in thresholds if u.column >= 0 for v in (u.low, u.high)]
        sure = [
            v
            for v in values
            if np.isfinite(v)
            and all(
                (v <= u.low or v >= u.high)
                if u.column >= 0
                else (v <= s.least[column] or v >= s.most[column])
                for u in thresholds
            )
        ]
        return np.float32(sure[self.rng.integers(len(sure))])

    def points(
        self, u: int, within: tuple[np.float32, np.float32] = Base.within
    ) -> NDArray[np.float32]:
        """Return at most m - 2 values that divide the interval of a threshold.

        If the order of bins is unknown, an end of `within` that lies inside the interval is tried
        first. Its side shows whether the threshold lies beyond that end, because a split of missing
        values from all present values lies outside.
        """
        what = self.splits.unknown[u]
        low, high = max(what.low, within[0]), min(what.high, within[1])
        if np.isnan(what.bin):
            ends = [e for e in within if np.isfinite(e) and what.low < e < what.high]
            if ends:
                return np.array(ends[:1], np.float32)
        if low >= high:
            return np.zeros(0, np.float32)
        # With a declared range, values are spaced evenly. Without it, the float32 numbers are.
        if abs(self.splits.least[what.column]) < LARGEST:
            return _between(low, high, self.m - 2)
        return _between_floats(low, high, self.m - 2)


def _between(low: np.float32, high: np.float32, count: int) -> NDArray[np.float32]:
    """Return values that divide an interval in equal parts, excluding the ends."""
    values = np.linspace(np.float64(low), np.float64(high), count + 2)[1:-1].astype(np.float32)
    values = np.unique(values)
    inside = values[(values > low) & (values < high)]
    if len(inside) or np.nextafter(low, high) >= high:
        return inside
    return np.array([np.nextafter(low, high)])


def _between_floats(low: np.float32, high: np.float32, count: int) -> NDArray[np.float32]:
    """Return values that divide the float32 numbers in an interval equally."""
    # The order of float32 numbers equals the order of their signed bit patterns. Bisection of these
    # positions needs at most 32 steps for an unbounded range.
    ends = [_place(v) for v in (low, high)]
    steps = np.linspace(ends[0], ends[1], count + 2)[1:-1]
    places = np.unique(np.round(steps).astype(np.int64))
    places = places[(places > ends[0]) & (places < ends[1])]
    bits = np.where(places >= 0, places, -places).astype(np.int32)
    magnitudes = bits.view(np.float32)
    return np.where(places >= 0, magnitudes, -magnitudes).astype(np.float32)


def _place(value: np.float32) -> int:
    """Return the position of a number among all float32 numbers, 0 for zero."""
    bits = int(np.float32(abs(value)).view(np.int32))
    return bits if value >= 0 else -bits
