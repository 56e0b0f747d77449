"""The protocol `lightgbm-data`: LightGBM's data-parallel training between machines.

Every machine runs the same script and grows the same trees. It sends sums over its local rows to
the machines that find the splits of the features.

`gathering` and `scattering` return which machine sends which data to which machine in LightGBM's
collective operations (``src/network`` of LightGBM 4.7), so that the knowledge of each machine can
be derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.parameters import fraction, nonnegative, one_of, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import (
    BinMappers,
    ClassRows,
    FoundSplits,
    OwnStart,
    RootSums,
    WeightedLabels,
)
from fedtrees.protocols.cut_points import cut_plan_of, public_cuts
from fedtrees.protocols.peers.peer import HorizontalPeer, HorizontalPeers, Script, StartingPeer
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import Logistic, Objective, SquaredError, objective_of
from fedtrees.trees.boosted.params import UNLIMITED
from fedtrees.trees.lightgbm.bins import Mapper, blocks, dealt, find_bins
from fedtrees.trees.lightgbm.growing import (
    LeafTotals,
    LeafWiseGrower,
    Limits,
    Split,
    best_split,
    fixed,
)


class Machine(HorizontalPeer):
    """One machine of LightGBM's data-parallel training."""

    receives = (
        BinMappers, ClassRows, WeightedLabels, OwnStart, RootSums, HistogramSegment, FoundSplits,
    )  # fmt: skip

    params: LightGBMData

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return the type of a message, its place in the run, and its sender."""
        if isinstance(message, HistogramSegment):
            return HistogramSegment, message.tree, message.level, message.parties
        fields: Any = message
        tree, step = getattr(fields, "tree", 0), getattr(fields, "step", 0)
        return type(message), tree, step, fields.rank if rank is None else rank

    def run_training(self) -> Script:
        """Agree on bins and initial prediction, and boost."""
        p = self.params
        self.assign_ranks()
        self.columns = yield from self.agree_bins()
        self.owners = dealt({c: m.sent for c, m in self.columns.items()}, self.world)
        start = yield from self.agree_start()
        margin, trees = np.full(len(self.data), start), []
        for tree in range(p.trees):
            growing = yield from self.grow_tree(tree, margin)
            # LightGBM stops training at the first tree without a split.
            if len(growing.leaves) < 2:
                break
            values = growing.values(p.reg_lambda, p.learning_rate)
            for leaf, value in zip(growing.leaves, values, strict=True):
                margin[leaf.rows] += value
            trees.append(growing.tree(self.columns, values))
        self.model = Forest(tuple(trees), np.array([start], np.float32), self.objective)

    def agree_bins(self) -> Script:
        """Compute the bins of a block of columns, and return the bins of all columns."""
        p, X, plan = self.params, self.data.X, cut_plan_of(self.net)
        block = blocks(X.shape[1], self.world)[self.rank]
        # A defense can force the bin borders, for example to declared ones.
        forced = None if plan is None else public_cuts(self.schema, plan.cells + 1)
        mappers = []
        for c in block:
            bounds = None if forced is None else forced.of(c).astype(np.float64)
            max_bins = (
                p.max_bin
                if plan is None or bounds is None or plan.fill
                else max(len(bounds) + 1, 2)
            )
            column = X[:, c].astype(np.float64)
            mappers.append(
                find_bins(column, max_bins, p.min_data_in_bin, p.min_data_in_leaf, bounds)
            )
        found_bounds = [m.bounds for m in mappers]
        message = BinMappers(
            self.rank, block.start, np.array([m.low for m in mappers]),
            np.array([m.high for m in mappers]), np.concatenate([np.zeros(0), *found_bounds]),
            np.cumsum([0, *map(len, found_bounds)]), np.array([m.used for m in mappers], np.bool_),
            np.zeros(len(mappers), np.bool_), np.array([m.frequent for m in mappers], np.int64),
            np.array([m.sparse for m in mappers], np.float64),
        )  # fmt: skip
        all_mappers = yield from self.exchange(
            message, "each machine finds the bins of some columns"
        )
        columns = {}
        for part in all_mappers:
            for k in np.flatnonzero(part.used).tolist():
                mapper = Mapper(
                    part.bins(k), part.low[k], part.high[k], True,
                    int(part.frequent[k]), part.sparse[k],
                )  # fmt: skip
                c = part.first + k
                bins = mapper.bin(X[:, c].astype(np.float64))
                columns[c] = Column(c, mapper, bins)
        return columns

    def agree_start(self) -> Script:
        """Agree on the initial prediction."""
        y, n = self.data.y, len(self.data)
        if isinstance(self.objective, Logistic):
            ones = int((y > 0).sum())
            classes = ClassRows(self.rank, ones, n - ones)
            yield from self.exchange(classes, "the objective's classes")
            labels = WeightedLabels(self.rank, float(ones), float(n))
            all_labels = yield from self.exchange(labels, "the objective's labels")
            mean = sum(t.labels for t in all_labels) / sum(t.weights for t in all_labels)
            # As in LightGBM, labels of a single class start at a finite score.
            mean = min(max(mean, 1e-15), 1 - 1e-15)
            local_start = float(np.log(mean / (1 - mean)))
        else:
            local_start = float(_add_in_order(y.astype(np.float32)) / n)
        # All machines use the mean of the local starts, as in LightGBM.
        starts = yield from self.exchange(OwnStart(self.rank, local_start), "where boosting starts")
        return sum(s.score for s in starts) / self.world

    def grow_tree(self, tree: int, margin: NDArray[np.float64]) -> Script:
        """Grow a tree, splitting the leaf with the greatest gain first."""
        p, n = self.params, len(self.data)
        self.gh = self.gradients(margin)
        sums = RootSums(
            self.rank, tree, _add_in_order(self.gh[:, 0]), _add_in_order(self.gh[:, 1]), n
        )
        roots = yield from self.exchange(sums, "sums over the root of a tree")
        root_sums = LeafTotals(
            sum(r.gradient for r in roots),
            sum(r.hessian for r in roots),
            sum(r.rows for r in roots),
        )
        growing, step, pair = LeafWiseGrower(np.arange(n), root_sums), 0, (0, -1)
        for _ in range(p.num_leaves - 1):
            # LightGBM skips the search if a leaf is too small or too deep.
            if growing.worth(pair, p.min_data_in_leaf, p.max_depth):
                yield from self.search_splits(growing, tree, step, growing.ordered(pair))
                step += 1
            children = growing.advance(self.columns)
            if children is None:
                break
            pair = children
        return growing

    def gradients(self, margin: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return gradient and hessian of each row, float32, shape (n, 2)."""
        if not isinstance(self.objective, Logistic):
            gradient = (margin - self.data.y.astype(np.float32)).astype(np.float32)
            return np.column_stack([gradient, np.ones_like(gradient)])
        sign = np.where(self.data.y > 0, 1.0, -1.0)
        # LightGBM's labels are -1 and 1, and the hessian is |g| (1 - |g|).
        response = -sign / (1.0 + np.exp(sign * margin))
        size = np.abs(response)
        return np.column_stack([response, size * (1.0 - size)]).astype(np.float32)

    def search_splits(
        self, growing: LeafWiseGrower, tree: int, step: int, pair: tuple[int, int]
    ) -> Script:
        """Sum the smaller leaf's histogram over all machines. Find the best splits of both leaves.

        Parameters
        ----------
        growing : LeafWiseGrower
            State of the tree.
        tree, step : int
            Number of the tree, and step within it.
        pair : (int, int)
            The smaller and the larger leaf. The larger one is -1 for the root.
        """
        smaller, larger = pair
        leaf = growing.leaves[smaller]
        column_sums = yield from self.reduce_scatter(self.histogram(leaf.rows), tree, step)
        best_splits: list[Split | None] = [None, None]
        begin, before = 0, growing.parent if larger >= 0 else {}
        for c in self.owners[self.rank]:
            column = self.columns[c]
            part, begin = column_sums[begin : begin + column.sent], begin + column.sent
            frequent, missing = column.mapper.frequent, column.mapper.missing
            sums = fixed(part, frequent, leaf.sums.gradient, leaf.sums.hessian)
            # Stored, because the histogram of a later child is a difference to it.
            leaf.histogram[c] = sums
            both = [(leaf, sums)]
            if larger >= 0:
                other = growing.leaves[larger]
                # Only the smaller leaf is summed over the network. The larger one is the
                # difference.
                other.histogram[c] = before[c] - sums
                both.append((other, other.histogram[c]))
            for k, (which, histogram) in enumerate(both):
                # Each machine searches only the columns whose totals it has.
                best = best_split(
                    c, histogram, which.sums, self.params.limits,
                    frequent=frequent, missing=missing,
                )  # fmt: skip
                if best is not None and best.beats(best_splits[k]):
                    best_splits[k] = best
        message = _message(self.rank, tree, step, best_splits)
        all_splits = yield from self.exchange(message, "all take the best split of all")
        growing.settle(pair, [part.splits for part in all_splits])

    def histogram(self, rows: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        """Return the sums of rows per bin, separately for the machine that receives them."""
        gh, by_machine = self.gh[rows].astype(np.float64), []
        for machine_columns in self.owners:
            parts: list[NDArray[Any]] = [np.zeros((0, 2))]
            for column in (self.columns[c] for c in machine_columns):
                bins, count = column.bins[rows], len(column.mapper.bounds)
                sums = [np.bincount(bins, gh[:, k], count) for k in (0, 1)]
                part = np.stack(sums, axis=1)
                # LightGBM does not store the most frequent bin. It is the difference to the total.
                part[column.mapper.frequent] = 0.0
                parts.append(part[count - column.sent :])
            by_machine.append(np.concatenate(parts))
        return by_machine

    def reduce_scatter(self, sums: list[NDArray[np.float64]], tree: int, step: int) -> Script:
        """Sum histograms by recursive halving. Return the total of this machine's columns.

        Parameters
        ----------
        sums : list of float64 array
            Local sums per bin, by the machine that receives them.
        tree, step : int
            Number of the tree, and step within it.
        """
        begins = [0, *accumulate(2 * len(s) for s in sums)]
        final = None
        for move in scattering(self.world, 8 * begins[-1]):
            members = ",".join(self.names[r] for r in move.members)
            if move.sender == self.rank:
                numbers = np.concatenate([sums[b].ravel() for b in move.blocks])
                hop = HistogramSegment(tree, step, 1, begins[move.blocks[0]], numbers, members)
                reason = "a histogram on its way to who finds the best split of its columns"
                self.net.send(self.names[move.receiver], hop, reason=reason)
            elif move.receiver == self.rank:
                received = yield (HistogramSegment, tree, step, members)
                assert isinstance(received, HistogramSegment)
                position = 0
                for b in move.blocks:
                    size = sums[b].size
                    part = received.sums[position : position + size].reshape(-1, 2)
                    position += size
                    # The last hop contains the total over all machines and needs no addition.
                    if len(move.members) == self.world:
                        final = part
                    else:
                        sums[b] = sums[b] + part
        return sums[self.rank] if final is None else final


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is used for splits: its bins, and the bin of each local row."""

    feature: int
    mapper: Mapper
    bins: NDArray[np.int64]

    @property
    def sent(self) -> int:
        """Number of bins in histograms."""
        return len(self.mapper.bounds) - int(self.mapper.frequent == 0)


class FirstMachine(Machine, StartingPeer):
    """The machine of rank 0."""

    role = "client"


def _add_in_order(values: NDArray[np.float32]) -> float:
    """Return the sum in float64, in the order of the rows."""
    return float(np.bincount(np.zeros(len(values), np.int64), values, 1)[0])


def _message(rank: int, tree: int, step: int, best_splits: Sequence[Split | None]) -> FoundSplits:
    """Return the best splits of two leaves as a message."""
    no_split = Split(-1, 0, -np.inf, LeafTotals(0.0, 0.0, 0), LeafTotals(0.0, 0.0, 0), True)
    pair = [no_split if split is None else split for split in best_splits]
    left, right = (
        np.array([[s.gradient, s.hessian, s.rows] for s in (getattr(p, side) for p in pair)])
        for side in ("left", "right")
    )
    return FoundSplits(
        rank, tree, step, np.array([p.feature for p in pair], np.int32),
        np.array([p.bin for p in pair], np.int32), np.array([p.gain for p in pair]), left, right,
        np.array([p.default_left for p in pair]),
    )  # fmt: skip


_MOST_ROWS = 200_000  # with more rows, LightGBM computes bins from a sample


@register.protocol("lightgbm-data")
@dataclass(frozen=True, kw_only=True)
class LightGBMData(HorizontalPeers):
    """LightGBM 4.7 with ``tree_learner=data, pre_partition=true``, machine to machine.

    Each machine computes the bins of a block of columns from its local rows and sends them to all
    machines. Histograms are summed by recursive halving, those of an odd machine through a leader.
    Each machine finds the best splits of the columns that it has the sums of. The trees equal
    LightGBM's, node by node. Some parameters have other names in LightGBM: ``trees``
    (num_iterations), ``reg_lambda`` (lambda_l2), ``gamma`` (min_gain_to_split).

    Parameters
    ----------
    max_depth : int
        Largest depth, -1 for no limit.
    """

    trees: int = whole(1, UNLIMITED, default=100)
    num_leaves: int = whole(2, 131_072, default=31)
    max_depth: int = whole(-1, UNLIMITED, default=-1)
    learning_rate: float = fraction(0.1)
    reg_lambda: float = nonnegative(0.0)
    gamma: float = nonnegative(0.0)
    min_data_in_leaf: int = whole(0, UNLIMITED, default=20)
    min_sum_hessian_in_leaf: float = nonnegative(1e-3)
    max_bin: int = whole(2, 65_535, default=255)
    min_data_in_bin: int = whole(1, UNLIMITED, default=3)
    objective: str | None = one_of((Logistic.name, SquaredError.name), default=None)

    info = replace(
        HorizontalPeers.info,
        message_types=Machine.receives,
        conditional_types=dict.fromkeys((ClassRows, WeightedLabels), "labels are classes"),
    )
    party_noun: ClassVar[str] = "machines"
    kinds: ClassVar[tuple[type[Machine], type[Machine]]] = (FirstMachine, Machine)

    @property
    def limits(self) -> Limits:
        """Constraints on splits."""
        return Limits(
            self.min_data_in_leaf, self.min_sum_hessian_in_leaf, self.reg_lambda, self.gamma
        )

    def objective_for(self, schema: Schema) -> Objective:
        """Return the loss function. Raise `UsageError` for more than two classes."""
        objective = objective_of(self.objective, schema.classes)
        if not isinstance(objective, Logistic | SquaredError):
            raise UsageError(
                f"{self.name!r} trains on two classes or numbers, not {objective.name}"
            )
        return objective

    def check(self, schema: Schema) -> None:
        """Check that the objective suits the target."""
        self.objective_for(schema)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse weights, no rows, and so many rows that LightGBM would sample them."""
        if local_data.weight is not None or len(local_data) > _MOST_ROWS or not len(local_data):
            raise DataError(
                f"{self.name!r} takes 1 to {_MOST_ROWS:,} rows of {name!r}, without weights"
            )


#: Number of bytes above which both operations use a ring, unless the number of machines is a power
#: of 2 (`scattering`).
RING_BYTES = 10 << 20


@dataclass(frozen=True)
class Step:
    """Data that one machine sends to another one within a collective operation.

    Attributes
    ----------
    sender, receiver : int
        Numbers of the machines.
    blocks : tuple of int
        Machines to which the sent blocks belong, in their order.
    members : tuple of int
        For a sum, the machines whose numbers it contains.
    """

    sender: int
    receiver: int
    blocks: tuple[int, ...]
    members: tuple[int, ...] = ()


def gathering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine receives the block of every machine.

    The algorithm is recursive doubling if the number of machines is a power of 2, otherwise that of
    Bruck et al. (1997).
    """
    if size > RING_BYTES:
        for step in range(world - 1):
            for rank in range(world):
                yield Step(rank, (rank + 1) % world, ((rank - step) % world,))
        return
    n_blocks, doubling = 1, world & (world - 1) == 0
    while n_blocks < world:
        count = min(n_blocks, world - n_blocks)
        for rank in range(world):
            if doubling:
                first = rank // n_blocks * n_blocks
                yield Step(rank, rank ^ n_blocks, tuple(range(first, first + n_blocks)))
            else:
                blocks = tuple((rank + k) % world for k in range(count))
                yield Step(rank, (rank - n_blocks) % world, blocks)
        n_blocks += count


def scattering(world: int, size: int = 0) -> Iterator[Step]:
    """Yield the steps by which every machine receives the sum of its block.

    The algorithm is recursive halving. If the number of machines is not a power of 2, the last ones
    form pairs: the second machine of a pair sends all its numbers to the first, its leader, and
    receives its sum at the end (``linker_topo.cpp``).
    """
    power = 1 << (world.bit_length() - 1)
    if size >= RING_BYTES and power != world:
        for step in range(1, world):
            for rank in range(world):
                block = (rank - step) % world
                whose = tuple(sorted((rank - k) % world for k in range(step)))
                yield Step(rank, (rank + 1) % world, (block,), whose)
        return
    single = world - 2 * (world - power)
    groups: list[tuple[int, ...]] = [(r,) for r in range(single)] + [
        (r, r + 1) for r in range(single, world, 2)
    ]
    everybody = tuple(range(world))
    for leader, *followers in groups:
        for follower in followers:
            yield Step(follower, leader, everybody, (follower,))
    summed, distance = list(groups), power // 2
    while distance:
        before = list(summed)
        for k, group in enumerate(groups):
            first = (k ^ distance) // distance * distance
            blocks = tuple(r for g in groups[first : first + distance] for r in g)
            yield Step(group[0], groups[k ^ distance][0], blocks, before[k])
            summed[k] = tuple(sorted(before[k] + before[k ^ distance]))
        distance //= 2
    for leader, *followers in groups:
        for follower in followers:
            yield Step(leader, follower, (follower,), everybody)
