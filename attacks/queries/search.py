"""The search for thresholds: base records, bisection, noise and the budget."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.answers import BELIEVED, Endpoint
from fedtrees.attacks.queries.splits import LARGEST, LEFT, RIGHT, UNKNOWN, Splits, Way
from fedtrees.core.guess import Guess, Thresholds
from fedtrees.core.oracle import Oracle
from fedtrees.core.reasons import Reason
from fedtrees.core.view import View

#: Records per request that are tried where the budget allows: those of Li et al. 2022 first.
SIZES = (401, 201, 101, 51, 21, 11, 5, 3)
_TRIES = 40  # base records among which one is looked for that tells the sides of a split apart
_HARD_TRIES = 400  # of labels, which most splits do not change
_FAILURES = 3  # base records that told nothing, after which a threshold is given up
_MOST_REPEATS = 100_000


class OutOfQueries(Exception):
    """The budget is spent."""


@dataclass(frozen=True, eq=False)
class Base:
    """A record to start from."""

    x: NDArray[np.float32]  # shape (d,)
    free: tuple[int, ...] = ()  # columns of others that may have any value
    # ends of the values of the split's column with which a record reaches it for sure
    within: tuple[np.float32, np.float32] = (np.float32(-np.inf), np.float32(np.inf))
    # where the split's column is not known: those whose value is left of any threshold
    lefts: frozenset[int] = frozenset()
    apart: float = np.inf  # how well answers tell the sides apart


class Search:
    """One run of the attack.

    `m, epsilon`: As in `ThresholdQueries`.
    `told`: Whether the columns of splits are used where messages tell them.
    """

    def __init__(
        self, view: View, rng: np.random.Generator, *, m: int, epsilon: float, told: bool
    ) -> None:
        assert view.oracle is not None
        self.oracle: Oracle = view.oracle
        self.rng, self.splits = rng, Splits(view, told=told)
        self.leaf_ids = self.oracle.answers == "leaf-ids"
        self.endpoint = Endpoint(view, self.splits.model)
        low, high = view.schema.ranges
        with np.errstate(invalid="ignore"):
            self.end = np.nan_to_num((high - low) * np.float32(epsilon))
        own = [h.X[np.argsort(h.ids)] for h in view.own]
        known = np.nan_to_num(np.concatenate(own, axis=1)) if own else np.zeros((1, 0))
        self.own = known.astype(np.float32)
        self.noisy = self.endpoint.scale > 0 and not self.leaf_ids
        self.m = m or self._affordable()
        self.asked: tuple[int, frozenset[int]] = (-1, frozenset())

    def _affordable(self) -> int:
        """Return the most records per request for which the budget lasts four times over."""
        if self.noisy:
            return 3
        open_ones = [u for u in self.splits.unknown if u.victim]
        for m in SIZES:
            each = math.ceil(32 / math.log2(m - 1)) * (m - 2)
            if 4 * each * len(open_ones) <= self.oracle.left:
                return m
        return 3

    def all(self) -> None:
        """Find one threshold after the other, from the roots down."""
        depth = {
            u: min(len(self.splits.way_to[at]) for at in what.nodes)
            for u, what in enumerate(self.splits.unknown)
            if what.victim
        }
        order = sorted(depth, key=lambda u: (depth[u], u))
        try:
            before = -1
            while before != self._progress():  # what was out of reach may have come into it
                before = self._progress()
                for u in order:
                    self._find(u)
        except OutOfQueries:
            pass

    def _progress(self) -> int:
        return sum(self._done(u) for u, what in enumerate(self.splits.unknown) if what.victim)

    def _done(self, u: int) -> bool:
        what = self.splits.unknown[u]
        if what.column < 0:
            return False
        width = np.float64(what.high) - np.float64(what.low)
        return what.closed or bool(width <= self.end[what.column])

    def _find(self, u: int) -> None:
        failures = 0
        while not self._done(u) and failures < _FAILURES:
            base = self._base(u)
            if base is None:
                return
            before = self._state(u)
            while not self._done(u) and self._narrow(u, base):
                pass
            failures += self._state(u) == before

    # --- records

    @property
    def _hidden(self) -> bool:
        """Whether the column of a split is still unknown."""
        return any(u.column < 0 for u in self.splits.unknown)

    def _base(self, u: int) -> Base | None:
        """Return a record that reaches a split and tells its sides apart."""
        best = None
        hard = (self.endpoint.labels or self.endpoint.rounded) and not self._hidden
        for _ in range(1 if self.leaf_ids else _HARD_TRIES if hard else _TRIES):
            made = self._reaching(u)
            if made is None or self.leaf_ids:
                return made
            ways = self.splits.ways(made.x)
            made = replace(made, apart=self.endpoint.apart(ways, u) if ways else 0.0)
            if made.apart > (best.apart if best else 0.0):
                best = made
                if not self.noisy and made.apart == 1:
                    break
        return best

    def _reaching(self, u: int) -> Base | None:
        """Return a record that reaches one of a threshold's splits.

        None: no split of it can be reached by what is known.
        """
        s, what = self.splits, self.splits.unknown[u]
        ends = [found for at in what.nodes if (found := self._bounds(at)) is not None]
        if not ends:
            return None
        lower, upper = ends[self.rng.integers(len(ends))]
        x = self._anything()
        bound = np.isfinite(lower) | np.isfinite(upper)
        x = np.minimum(np.maximum(x, lower), upper)
        if what.column < 0:
            count = len(what.columns) // 2 if self.leaf_ids else len(what.columns) - 1
            lefts = self.rng.permutation(what.columns)[:count].tolist()
            x[what.columns] = np.minimum(s.most, upper)[what.columns]
            x[lefts] = np.maximum(s.least, lower)[lefts]
            return Base(x, lefts=frozenset(lefts))
        c = what.column
        within = lower[c], upper[c]
        points = self._points(u, within)
        if not len(points):  # its way has told the last bit, or leaves the rest out of reach
            return None
        x[c] = points[0]
        if self._hidden and not self.leaf_ids:
            return Base(x, within=within)
        free = np.setdiff1d(np.flatnonzero(~bound), [*s.own, c])
        return Base(x, tuple(free.tolist()), within=within)

    def _anything(self) -> NDArray[np.float32]:
        """Return a record: own values of some row, and of others' what is sure of its sides."""
        s = self.splits
        if self.leaf_ids:
            x = np.where(self.rng.random(len(s.least)) < 0.5, s.least, s.most)
        elif self._hidden:  # few splits are to turn the way, while their columns are not known
            x = s.least.copy()
        else:
            x = np.array([self._sure_value(c) for c in range(len(s.least))], dtype=np.float32)
        x[s.own] = self.own[self.rng.integers(len(self.own))]
        return x

    def _bounds(
        self, at: tuple[int, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Return the ends of values with which a record reaches a node for sure; None: nowhere."""
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
        """Return a value of a column of which all sides are known."""
        s = self.splits
        mine = [u for u in s.unknown if column in u.columns]
        values = [s.least[column], s.most[column]]
        values += [v for u in mine if u.column >= 0 for v in (u.low, u.high)]
        sure = [
            v
            for v in values
            if np.isfinite(v)
            and all(
                (v <= u.low or v >= u.high)
                if u.column >= 0
                else (v <= s.least[column] or v >= s.most[column])
                for u in mine
            )
        ]
        return np.float32(sure[self.rng.integers(len(sure))])

    # --- questions

    def _points(
        self, u: int, within: tuple[np.float32, np.float32] = Base.within
    ) -> NDArray[np.float32]:
        """Return values that cut an interval, as far as it is within ends, in m - 1 parts.

        That a threshold lies within them is asked first where no order of bins tells: a split of
        missing values from all others lies outside.
        """
        what = self.splits.unknown[u]
        low, high = max(what.low, within[0]), min(what.high, within[1])
        if np.isnan(what.bin):
            ends = [e for e in within if np.isfinite(e) and what.low < e < what.high]
            if ends:
                return np.array(ends[:1], np.float32)
        if low >= high:
            return np.zeros(0, np.float32)
        if abs(self.splits.least[what.column]) < LARGEST:
            return _between(low, high, self.m - 2)
        return _between_floats(low, high, self.m - 2)

    def _narrow(self, u: int, base: Base) -> bool:
        """Ask once, and tell whether to ask on from this record."""
        before, what = self._state(u), self.splits.unknown[u]
        self.asked = u, base.lefts
        if what.column < 0:
            self._ask(u, base.x[None], base.apart)
            return False
        points = self._points(u, base.within)
        if not len(points):
            return False
        X = np.repeat(base.x[None], len(points), axis=0)
        X[:, what.column] = points
        if len(points) == 1 and not self.noisy:
            self._fill(X[0], base.free)
        self._ask(u, X, base.apart)
        return self._state(u) != before

    def _state(self, u: int) -> tuple[object, ...]:
        what = self.splits.unknown[u]
        return len(what.columns), what.low, what.high

    def _fill(self, x: NDArray[np.float32], free: tuple[int, ...]) -> None:
        """Put the middles of other intervals in a record, while its answer stays readable."""
        for c in self.rng.permutation(free):
            still = [
                u
                for u, what in enumerate(self.splits.unknown)
                if what.column == c and what.victim and not self._done(u)
            ]
            if not still:
                continue
            points = self._points(still[self.rng.integers(len(still))])
            if not len(points):
                continue
            before, x[c] = x[c], points[0]
            if not self.leaf_ids:
                ways = self.splits.ways(x)
                if ways is None or len(ways) > 64 or not self.endpoint.distinct(ways):
                    x[c] = before

    def _ask(self, u: int, X: NDArray[np.float32], gap: float) -> None:
        if self.leaf_ids:
            for x, leaves in zip(X, self._query(X), strict=True):
                for t, leaf in enumerate(leaves.tolist()):
                    for place, side in self.splits.leaf_went(t, leaf).items():
                        self._learn(place, x, side)
            self.splits.order()
            return
        every = [self.splits.ways(x) for x in X]
        kept = [i for i, ways in enumerate(every) if ways]
        if not kept:
            return
        if self.noisy:
            ways = every[0]
            assert ways is not None
            self._learn_way(X[0], ways, self._repeated(X[0], ways, u, gap))
            return
        for i, answer in zip(kept, self._query(X[kept]), strict=True):
            ways = every[i]
            assert ways is not None
            self._learn_way(X[i], ways, self.endpoint.likelihood(ways, answer[None]))

    def _repeated(
        self, x: NDArray[np.float32], ways: list[Way], u: int, gap: float
    ) -> NDArray[np.float64]:
        """Ask one record until the odds of a side are clear; return the likelihood of every way."""
        total = np.zeros(len(ways))
        side = np.array([way.went.get(u, UNKNOWN) for way in ways])
        n = max(math.ceil(BELIEVED / max(self.endpoint.information(gap), 1e-9)), 1)
        asked = 0
        while asked < min(20 * n, _MOST_REPEATS):
            total += self.endpoint.likelihood(ways, self._query(np.repeat(x[None], n, axis=0)))
            asked += n
            best = [total[side == one].max(initial=-np.inf) for one in (LEFT, RIGHT)]
            if abs(best[0] - best[1]) >= BELIEVED:
                break
            n = max(n // 2, 1)
        return total

    def _learn_way(
        self, x: NDArray[np.float32], ways: list[Way], likelihood: NDArray[np.float64]
    ) -> None:
        """Take in what all ways agree on that fit an answer."""
        most = likelihood.max()
        if np.isneginf(most):
            return
        fitting = [way for way, fit in zip(ways, likelihood, strict=True) if fit > most - BELIEVED]
        for place, side in fitting[0].went.items():
            if all(way.went.get(place) == side for way in fitting):
                self._learn(place, x, side)
        self.splits.order()

    def _learn(self, place: int, x: NDArray[np.float32], side: int) -> None:
        what = self.splits.unknown[place]
        if what.column < 0 and place == self.asked[0]:
            left = self.asked[1]
            self.splits.keep(place, [c for c in what.columns if (c in left) == (side == LEFT)])
        elif what.victim:
            self.splits.learn(place, x, side)

    def _query(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        if len(X) > self.oracle.left:
            raise OutOfQueries
        return self.oracle.query(X)

    def guess(self) -> Guess:
        """Claim what was found, and how narrowly."""
        rows = []
        for what in self.splits.unknown:
            if not what.victim or what.column < 0:
                continue
            low, high = np.float64(what.low), np.float64(what.high)
            value = high if what.closed else (low + high) / 2
            rows += [(t, node, what.column, value, low, high) for t, node in what.nodes]
        asked = {
            "records": float(sum(self.oracle.log)),
            "requests": float(len(self.oracle.log)),
            "m": float(self.m),
            "found": float(self._progress()),
        }
        if not rows:
            return Guess.none(Reason("budget-exhausted", records=int(asked["records"])), asked)
        tree, node, feature, *ends = map(np.array, zip(*rows, strict=True))
        return Guess((Thresholds(tree, node, feature, *ends),), asked)


def _between(low: np.float32, high: np.float32, count: int) -> NDArray[np.float32]:
    """Return numbers that cut an interval in equal parts, the ends left out."""
    every = np.linspace(np.float64(low), np.float64(high), count + 2)[1:-1].astype(np.float32)
    every = np.unique(every)
    inside = every[(every > low) & (every < high)]
    if len(inside) or np.nextafter(low, high) >= high:
        return inside
    return np.array([np.nextafter(low, high)])


def _between_floats(low: np.float32, high: np.float32, count: int) -> NDArray[np.float32]:
    """Return numbers that cut the float32 numbers of an interval in equal parts."""
    ends = [_place(v) for v in (low, high)]
    steps = np.linspace(ends[0], ends[1], count + 2)[1:-1]
    places = np.unique(np.round(steps).astype(np.int64))
    places = places[(places > ends[0]) & (places < ends[1])]
    bits = np.where(places >= 0, places, -places).astype(np.int32)
    found = bits.view(np.float32)
    return np.where(places >= 0, found, -found).astype(np.float32)


def _place(value: np.float32) -> int:
    """Return the place of a number among all float32 numbers, 0 for zero."""
    bits = int(np.float32(abs(value)).view(np.int32))
    return bits if value >= 0 else -bits
