"""Attack `threshold-queries`: find the split thresholds of other parties by bisection.

The adversary is the active party of a vertical federation. It sends chosen records to the
prediction endpoint and infers from the answers on which side of a threshold each record fell.
`Search` sends the requests and narrows the intervals of the thresholds. `splits` contains these
intervals, `base_records` the records that reach a split, and `endpoint` the likelihood of an
answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.base_records import Base, BaseRecords
from fedtrees.attacks.queries.endpoint import BELIEVED, Endpoint
from fedtrees.attacks.queries.splits import LEFT, RIGHT, UNKNOWN, Splits, Way
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Thresholds
from fedtrees.core.endpoint import Oracle
from fedtrees.core.errors import UsageError, check_known
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel

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
