"""Read the trees of a view and, for every source of histograms, the sums over its rows.

Sources are clients, sums over several clients, and single LightGBM machines, whose leader receives
sums over all columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.applicability import classes_of_leaves, some_rows
from fedtrees.attacks.observations.columns import Column
from fedtrees.attacks.observations.lightgbm import LightGBMTranscript, shares, values_of
from fedtrees.attacks.observations.noise_channels import law_of_sums, reach_of
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    ReplayedTree,
    clients_in,
    cuts_of,
    params_of,
    replay_trees,
)
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual
from fedtrees.core.view import View
from fedtrees.messages.captured import HistogramSegment
from fedtrees.messages.horizontal import BaseScore
from fedtrees.messages.lightgbm import BinMappers, FoundSplits, RootSums
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, UNIT_BITS, to_fixed
from fedtrees.trees.cut_points import LARGEST
from fedtrees.trees.files.lightgbm import next_float32
from fedtrees.trees.lightgbm.bins import Mapper
from fedtrees.trees.lightgbm.growing import Growing, HasMapper, LeafTotals

# Largest number of bins times nodes, of 24 bytes each: 700 MB.
MOST_BINS = 3e7


@dataclass(frozen=True, eq=False)
class Sources:
    """The trees of a run, and the histograms of the terminal nodes among those with a histogram.

    Attributes
    ----------
    forest : BinnedForest
        The trees.
    cuts : Cuts
        Bins of the features.
    parts : mapping of str to Residual
        Histograms of disjoint sets of rows, by client. If the view contains only sums over clients,
        there is one entry, for all clients or for all except the adversary's.
    """

    forest: BinnedForest
    cuts: Cuts
    # disjoint sets of rows
    parts: Mapping[str, Residual]


def sources_of(view: View) -> Sources | None:
    """Read the trees of two classes and their histograms from a view.

    Returns
    -------
    Sources or None
        None if the view contains no histograms with a base score and cut points, if gradients are
        not in the units of two classes, or if it is unknown whether the sums contain the
        adversary's rows (rows are subsampled, or a defense changed the messages).
    """
    if classes_of_leaves(view) != 2:
        return None
    cuts, params = cuts_of(view), params_of(view)
    start = next((m for _, m in view.messages(BaseScore)), None)
    if cuts is None or start is None or (start.g_bits, start.h_bits) != UNIT_BITS:
        return None
    trees: list[ReplayedTree] = []
    size = 0.0
    for one in replay_trees(view, by_client=True):
        first_sums = next(iter(one.sums.values()))
        size += len(first_sums) / 2 * cuts.total_bins * len(one.sums)
        if trees and size > MOST_BINS:
            break
        trees.append(one)
    if not trees:
        return None
    owners = sorted(trees[0].sums)
    if EVERYONE in owners and some_rows(view) and view.rows is not None and len(view.rows):
        return None
    forest = BinnedForest.of(
        [one.tree for one in trees],
        [one.nodes for one in trees],
        cuts,
        start.margin[0],
        view.defense.requirements.gradient_clip,
    )
    terminal = [forest.terminal(t, one.nodes) for t, one in enumerate(trees)]

    def at_terminal_nodes(field: Callable[[ReplayedTree], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([field(one)[k] for one, k in zip(trees, terminal, strict=True)])

    n_summands, off = at_terminal_nodes(lambda t: t.n_summands), at_terminal_nodes(lambda t: t.off)
    parts = {}
    for name in owners:
        if name in view.principals:
            continue  # the rows of a colluding party are known
        law = law_of_sums(view, clients_in(view, name), hiding=False)
        slack = np.ldexp(reach_of(law, n_summands, UNIT_BITS), FIXED_POINT_BITS) + off
        hidden = at_terminal_nodes(lambda t, o=name: t.hidden[o]) if trees[0].hidden else None
        sums = at_terminal_nodes(lambda t, o=name: t.sums[o])
        totals = at_terminal_nodes(lambda t, o=name: t.totals[o][t.nodes])
        conditions = (view.schema.complete, hidden, params.max_depth, params.subsample < 1)
        parts[name] = Residual.of(sums, totals, forest.offsets, slack, *conditions)
    return Sources(forest, cuts, parts)


#: Error of sums in units of 2^-30. We add margins in float32, LightGBM does so in float64.
_OFF = 300.0

Sums = NDArray[np.int64]


def told_whole(view: View) -> list[str]:
    """Return the machines whose separate sums over all columns the adversary receives.

    These are odd machines, which send all their sums to a leader. For halving partners only sums of
    some columns are seen, so that the sides of the remaining splits are unknown.
    """
    messages = LightGBMTranscript.of((s.sender, s.message) for s in view.seen)
    if messages.start is None or "num_leaves" not in view.parameters:
        return []
    total_bins = sum(
        m.sent(int(k)) for m in messages.mappers.values() for k in np.flatnonzero(m.used)
    )
    return [
        name
        for name, machine_sums in sorted(shares(messages.segments).items())
        if name not in view.principals
        and len(machine_sums) == 2 * total_bins
        and not np.isnan(machine_sums).any()
    ]


def machine_columns(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the values in bins if each has one, by machine. The bins are the same for all."""
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
    """A column: its bins, and their position in histograms (None: the column is not used)."""

    mapper: Mapper
    first: int | None


@dataclass
class _Messages:
    """Messages about each tree and step."""

    roots: dict[int, dict[str, RootSums]] = field(default_factory=lambda: defaultdict(dict))
    splits: dict[tuple[int, int], list[FoundSplits]] = field(
        default_factory=lambda: defaultdict(list)
    )
    segments: dict[tuple[int, int], list[HistogramSegment]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @staticmethod
    def of(view: View) -> _Messages:
        messages = _Messages()
        for item in view.seen:
            m = item.message
            if isinstance(m, RootSums):
                messages.roots[m.tree][item.sender] = m
            elif isinstance(m, FoundSplits):
                messages.splits[m.tree, m.step].append(m)
            elif isinstance(m, HistogramSegment):
                messages.segments[m.tree, m.level].append(m)
        return messages


@dataclass(frozen=True, eq=False)
class _TreeHistograms:
    """A tree, its nodes with histograms, and these by owner with the sums over all rows."""

    tree: Tree
    nodes: Ints
    sums: Mapping[str, Sums]  # int64 (k, total_bins + d, 2), as in `Residual`
    totals: Mapping[str, Sums]  # int64 (k, 2)


def machine_sources(view: View) -> Sources | None:
    """Read trees, and the histograms of each machine in `told_whole`. None without any."""
    owners = told_whole(view)
    if not owners:
        return None
    first_messages, messages = (
        LightGBMTranscript.of((s.sender, s.message) for s in view.seen),
        _Messages.of(view),
    )
    columns = _columns(first_messages, len(view.schema.features))
    cuts = _cuts(columns)
    grown, size = list[_TreeHistograms](), 0.0
    for tree in sorted(messages.roots):
        one = _replay_tree(view, messages, tree, columns, cuts, owners)
        if one is None or (size := size + len(one.nodes) * cuts.total_bins) > MOST_BINS:
            break
        grown.append(one)
    if not grown:
        return None
    start = np.mean([s.score for s in first_messages.starts.values()])
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


def _columns(messages: LightGBMTranscript, d: int) -> list[_Bins]:
    unused = Mapper(np.array([np.inf]), 0.0, 0.0, False, 0, 1.0)
    columns = [_Bins(unused, None)] * d
    for c, (owner, k) in messages.columns.items():
        m = messages.mappers[owner]
        mapper = Mapper(
            m.bins(k), float(m.low[k]), float(m.high[k]), True, int(m.frequent[k]),
            float(m.sparse[k]),
        )  # fmt: skip
        columns[c] = _Bins(mapper, messages.places[c])
    return columns


def _cuts(columns: Sequence[_Bins]) -> Cuts:
    upper = [
        next_float32(c.mapper.bounds[: len(c.mapper.bounds) - c.mapper.missing]) for c in columns
    ]
    for edges in upper:
        edges[-1] = LARGEST
    low = [c.mapper.low - abs(c.mapper.low) - 1e-5 for c in columns]
    offsets = np.cumsum([0, *map(len, upper)])
    return Cuts(np.concatenate(upper), offsets.astype(np.int32), np.array(low, np.float32))


def _replay_tree(
    view: View,
    messages: _Messages,
    tree: int,
    columns: Sequence[_Bins],
    cuts: Cuts,
    owners: Sequence[str],
) -> _TreeHistograms | None:
    """Grow a tree by the broadcast splits. None if some are not seen."""
    p, roots = view.parameters, messages.roots[tree].values()
    root_totals = LeafTotals(
        sum(r.gradient for r in roots), sum(r.hessian for r in roots), sum(r.rows for r in roots)
    )
    growing, step, pair, above = Growing(np.zeros(0, np.intp), root_totals), 0, (0, -1), 0
    machine_sums = {o: _MachineSums(columns, cuts, messages.roots[tree][o]) for o in owners}
    for _ in range(p["num_leaves"] - 1):
        if growing.worth(pair, p["min_data_in_leaf"], p["max_depth"]):
            splits, seen = (
                messages.splits.get((tree, step), []),
                shares(messages.segments[tree, step]),
            )
            pair = growing.ordered(pair)
            nodes = [growing.leaves[k].node for k in pair if k >= 0]
            if len(splits) < len(messages.roots[tree]) or not {*owners} <= {*seen}:
                return None
            for o in owners:
                machine_sums[o].set_children(seen[o], nodes, above)
            growing.settle(pair, [m.splits for m in sorted(splits, key=lambda m: m.rank)])
            step += 1
        chosen = growing.best()
        if chosen is None:
            break
        leaf = growing.leaves[chosen]
        assert leaf.best is not None
        mapper, above = columns[leaf.best.feature].mapper, leaf.node
        pair = growing.split(chosen, np.zeros(0, np.int64), mapper)
        left, right = (growing.leaves[k].node for k in pair)
        for one in machine_sums.values():
            one.split(above, leaf.best.feature, leaf.best.bin, leaf.best.default_left, left, right)
    if len(growing.leaves) < 2:
        return None
    used: Mapping[int, HasMapper] = dict(enumerate(columns))
    grown = growing.tree(used, growing.values(p["reg_lambda"], p["learning_rate"]))
    place = {node: k for k, node in enumerate(growing.order)}
    nodes = [*machine_sums[owners[0]].sums]
    return _TreeHistograms(
        grown, np.array([place[n] for n in nodes], np.int32),
        {o: np.stack([one.sums[n] for n in nodes]) for o, one in machine_sums.items()},
        {o: np.stack([one.totals[n] for n in nodes]) for o, one in machine_sums.items()},
    )  # fmt: skip


class _MachineSums:
    """Sums of one machine in the nodes of a tree, in the format of `Residual`.

    ``sums`` and ``totals`` map nodes to int64 arrays of shape (total_bins + d, 2) and (2,).
    """

    def __init__(self, columns: Sequence[_Bins], cuts: Cuts, root: RootSums) -> None:
        self.columns, self.cuts, self.sums = columns, cuts, dict[int, Sums]()
        self.totals: dict[int, Sums] = {0: to_fixed(np.array([root.gradient, root.hessian]))}

    def set_children(self, numbers: NDArray[np.float64], nodes: Sequence[int], above: int) -> None:
        """Set the sums of the first of two nodes. The other gets the parent's less these."""
        self.sums[nodes[0]] = self._place_sums(
            to_fixed(numbers.reshape(-1, 2)), self.totals[nodes[0]]
        )
        for other in nodes[1:]:
            self.sums[other] = self.sums[above] - self.sums[nodes[0]]

    def _place_sums(self, numbers: Sums, total: Sums) -> Sums:
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
            n_present = b - column.mapper.missing
            placed[offsets[f] : offsets[f + 1]] = part[:n_present]
            placed[offsets[-1] + f] = part[n_present:].sum(axis=0)
        return placed

    def split(self, node: int, f: int, cut: int, default_left: bool, left: int, right: int) -> None:
        """Distribute the total of a node to its children."""
        begin = self.cuts.offsets[f]
        part = self.sums[node][begin : begin + cut + 1].sum(axis=0)
        if default_left:
            part = part + self.sums[node][self.cuts.offsets[-1] + f]
        self.totals[left], self.totals[right] = part, self.totals[node] - part
