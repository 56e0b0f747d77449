"""Trees grown again from histogram sums, as everybody can who holds the sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.own_sums import own_histograms
from fedtrees.attacks.evidence.readable import some_rows
from fedtrees.core.view import View
from fedtrees.messages.boosting import GlobalHistogram, Histogram, LeafValues
from fedtrees.messages.cuts import CutPoints
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.fixed_point import Bits
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower, with_siblings
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.partition import Decisions

Sums = NDArray[np.int64]

EVERYONE = "everyone"  # the source of sums over all clients
OTHERS = "others"  # the same without what the principals sent


def cuts_of(view: View) -> Cuts | None:
    """Return the cut points that were told, None if none were."""
    for _, m in view.messages(CutPoints):
        return Cuts(m.values, m.offsets, m.minimum, m.categorical)
    return None


def params_of(view: View) -> TreeParams:
    """Return the public parameters of the trees."""
    names = TreeParams.__dataclass_fields__
    return TreeParams(**{k: v for k, v in view.parameters.items() if k in names})


def serves(view: View) -> bool:
    """Tell whether the server is among the principals."""
    return "server" in {view.roles[p] for p in view.principals}


@dataclass(frozen=True, eq=False)
class TreeLevel:
    """Histograms of one level of one tree."""

    # int64 (m, total_bins, 2): of the nodes that were asked for, by source: a client, or `EVERYONE`
    sums: Mapping[str, Sums]
    # int64 (1, 2) or (0, 2): of the root, by source
    totals: Mapping[str, Sums]
    # int64 array: the same over all sources: splits were chosen from them
    shared: Sums
    shared_totals: Sums
    # bool (k, total_bins): splits that might be chosen at the nodes that waited
    allowed: NDArray[np.bool_] | None
    bits: Bits  # Binary places of gradients and hessians

    def summed(self) -> TreeLevel:
        """Return the same with one source, `EVERYONE`."""
        sums, totals = {EVERYONE: self.shared}, {EVERYONE: self.shared_totals}
        return TreeLevel(sums, totals, self.shared, self.shared_totals, self.allowed, self.bits)


def levels_of(view: View) -> dict[int, list[TreeLevel]]:
    """Return the levels of every tree, in order: by client where each is seen, else summed.

    Where rounds are grown on some of the rows, sums are of `OTHERS`, if what the principals sent
    is not sealed: which of their rows were in them is in no message.
    """
    told = {(m.tree, m.nodes.tobytes()): m for _, m in view.messages(GlobalHistogram)}
    levels: dict[int, list[TreeLevel]] = defaultdict(list)
    if not serves(view):
        own = own_histograms(view) if some_rows(view) else {}
        for key, m in told.items():
            parts = {OTHERS: _less(m, own[key])} if key in own else {EVERYONE: m}
            levels[m.tree].append(_level(parts, m))
    elif told or not params_of(view).samples_columns:  # else the columns drawn are in no message
        for key, by_sender in _sent(view).items():
            levels[key[0]].append(_level(by_sender, told.get(key)))
    return dict(levels)


def _less(told: GlobalHistogram, own: Histogram) -> Histogram:
    sums, totals = told.sums - own.sums, told.totals - own.totals
    return Histogram(told.tree, told.nodes, sums, totals, *told.bits)


def _sent(view: View) -> dict[tuple[int, bytes], dict[str, Histogram]]:
    """Return what the server received, by tree and nodes, then by source."""
    groups: dict[tuple[int, bytes], dict[str, Histogram]] = defaultdict(dict)
    for item, m in view.messages(Histogram):
        groups[m.tree, m.nodes.tobytes()][EVERYONE if item.opened else item.sender] = m
    # a secure sum holds the principals' own replies as well
    return {
        key: {EVERYONE: parts[EVERYONE]} if EVERYONE in parts else parts
        for key, parts in groups.items()
    }


def _level(
    parts: Mapping[str, Histogram] | Mapping[str, GlobalHistogram], told: GlobalHistogram | None
) -> TreeLevel:
    sums, totals = ({o: getattr(m, part) for o, m in parts.items()} for part in ("sums", "totals"))
    bits = next(iter(parts.values())).bits
    if told is not None:
        return TreeLevel(sums, totals, told.sums, told.totals, told.allowed, bits)
    return TreeLevel(sums, totals, sum_of(sums), sum_of(totals), None, bits)


def sum_of(parts: Mapping[str, Sums]) -> Sums:
    """Return the sum over all sources."""
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Grown:
    """A tree and its histograms."""

    tree: Tree
    # int32 (k,): nodes with histograms, in the order in which they waited for a split
    nodes: NDArray[np.int32]
    # int64 (k, total_bins, 2): their histograms, by source
    sums: Mapping[str, Sums]
    # int64 (k, 2): sums over all rows of each node, by source
    totals: Mapping[str, Sums]


def grow_again(
    levels: Sequence[TreeLevel],
    cuts: Cuts,
    params: TreeParams,
    complete: NDArray[np.bool_],
    released: LeafValues | None = None,
) -> Grown:
    """Grow a tree as its server did, from the root down, and follow the sums of every source.

    ``complete`` are the features in which no row lacks a value, bool (d,).
    ``released`` are the leaf values that were sent, which a defense may have changed. None, or
    other leaves: the values are those that the sums suggest.
    """
    root, bits = levels[0].shared_totals[0], levels[0].bits
    grower = TreeGrower(cuts, params, root, bits=bits, complete=complete)
    sources = {o: _Source(cuts, totals) for o, totals in levels[0].totals.items()}
    nodes: list[NDArray[np.int32]] = []
    for level in levels:
        waiting, built = grower.nodes, grower.to_build
        for o, source in sources.items():
            source.complete(waiting, built, level.sums[o])
        nodes.append(waiting)
        chosen = grower.decide(level.shared, level.allowed)
        for source in sources.values():
            source.split(chosen)
    known = released is not None and np.array_equal(released.nodes, grower.leaves()[0])
    every = np.concatenate(nodes)
    return Grown(
        grower.finish(released.value if released is not None and known else None),
        every,
        {o: np.concatenate(s.levels) for o, s in sources.items()},
        {o: np.array([s.total[n] for n in every.tolist()]) for o, s in sources.items()},
    )


class _Source:
    """One source's histograms of a tree that grows.

    Attributes
    ----------
    levels : list of int64 array, shape (k, total_bins, 2)
        Histograms of all nodes of every level.
    total : dict of int to int64 array, shape (2,)
        Sums over the rows of every node.
    """

    def __init__(self, cuts: Cuts, totals: Sums) -> None:
        self.cuts, self.levels = cuts, list[Sums]()
        self.total: dict[int, Sums] = {0: totals[0]}
        self._of: dict[int, Sums] = {}  # the histogram of every node so far
        self._parent: dict[int, int] = {}

    def complete(self, waiting: NDArray[np.int32], built: NDArray[np.int32], sums: Sums) -> None:
        """Take the histograms of the nodes built, and tell those of their siblings."""
        if len(built) < len(waiting):
            above = np.stack([self._of[self._parent[n]] for n in waiting[::2].tolist()])
            sums = with_siblings(sums, built == waiting[::2], above)
        self.levels.append(sums)
        self._of.update(zip(waiting.tolist(), sums, strict=True))

    def split(self, chosen: Decisions) -> None:
        """Share out the totals of split nodes among their children."""
        for k, node in enumerate(chosen.nodes.tolist()):
            left, f = int(chosen.left[k]), chosen.feature[k]
            hist = self._of[node][self.cuts.offsets[f] : self.cuts.offsets[f + 1]]
            part = hist[_left_bins(chosen, k, len(hist))].sum(axis=0)
            if chosen.default_left[k]:
                part = part + self.total[node] - hist.sum(axis=0)
            self.total[left], self.total[left + 1] = part, self.total[node] - part
            self._parent[left] = node


def _left_bins(chosen: Decisions, k: int, n: int) -> NDArray[np.bool_]:
    """Return which of the n bins of its feature split k sends left."""
    left: NDArray[np.bool_] = np.arange(n) <= chosen.bin[k]
    if chosen.categories is not None and np.isnan(chosen.threshold[k]):
        right = chosen.categories[k, :n]
        left = ~np.pad(right, (0, n - len(right)))
    return left
