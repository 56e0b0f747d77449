"""A machine of LightGBM's data-parallel training: what it says when, and the trees it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import (
    BinMappers,
    ClassRows,
    FoundSplits,
    OwnStart,
    RootSums,
    WeightedLabels,
)
from fedtrees.protocols.cut_points import public_cuts
from fedtrees.protocols.lockstep import First, RowHolder, Script, hears
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import Logistic
from fedtrees.trees.lightgbm.bins import Mapper, find_bins
from fedtrees.trees.lightgbm.growing import Growing
from fedtrees.trees.lightgbm.halving import scattering
from fedtrees.trees.lightgbm.midpoints import blocks, dealt
from fedtrees.trees.lightgbm.splits import LeafTotals, Split, best_split, fixed

if TYPE_CHECKING:
    from fedtrees.protocols.horizontal.lightgbm_data import LightGBMData


class Machine(RowHolder):
    """One machine of LightGBM's."""

    params: LightGBMData

    hear_bins = hears(BinMappers)
    hear_classes = hears(ClassRows)
    hear_labels = hears(WeightedLabels)
    hear_start = hears(OwnStart)
    hear_root = hears(RootSums)
    hear_splits = hears(FoundSplits)
    hear_histogram = hears(HistogramSegment)

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return its type and place, and of whom it is."""
        if isinstance(message, HistogramSegment):
            return HistogramSegment, message.tree, message.level, message.parties
        told: Any = message
        tree, step = getattr(told, "tree", 0), getattr(told, "step", 0)
        return type(message), tree, step, told.rank if rank is None else rank

    def trained(self) -> Script:
        """Settle bins and the start, and boost."""
        p = self.params
        self.sit()
        self.columns = yield from self.settled()
        self.owners = dealt({c: m.sent for c, m in self.columns.items()}, self.world)
        start = yield from self.started()
        margin, trees = np.full(len(self.data), start), []
        for tree in range(p.trees):
            growing = yield from self.grown(tree, margin)
            if len(growing.leaves) < 2:
                break
            values = growing.values(p.reg_lambda, p.learning_rate)
            for leaf, value in zip(growing.leaves, values, strict=True):
                margin[leaf.rows] += value
            trees.append(growing.tree(self.columns, values))
        self.model = Forest(tuple(trees), np.array([start], np.float32), self.objective)

    def settled(self) -> Script:
        """Find the bins of a block of columns, and return those of all."""
        p, X, plan = self.params, self.data.X, self.net.cut_plan()
        block = blocks(X.shape[1], self.world)[self.rank]
        forced = None if plan is None else public_cuts(self.schema, plan.cells + 1)
        own = []
        for c in block:
            bounds = None if forced is None else forced.of(c).astype(np.float64)
            most = p.max_bin if bounds is None or plan.fill else max(len(bounds) + 1, 2)
            column = X[:, c].astype(np.float64)
            own.append(find_bins(column, most, p.min_data_in_bin, p.min_data_in_leaf, bounds))
        found_bounds = [m.bounds for m in own]
        message = BinMappers(
            self.rank, block.start, np.array([m.low for m in own]),
            np.array([m.high for m in own]), np.concatenate([np.zeros(0), *found_bounds]),
            np.cumsum([0, *map(len, found_bounds)]), np.array([m.used for m in own], np.bool_),
            np.zeros(len(own), np.bool_), np.array([m.frequent for m in own], np.int64),
            np.array([m.sparse for m in own], np.float64),
        )  # fmt: skip
        told = yield from self.gathered(message, "each machine finds the bins of some columns")
        found = {}
        for part in told:
            for k in np.flatnonzero(part.used).tolist():
                mapper = Mapper(
                    part.bins(k), part.low[k], part.high[k], True,
                    int(part.frequent[k]), part.sparse[k],
                )  # fmt: skip
                c = part.first + k
                bins = mapper.bin(X[:, c].astype(np.float64))
                found[c] = Column(c, mapper, bins)
        return found

    def started(self) -> Script:
        """Settle where boosting starts."""
        y, n = self.data.y, len(self.data)
        if isinstance(self.objective, Logistic):
            ones = int((y > 0).sum())
            classes = ClassRows(self.rank, ones, n - ones)
            yield from self.gathered(classes, "the objective's classes")
            labels = WeightedLabels(self.rank, float(ones), float(n))
            told = yield from self.gathered(labels, "the objective's labels")
            mean = sum(t.labels for t in told) / sum(t.weights for t in told)
            mean = min(max(mean, 1e-15), 1 - 1e-15)
            own = float(np.log(mean / (1 - mean)))
        else:
            own = float(_added(y.astype(np.float32)) / n)
        starts = yield from self.gathered(OwnStart(self.rank, own), "where boosting starts")
        return sum(s.score for s in starts) / self.world

    def grown(self, tree: int, margin: NDArray[np.float64]) -> Script:
        """Grow a tree, the leaf of greatest gain first."""
        p, n = self.params, len(self.data)
        self.gh = self.gradients(margin)
        sums = RootSums(self.rank, tree, _added(self.gh[:, 0]), _added(self.gh[:, 1]), n)
        roots = yield from self.gathered(sums, "sums over the root of a tree")
        whole = LeafTotals(
            sum(r.gradient for r in roots),
            sum(r.hessian for r in roots),
            sum(r.rows for r in roots),
        )
        growing, step, pair = Growing(np.arange(n), whole), 0, (0, -1)
        for _ in range(p.num_leaves - 1):
            if growing.worth(pair, p.min_data_in_leaf, p.max_depth):
                yield from self.searched(growing, tree, step, growing.ordered(pair))
                step += 1
            made = growing.advance(self.columns)
            if made is None:
                break
            pair = made
        return growing

    def gradients(self, margin: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return gradient and hessian of each row, float32, shape (n, 2)."""
        if not isinstance(self.objective, Logistic):
            gradient = (margin - self.data.y.astype(np.float32)).astype(np.float32)
            return np.column_stack([gradient, np.ones_like(gradient)])
        sign = np.where(self.data.y > 0, 1.0, -1.0)
        response = -sign / (1.0 + np.exp(sign * margin))
        size = np.abs(response)
        return np.column_stack([response, size * (1.0 - size)]).astype(np.float32)

    def searched(self, growing: Growing, tree: int, step: int, pair: tuple[int, int]) -> Script:
        """Sum the smaller leaf's histogram over all machines; settle the best splits of both."""
        smaller, larger = pair
        leaf = growing.leaves[smaller]
        own = yield from self.scattered(self.histogram(leaf.rows), tree, step)
        found: list[Split | None] = [None, None]
        begin, before = 0, growing.parent if larger >= 0 else {}
        for c in self.owners[self.rank]:
            column = self.columns[c]
            part, begin = own[begin : begin + column.sent], begin + column.sent
            frequent, missing = column.mapper.frequent, column.mapper.missing
            sums = fixed(part, frequent, leaf.sums.gradient, leaf.sums.hessian)
            leaf.histogram[c] = sums
            both = [(leaf, sums)]
            if larger >= 0:
                other = growing.leaves[larger]
                other.histogram[c] = before[c] - sums
                both.append((other, other.histogram[c]))
            for k, (which, histogram) in enumerate(both):
                best = best_split(
                    c, histogram, which.sums, self.params.limits,
                    frequent=frequent, missing=missing,
                )  # fmt: skip
                if best is not None and best.beats(found[k]):
                    found[k] = best
        message = _message(self.rank, tree, step, found)
        told = yield from self.gathered(message, "all take the best split of all")
        growing.settle(pair, [part.splits for part in told])

    def histogram(self, rows: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        """Return the sums of rows in the bins that every machine gets the sums of, by machine."""
        gh, found = self.gh[rows].astype(np.float64), []
        for own in self.owners:
            parts: list[NDArray[Any]] = [np.zeros((0, 2))]
            for column in (self.columns[c] for c in own):
                bins, count = column.bins[rows], len(column.mapper.bounds)
                sums = [np.bincount(bins, gh[:, k], count) for k in (0, 1)]
                part = np.stack(sums, axis=1)
                part[column.mapper.frequent] = 0.0  # not stored: what is left of the sum of all
                parts.append(part[count - column.sent :])
            found.append(np.concatenate(parts))
        return found

    def scattered(self, sums: list[NDArray[np.float64]], tree: int, step: int) -> Script:
        """Pass on sums by recursive halving; return those of all machines of one's own columns."""
        begins = [0, *accumulate(2 * len(s) for s in sums)]
        final = None
        for move in scattering(self.world, 8 * begins[-1]):
            whose = ",".join(self.names[r] for r in move.members)
            if move.sender == self.rank:
                numbers = np.concatenate([sums[b].ravel() for b in move.blocks])
                hop = HistogramSegment(tree, step, 1, begins[move.blocks[0]], numbers, whose)
                why = "a histogram on its way to who finds the best split of its columns"
                self.net.tell(self.names[move.receiver], hop, why=why)
            elif move.receiver == self.rank:
                told = yield (HistogramSegment, tree, step, whose)
                assert isinstance(told, HistogramSegment)
                at = 0
                for b in move.blocks:
                    size = sums[b].size
                    part = told.sums[at : at + size].reshape(-1, 2)
                    at += size
                    if len(move.members) == self.world:
                        final = part
                    else:
                        sums[b] = sums[b] + part
        return sums[self.rank] if final is None else final


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is used: its bins, and the bin of each of one's rows."""

    feature: int
    mapper: Mapper
    bins: NDArray[np.int64]

    @property
    def sent(self) -> int:
        """How many bins histograms have."""
        return len(self.mapper.bounds) - int(self.mapper.frequent == 0)


class FirstMachine(Machine, First):
    """The machine of rank 0."""

    role = "client"


def _added(values: NDArray[np.float32]) -> float:
    """Return the sum in float64, row by row."""
    return float(np.bincount(np.zeros(len(values), np.int64), values, 1)[0])


def _message(rank: int, tree: int, step: int, found: Sequence[Split | None]) -> FoundSplits:
    none = Split(-1, 0, -np.inf, LeafTotals(0.0, 0.0, 0), LeafTotals(0.0, 0.0, 0), True)
    pair = [none if split is None else split for split in found]
    left, right = (
        np.array([[s.gradient, s.hessian, s.rows] for s in (getattr(p, side) for p in pair)])
        for side in ("left", "right")
    )
    return FoundSplits(
        rank, tree, step, np.array([p.feature for p in pair], np.int32),
        np.array([p.bin for p in pair], np.int32), np.array([p.gain for p in pair]), left, right,
        np.array([p.default_left for p in pair]),
    )  # fmt: skip
