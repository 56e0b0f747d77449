"""Attack `threshold-queries`: find the split thresholds of other parties by bisection.

The adversary is the active party of a vertical federation. It sends chosen records to the
prediction endpoint and infers from the answers on which side of a threshold each record fell.
`Search` sends the requests and narrows the intervals of the thresholds. A base record
(`BaseRecords`) reaches a split of the victim for certain, because its other values are outside the
intervals of all thresholds on its path. The search varies the victim's column of a base record.
`splits` contains the intervals, and `endpoint` the likelihood of an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.endpoint import BELIEVED, Endpoint
from fedtrees.attacks.queries.splits import LARGEST, LEFT, RIGHT, UNKNOWN, Splits, Way
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Thresholds
from fedtrees.core.endpoint import Oracle
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel

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
        sorted_values = [h.X[np.argsort(h.ids)] for h in view.local_data]
        nothing = np.zeros((1, 0), dtype=np.float32)
        local_values = np.nan_to_num(np.concatenate(sorted_values or [nothing], axis=1))
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


#: Numbers of records per request, in the order in which they are tried. The first ones are those of
#: Li et al. 2022.
SIZES = (401, 201, 101, 51, 21, 11, 5, 3)
# Base records in a row without any information, after which the search skips a threshold.
_FAILURES = 3
# Upper limit on the repetitions of one record under noise.
_MOST_REPEATS = 100_000


class OutOfQueries(Exception):
    """Signal that the next request would exceed the query budget."""


class Search:
    """State and steps of one run of the attack.

    Parameters
    ----------
    view : View
        Messages, local data and endpoint of the active party.
    rng : numpy.random.Generator
        Draws base records.
    m, epsilon : int, float
        See `ThresholdQueries`.
    use_split_columns : bool
        Whether to use the split columns that messages contain.
    """

    def __init__(
        self,
        view: View,
        rng: np.random.Generator,
        *,
        m: int,
        epsilon: float,
        use_split_columns: bool,
    ) -> None:
        assert view.oracle is not None
        self.oracle: Oracle = view.oracle
        self.rng, self.splits = rng, Splits(view, use_split_columns=use_split_columns)
        self.leaf_ids = self.oracle.answers == "leaf-ids"
        self.endpoint = Endpoint(view, self.splits.model)
        low, high = view.schema.ranges
        with np.errstate(invalid="ignore"):
            self.end = np.nan_to_num((high - low) * np.float32(epsilon))
        self.noisy = self.endpoint.scale > 0 and not self.leaf_ids
        self.m = m or self._affordable()
        self.bases = BaseRecords(view, rng, self.splits, self.endpoint, self.leaf_ids, self.m)
        self.asked: tuple[int, frozenset[int]] = (-1, frozenset())

    def _affordable(self) -> int:
        """Return the largest number of records per request that fits the budget four times.

        Bisecting 32 bits with m - 2 inner points takes ``32 / log2(m - 1)`` requests per threshold.
        The factor of four leaves room for base records that separate the sides poorly.
        """
        if self.noisy:
            return 3
        open_ones = [u for u in self.splits.unknown if u.victim]
        for m in SIZES:
            records_per_threshold = math.ceil(32 / math.log2(m - 1)) * (m - 2)
            if 4 * records_per_threshold * len(open_ones) <= self.oracle.left:
                return m
        return 3

    def all(self) -> None:
        """Search all thresholds of the victim, from the roots down."""
        depth = {
            u: min(len(self.splits.way_to[at]) for at in threshold.nodes)
            for u, threshold in enumerate(self.splits.unknown)
            if threshold.victim
        }
        order = sorted(depth, key=lambda u: (depth[u], u))
        try:
            before = -1
            # A threshold that was found opens paths to splits further down. The loop ends when one
            # pass makes no progress.
            while before != self._progress():
                before = self._progress()
                for u in order:
                    self._find(u)
        except OutOfQueries:
            pass

    def _progress(self) -> int:
        """Count the thresholds of the victim that are narrow enough."""
        return sum(self._done(u) for u, what in enumerate(self.splits.unknown) if what.victim)

    def _done(self, u: int) -> bool:
        """Return whether the interval of a threshold is narrow enough."""
        what = self.splits.unknown[u]
        if what.column < 0:
            return False
        width = np.float64(what.high) - np.float64(what.low)
        return what.closed or bool(width <= self.end[what.column])

    def _find(self, u: int) -> None:
        """Narrow one threshold with a series of base records."""
        failures = 0
        while not self._done(u) and failures < _FAILURES:
            base = self.bases.best(u)
            if base is None:
                return
            before = self.splits.unknown[u].state
            while not self._done(u) and self._narrow(u, base):
                pass
            failures += self.splits.unknown[u].state == before

    def _narrow(self, u: int, base: Base) -> bool:
        """Send one request and return whether the same base record is still useful."""
        before, what = self.splits.unknown[u].state, self.splits.unknown[u]
        self.asked = u, base.lefts
        if what.column < 0:
            self._ask(u, base.x[None], base.apart)
            return False
        points = self.bases.points(u, base.within)
        if not len(points):
            return False
        X = np.repeat(base.x[None], len(points), axis=0)
        X[:, what.column] = points
        if len(points) == 1 and not self.noisy:
            self._fill(X[0], base.free)
        self._ask(u, X, base.apart)
        return self.splits.unknown[u].state != before

    def _fill(self, x: NDArray[np.float32], free: tuple[int, ...]) -> None:
        """Add the middles of other intervals to a record while its answer stays unambiguous."""
        for c in self.rng.permutation(free):
            open_thresholds = [
                u
                for u, what in enumerate(self.splits.unknown)
                if what.column == c and what.victim and not self._done(u)
            ]
            if not open_thresholds:
                continue
            points = self.bases.points(open_thresholds[self.rng.integers(len(open_thresholds))])
            if not len(points):
                continue
            before, x[c] = x[c], points[0]
            if not self.leaf_ids:
                ways = self.splits.ways(x)
                if ways is None or len(ways) > 64 or not self.endpoint.distinct(ways):
                    x[c] = before

    def _ask(self, u: int, X: NDArray[np.float32], gap: float) -> None:
        """Send records and update the thresholds from the answers."""
        if self.leaf_ids:
            for x, leaves in zip(X, self._query(X), strict=True):
                for t, leaf in enumerate(leaves.tolist()):
                    for place, side in dict(self.splits.way_to[t, leaf]).items():
                        self._learn(place, x, side)
            self.splits.order()
            return
        # Records with too many possible paths are not sent, because their answers would be
        # ambiguous.
        every = [self.splits.ways(x) for x in X]
        useful = [i for i, ways in enumerate(every) if ways]
        if not useful:
            return
        if self.noisy:
            ways = every[0]
            assert ways is not None
            self._learn_way(X[0], ways, self._repeat_record(X[0], ways, u, gap))
            return
        for i, answer in zip(useful, self._query(X[useful]), strict=True):
            ways = every[i]
            assert ways is not None
            self._learn_way(X[i], ways, self.endpoint.likelihood(ways, answer[None]))

    def _repeat_record(
        self, x: NDArray[np.float32], ways: list[Way], u: int, gap: float
    ) -> NDArray[np.float64]:
        """Repeat a record until the odds of one side reach e^7, and return the log-likelihoods."""
        total = np.zeros(len(ways))
        side = np.array([way.went.get(u, UNKNOWN) for way in ways])
        # Expected number of answers until the log odds reach the limit.
        n = max(math.ceil(BELIEVED / max(self.endpoint.information(gap), 1e-9)), 1)
        n_sent = 0
        while n_sent < min(20 * n, _MOST_REPEATS):
            total += self.endpoint.likelihood(ways, self._query(np.repeat(x[None], n, axis=0)))
            n_sent += n
            best = [
                total[side == candidate_side].max(initial=-np.inf)
                for candidate_side in (LEFT, RIGHT)
            ]
            if abs(best[0] - best[1]) >= BELIEVED:
                break
            # Later rounds are shorter, because the odds may already be close to the limit.
            n = max(n // 2, 1)
        return total

    def _learn_way(
        self, x: NDArray[np.float32], ways: list[Way], likelihood: NDArray[np.float64]
    ) -> None:
        """Learn the sides on which all paths that explain an answer agree."""
        best = likelihood.max()
        if np.isneginf(best):
            return
        fitting = [way for way, fit in zip(ways, likelihood, strict=True) if fit > best - BELIEVED]
        for place, side in fitting[0].went.items():
            if all(way.went.get(place) == side for way in fitting):
                self._learn(place, x, side)
        self.splits.order()

    def _learn(self, place: int, x: NDArray[np.float32], side: int) -> None:
        """Narrow a threshold, or the candidates of an unknown column, by one side."""
        threshold = self.splits.unknown[place]
        if threshold.column < 0 and place == self.asked[0]:
            low_columns = self.asked[1]
            self.splits.keep(
                place, [c for c in threshold.columns if (c in low_columns) == (side == LEFT)]
            )
        elif threshold.victim:
            self.splits.learn(place, x, side)

    def _query(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Send records to the endpoint, or raise `OutOfQueries` if the budget does not suffice."""
        if len(X) > self.oracle.left:
            raise OutOfQueries
        return self.oracle.query(X)

    def guess(self) -> Guess:
        """Claim the interval and the middle of every threshold whose column is known."""
        rows = []
        for threshold in self.splits.unknown:
            if not threshold.victim or threshold.column < 0:
                continue
            low, high = np.float64(threshold.low), np.float64(threshold.high)
            value = high if threshold.closed else (low + high) / 2
            rows += [(t, node, threshold.column, value, low, high) for t, node in threshold.nodes]
        notes = {
            "records": float(sum(self.oracle.log)),
            "requests": float(len(self.oracle.log)),
            "m": float(self.m),
            "found": float(self._progress()),
        }
        if not rows:
            return Guess.none(Reason("budget-exhausted", records=int(notes["records"])), notes)
        tree, node, feature, *ends = map(np.array, zip(*rows, strict=True))
        return Guess((Thresholds(tree, node, feature, *ends),), notes)


@register.attack("threshold-queries")
@dataclass(frozen=True, kw_only=True)
class ThresholdQueries(Attack):
    """Find the split thresholds of other parties by queries (Li et al. 2022, Sec. 5, Algorithm 1).

    The attack proceeds from the roots of the trees to their leaves. The values on the adversary's
    columns, and thresholds that were found before, lead a record to a split of the victim. The
    records of a request differ only in the victim's column, and the answers show which of them went
    left.

    The published attack sends m records per request, spread over the interval that contains the
    threshold. This implementation differs in four points:

    - It does not send the two ends of the interval again, because their sides are known.
    - If the budget is small, one record contains the middles of the intervals of several columns.
    - It changes the base record until the answer distinguishes the two sides. The attack therefore
      also works with scores, rounded scores and labels instead of leaf numbers.
    - Under noise it repeats a record until the odds of one side reach e^7 (about 1,100 to 1).

    Parameters
    ----------
    m : int
        Number of records per request, including both ends: at least 3. 0 chooses the largest number
        that the budget allows, and 3 if the budget is small or the answers are noisy.
    epsilon : float
        Width of the interval at which the search for a threshold stops, as a share of the declared
        range of the column. At 0, or without a declared range, the search stops at two adjacent
        float32 numbers.
    columns : {"told", "unknown"}
        ``"told"`` uses the split columns that the messages of the training contain, as Li et al. do
        in their Algorithm 1. ``"unknown"`` ignores them, as in their Sec. 2.3.
    """

    claims = (Thresholds,)

    supports_regression: ClassVar[bool] = True

    m: int = 0
    epsilon: float = 0.0
    columns: str = "told"

    threats: ClassVar[tuple[str, ...]] = (
        "active[queries=1000,answers=leaf-ids]",
        "active[queries=1000]",
    )

    def __post_init__(self) -> None:
        if type(self.m) is not int or (self.m != 0 and self.m < 3):
            raise UsageError(f"m={self.m!r}: give 3 records or more, or 0 to adapt to the budget")
        if not 0 <= self.epsilon < 1:
            raise UsageError(f"epsilon={self.epsilon!r} is a share of a range: 0 or more, below 1")
        check_known("columns", self.columns, ("told", "unknown"))

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no endpoint or no threshold to find, None if there is."""
        if view.oracle is None:
            return Reason("no-endpoint", threat="queries=1000")
        if view.oracle.records != "chosen":
            return Reason("no-records-chosen")
        if self.columns == "unknown" and view.oracle.answers == "label":
            return Reason("few-label-turns", use="columns=told")
        if not any(view.messages(HeldModel)):
            return Reason("no-tree-splits")
        if not any(u.victim for u in Splits(view, use_split_columns=True).unknown):
            return Reason("no-others-splits")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Send queries until all thresholds are found or the budget is spent."""
        if not any(view.messages(HeldModel)) or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-tree-splits"))
        search = Search(
            view, rng, m=self.m, epsilon=self.epsilon, use_split_columns=self.columns == "told"
        )
        search.all()
        return search.guess()
