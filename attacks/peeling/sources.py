"""Read the trees of a view and, for every source of histograms, the sums over its rows.

Sources are clients, sums over several clients, and single LightGBM machines, whose leader receives
sums over all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.applicability import classes_of_leaves, some_rows
from fedtrees.attacks.observations.columns import Column
from fedtrees.attacks.observations.lightgbm import (
    BinnedColumn,
    LightGBMTranscript,
    shares,
    values_of,
)
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    ReplayedTree,
    clients_in,
    cuts_of,
    law_of_sums,
    params_of,
    reach_of,
    replay_trees,
)
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore
from fedtrees.messages.lightgbm import BinMappers, RootSums
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, UNIT_BITS, to_fixed
from fedtrees.trees.cut_points import LARGEST
from fedtrees.trees.files.lightgbm import next_float32
from fedtrees.trees.lightgbm.growing import Split

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

    def at_terminal_nodes(field: Callable[[ReplayedTree], NDArray[Any]]) -> NDArray[Any]:
        return forest.at_terminal_nodes([one.nodes for one in trees], map(field, trees))

    n_summands, off = at_terminal_nodes(lambda t: t.n_summands), at_terminal_nodes(lambda t: t.off)
    parts = {}
    for name in owners:
        if name in view.principals:
            continue  # the rows of a colluding party are known
        law = law_of_sums(view, clients_in(view, name), hiding=False)
        slack = np.ldexp(reach_of(law, n_summands, UNIT_BITS), FIXED_POINT_BITS) + off
        hidden = None
        if trees[0].hidden:
            hidden = at_terminal_nodes(partial(lambda owner, t: t.hidden[owner], name))
        sums = at_terminal_nodes(partial(lambda owner, t: t.sums[owner], name))
        totals = at_terminal_nodes(partial(lambda owner, t: t.totals[owner][t.nodes], name))
        conditions = (view.schema.complete, hidden, params.max_depth, params.subsample < 1)
        parts[name] = Residual.of(sums, totals, forest.offsets, slack, *conditions)
    return Sources(forest, cuts, parts)


#: Error of sums in units of 2^-30. We add margins in float32, LightGBM does so in float64.
_OFF = 300.0

Sums = NDArray[np.int64]


def machines_with_whole_sums(view: View) -> list[str]:
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
    return dict.fromkeys(machines_with_whole_sums(view), tuple(columns))


@dataclass(frozen=True, eq=False)
class _TreeHistograms:
    """A tree, its nodes with histograms, and these by owner with the sums over all rows."""

    tree: Tree
    nodes: Ints
    sums: Mapping[str, Sums]  # int64 (k, total_bins + d, 2), as in `Residual`
    totals: Mapping[str, Sums]  # int64 (k, 2)


def machine_sources(view: View) -> Sources | None:
    """Read trees, and the histograms of `machines_with_whole_sums`. None without any."""
    owners = machines_with_whole_sums(view)
    if not owners:
        return None
    messages = LightGBMTranscript.of((s.sender, s.message) for s in view.seen)
    columns = messages.binned_columns(len(view.schema.features))
    cuts = _cuts(columns)
    grown, size = list[_TreeHistograms](), 0.0
    for tree in sorted(messages.tree_roots):
        one = _replay_tree(view, messages, tree, columns, cuts, owners)
        if one is None or (size := size + len(one.nodes) * cuts.total_bins) > MOST_BINS:
            break
        grown.append(one)
    if not grown:
        return None
    start = np.mean([s.score for s in messages.starts.values()])
    forest = BinnedForest.of(
        [g.tree for g in grown], [g.nodes for g in grown], cuts, np.float32(start)
    )
    nodes, slack = [g.nodes for g in grown], np.full(len(forest.tree_of), _OFF)
    parts = {}
    for o in owners:
        sums = forest.at_terminal_nodes(nodes, [g.sums[o] for g in grown])
        totals = forest.at_terminal_nodes(nodes, [g.totals[o] for g in grown])
        parts[o] = Residual(sums, totals, np.zeros(sums.shape[:2], np.bool_), slack)
    return Sources(forest, cuts, parts)


def _cuts(columns: Sequence[BinnedColumn]) -> Cuts:
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
    messages: LightGBMTranscript,
    tree: int,
    columns: Sequence[BinnedColumn],
    cuts: Cuts,
    owners: Sequence[str],
) -> _TreeHistograms | None:
    """Grow a tree by the broadcast splits. None if some are not seen."""
    roots = messages.tree_roots[tree]
    followed = _FollowedSums(
        {o: _MachineSums(columns, cuts, roots[o]) for o in owners}, messages, tree
    )
    grown = messages.grow_tree(view, tree, columns, followed)
    if grown is None or len(grown[0].leaves) < 2:
        return None
    place = {node: k for k, node in enumerate(grown[0].order)}
    machine_sums = followed.machine_sums
    nodes = [*machine_sums[owners[0]].sums]
    return _TreeHistograms(
        grown[1], np.array([place[n] for n in nodes], np.int32),
        {o: np.stack([one.sums[n] for n in nodes]) for o, one in machine_sums.items()},
        {o: np.stack([one.totals[n] for n in nodes]) for o, one in machine_sums.items()},
    )  # fmt: skip


@dataclass
class _FollowedSums:
    """The sums of all machines in a tree that grows (`TreeObserver`)."""

    machine_sums: Mapping[str, _MachineSums]
    messages: LightGBMTranscript
    tree: int
    above: int = 0  # the node that was split last

    def see_children(self, step: int, nodes: Sequence[int]) -> bool:
        seen = shares(self.messages.tree_segments.get((self.tree, step), []))
        if not self.machine_sums.keys() <= seen.keys():
            return False
        for name, sums in self.machine_sums.items():
            sums.set_children(seen[name], nodes, self.above)
        return True

    def see_split(self, node: int, split: Split, left: int, right: int) -> None:
        self.above = node
        for sums in self.machine_sums.values():
            sums.split(node, split.feature, split.bin, split.default_left, left, right)


class _MachineSums:
    """Sums of one machine in the nodes of a tree, in the format of `Residual`.

    ``sums`` and ``totals`` map nodes to int64 arrays of shape (total_bins + d, 2) and (2,).
    """

    def __init__(self, columns: Sequence[BinnedColumn], cuts: Cuts, root: RootSums) -> None:
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
