"""Sums of one of LightGBM's machines alone over all columns, as its leader is sent them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column
from fedtrees.attacks.evidence.machines import Told, values_of
from fedtrees.attacks.evidence.shares import shares
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual
from fedtrees.attacks.peeling.sources import MOST_BINS, Sources
from fedtrees.core.view import View
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.lightgbm import BinMappers, FoundSplits, RootSums
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import to_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.files.lightgbm import next_float32
from fedtrees.trees.grid import LARGEST
from fedtrees.trees.lightgbm.bins import Mapper
from fedtrees.trees.lightgbm.growing import Growing, HasMapper
from fedtrees.trees.lightgbm.splits import LeafTotals

#: How far sums may be off, in units of 2^-30: margins are added in float32 here, in float64 there.
_OFF = 300.0

Sums = NDArray[np.int64]


def told_whole(view: View) -> list[str]:
    """Return the machines whose own sums over all columns the principals are sent.

    These are odd machines, which hand a leader all they have; of halving partners, sums of some
    columns alone are seen, and where a row goes by the others is not.
    """
    told = Told.of((s.sender, s.message) for s in view.seen)
    if told.start is None or "num_leaves" not in view.parameters:
        return []
    every = sum(m.sent(int(k)) for m in told.mappers.values() for k in np.flatnonzero(m.used))
    return [
        name
        for name, own in sorted(shares(told.segments).items())
        if name not in view.principals and len(own) == 2 * every and not np.isnan(own).any()
    ]


def machine_columns(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the values that bins tell if each has one, by machine: bins are the same for all."""
    columns = [Column(np.zeros(0, np.float32), np.zeros(0, np.int64), False)] * len(
        view.schema.features
    )
    for _, m in view.messages(BinMappers):
        for k in np.flatnonzero(m.used).tolist():
            values = np.unique(values_of(m, k).values.astype(np.float32))
            columns[m.first + k] = Column(values, np.ones(len(values), np.int64), False)
    return dict.fromkeys(told_whole(view), tuple(columns))


@dataclass(frozen=True, eq=False)
class _Bins:
    """A column: its bins, and where histograms have them (None: not used, all is in one)."""

    mapper: Mapper
    first: int | None


@dataclass
class _Said:
    """What crossed for each tree and step."""

    roots: dict[int, dict[str, RootSums]] = field(default_factory=lambda: defaultdict(dict))
    splits: dict[tuple[int, int], list[FoundSplits]] = field(
        default_factory=lambda: defaultdict(list)
    )
    segments: dict[tuple[int, int], list[HistogramSegment]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @staticmethod
    def of(view: View) -> _Said:
        said = _Said()
        for item in view.seen:
            m = item.message
            if isinstance(m, RootSums):
                said.roots[m.tree][item.sender] = m
            elif isinstance(m, FoundSplits):
                said.splits[m.tree, m.step].append(m)
            elif isinstance(m, HistogramSegment):
                said.segments[m.tree, m.level].append(m)
        return said


@dataclass(frozen=True, eq=False)
class _Grown:
    """A tree, its nodes that have histograms, and these by owner with the sums over all rows."""

    tree: Tree
    nodes: Ints
    sums: Mapping[str, Sums]  # int64 (k, total_bins + d, 2), as of `Residual`
    totals: Mapping[str, Sums]  # int64 (k, 2)


def machine_sources(view: View) -> Sources | None:
    """Read trees, and the histograms of each machine that is told whole; None without any."""
    owners = told_whole(view)
    if not owners:
        return None
    told, said = Told.of((s.sender, s.message) for s in view.seen), _Said.of(view)
    columns = _columns(told, len(view.schema.features))
    cuts = _cuts(columns)
    grown, size = list[_Grown](), 0.0
    for tree in sorted(said.roots):
        one = _grown(view, said, tree, columns, cuts, owners)
        if one is None or (size := size + len(one.nodes) * cuts.total_bins) > MOST_BINS:
            break
        grown.append(one)
    if not grown:
        return None
    start = np.mean([s.score for s in told.starts.values()])
    forest = BinnedForest.of(
        [g.tree for g in grown], [g.nodes for g in grown], cuts, np.float32(start)
    )
    last = [forest.terminal(t, g.nodes) for t, g in enumerate(grown)]
    slack = np.full(len(forest.tree_of), _OFF)
    parts = {}
    for o in owners:
        sums, totals = (
            np.concatenate([of[o][k] for of, k in zip(part, last, strict=True)])
            for part in ([g.sums for g in grown], [g.totals for g in grown])
        )
        parts[o] = Residual(sums, totals, np.zeros(sums.shape[:2], np.bool_), slack)
    return Sources(forest, cuts, parts)


def _columns(told: Told, d: int) -> list[_Bins]:
    none = Mapper(np.array([np.inf]), 0.0, 0.0, False, 0, 1.0)
    found = [_Bins(none, None)] * d
    for c, (owner, k) in told.columns.items():
        m = told.mappers[owner]
        mapper = Mapper(
            m.bins(k), float(m.low[k]), float(m.high[k]), True, int(m.frequent[k]),
            float(m.sparse[k]),
        )  # fmt: skip
        found[c] = _Bins(mapper, told.places[c])
    return found


def _cuts(columns: Sequence[_Bins]) -> Cuts:
    upper = [
        next_float32(c.mapper.bounds[: len(c.mapper.bounds) - c.mapper.missing]) for c in columns
    ]
    for own in upper:
        own[-1] = LARGEST
    low = [c.mapper.low - abs(c.mapper.low) - 1e-5 for c in columns]
    offsets = np.cumsum([0, *map(len, upper)])
    return Cuts(np.concatenate(upper), offsets.astype(np.int32), np.array(low, np.float32))


def _grown(
    view: View, said: _Said, tree: int, columns: Sequence[_Bins], cuts: Cuts, owners: Sequence[str]
) -> _Grown | None:
    """Grow a tree by the splits that all were told; None if some are not seen."""
    p, roots = view.parameters, said.roots[tree].values()
    whole = LeafTotals(
        sum(r.gradient for r in roots), sum(r.hessian for r in roots), sum(r.rows for r in roots)
    )
    growing, step, pair, above = Growing(np.zeros(0, np.intp), whole), 0, (0, -1), 0
    own = {o: _Own(columns, cuts, said.roots[tree][o]) for o in owners}
    for _ in range(p["num_leaves"] - 1):
        if growing.worth(pair, p["min_data_in_leaf"], p["max_depth"]):
            found, seen = said.splits.get((tree, step), []), shares(said.segments[tree, step])
            pair = growing.ordered(pair)
            nodes = [growing.leaves[k].node for k in pair if k >= 0]
            if len(found) < len(said.roots[tree]) or not {*owners} <= {*seen}:
                return None
            for o in owners:
                own[o].told(seen[o], nodes, above)
            growing.settle(pair, [m.splits for m in sorted(found, key=lambda m: m.rank)])
            step += 1
        chosen = growing.best()
        if chosen is None:
            break
        leaf = growing.leaves[chosen]
        assert leaf.best is not None
        mapper, above = columns[leaf.best.feature].mapper, leaf.node
        pair = growing.split(chosen, np.zeros(0, np.int64), mapper)
        left, right = (growing.leaves[k].node for k in pair)
        for one in own.values():
            one.split(above, leaf.best.feature, leaf.best.bin, leaf.best.default_left, left, right)
    if len(growing.leaves) < 2:
        return None
    used: Mapping[int, HasMapper] = dict(enumerate(columns))
    grown = growing.tree(used, growing.values(p["reg_lambda"], p["learning_rate"]))
    place = {node: k for k, node in enumerate(growing.order)}
    nodes = [*own[owners[0]].sums]
    return _Grown(
        grown, np.array([place[n] for n in nodes], np.int32),
        {o: np.stack([one.sums[n] for n in nodes]) for o, one in own.items()},
        {o: np.stack([one.totals[n] for n in nodes]) for o, one in own.items()},
    )  # fmt: skip


class _Own:
    """One machine's own sums of the nodes of a tree, as of `Residual`.

    `sums, totals`: dict of int to int64 array, shape (total_bins + d, 2) and (2,). By node.
    """

    def __init__(self, columns: Sequence[_Bins], cuts: Cuts, root: RootSums) -> None:
        self.columns, self.cuts, self.sums = columns, cuts, dict[int, Sums]()
        self.totals: dict[int, Sums] = {0: to_fixed(np.array([root.gradient, root.hessian]))}

    def told(self, numbers: NDArray[np.float64], nodes: Sequence[int], above: int) -> None:
        """Take the sums of the first of two nodes; the other has what is left of their parent."""
        self.sums[nodes[0]] = self._placed(to_fixed(numbers.reshape(-1, 2)), self.totals[nodes[0]])
        for other in nodes[1:]:
            self.sums[other] = self.sums[above] - self.sums[nodes[0]]

    def _placed(self, numbers: Sums, total: Sums) -> Sums:
        offsets = self.cuts.offsets
        placed = np.zeros((offsets[-1] + len(self.columns), 2), np.int64)
        for f, column in enumerate(self.columns):
            b, often = len(column.mapper.bounds), column.mapper.frequent
            part = np.zeros((b, 2), np.int64)
            if column.first is not None:
                begin = column.first // 2
                part[often == 0 :] = numbers[begin : begin + b - (often == 0)]
            part[often] = 0
            part[often] = total - part.sum(axis=0)
            there = b - column.mapper.missing
            placed[offsets[f] : offsets[f + 1]] = part[:there]
            placed[offsets[-1] + f] = part[there:].sum(axis=0)
        return placed

    def split(self, node: int, f: int, cut: int, default_left: bool, left: int, right: int) -> None:
        """Share out the total of a node between two."""
        begin = self.cuts.offsets[f]
        part = self.sums[node][begin : begin + cut + 1].sum(axis=0)
        if default_left:
            part = part + self.sums[node][self.cuts.offsets[-1] + f]
        self.totals[left], self.totals[right] = part, self.totals[node] - part
