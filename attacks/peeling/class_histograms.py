"""Trees with class counts in every node, and in each bin of the requested features."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.replay import EVERYONE, cuts_of
from fedtrees.attacks.peeling.rows import CUT, DEFAULT_LEFT, FEATURE, LEFT, RIGHT, Ints
from fedtrees.core.compilation import kernel
from fedtrees.core.view import View
from fedtrees.messages.aggregation import MaskSurvivors
from fedtrees.messages.forests import ClassCounts, ClassCountsRequest, ClassTotals
from fedtrees.messages.horizontal import NodeSplits
from fedtrees.trees.binning import Cuts
from fedtrees.trees.forest.params import ForestParams

Longs = NDArray[np.int64]
#: Largest number of counts, of 8 bytes each: 400 MB.
MOST_COUNTS = 5e7


@dataclass(frozen=True, eq=False)
class AskedForest:
    """All trees in one array, with splits as bins, and the requested features of each node.

    Attributes
    ----------
    start : int32 array, shape (T + 1,)
        Nodes of tree ``t`` are ``start[t]:start[t + 1]``.
    nodes : int32 array, shape (n_nodes, 5)
        Columns as in `fedtrees.attacks.peeling.rows.BinnedForest`. Children are numbered over all
        trees and follow their parent.
    pairs : int64 array, shape (n_nodes + 1,)
        The features ``feature[pairs[v]:pairs[v + 1]]`` of node v were requested.
    feature : int32 array, shape (p,)
        Requested features.
    at : int64 array, shape (p + 1,)
        First bin of each among the counts. Missing values come last.
    offsets : int32 array, shape (d + 1,)
        Columns of a row's mask: bins of feature f, then its missing values.
    """

    start: Ints  # int32 (T + 1,)
    nodes: Ints
    pairs: Longs
    feature: Ints  # int32 (p,)
    at: Longs
    offsets: Ints

    @property
    def trees(self) -> int:
        """Number of trees T."""
        return len(self.start) - 1

    @property
    def arrays(self) -> tuple[Ints, Ints, Longs, Ints, Longs, Ints]:
        """Arrays that kernels receive."""
        return self.start, self.nodes, self.pairs, self.feature, self.at, self.offsets

    @property
    def levels(self) -> int:
        """Number of nodes on the longest path."""
        depth = np.zeros(len(self.nodes), dtype=np.int64)
        for v in np.flatnonzero(self.nodes[:, FEATURE] >= 0):
            depth[self.nodes[v, [LEFT, RIGHT]]] = depth[v] + 1
        return int(depth.max(initial=0)) + 1


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of one source: int64 (requested bins, K) and, in every node, (n_nodes, K)."""

    bins: Longs
    nodes: Longs


@dataclass(frozen=True, eq=False)
class CountedSources:
    """The trees of a run, and the class counts of each source: a client, or `EVERYONE`."""

    forest: AskedForest
    cuts: Cuts
    parts: Mapping[str, Counts]


def counts_are_altered(view: View) -> bool:
    """Return whether a defense changes class counts, so that they do not prove any rows."""
    return any(view.changes(kind, "counts") for kind in (ClassCounts, ClassTotals))


def counted_sources(view: View) -> CountedSources | None:
    """Read trees and class counts from a view. None if there are none."""
    cuts = cuts_of(view)
    requests: dict[int, list[ClassCountsRequest]] = defaultdict(list)
    for _, m in view.messages(ClassCountsRequest):
        requests[m.tree].append(m)
    splits: dict[int, list[NodeSplits]] = defaultdict(list)
    for _, split in view.messages(NodeSplits):
        splits[split.tree].append(split)
    totals = _by_source(view, ClassTotals)
    counts_of = _by_source(view, ClassCounts)
    if cuts is None or not totals or not counts_of:
        return None
    owners = (
        [EVERYONE] if EVERYONE in counts_of else [o for o in counts_of if o not in view.principals]
    )
    trees = [
        t
        for t in sorted(requests)
        if all(
            len(counts_of[o].get(t, ())) == len(requests[t]) and t in totals.get(o, {})
            for o in owners
        )
    ]
    if EVERYONE in counts_of:
        trees = _of_everyone(view, trees, totals[EVERYONE])
    size = len(owners) * len(view.schema.classes) * 2.0
    used = np.cumsum([size * sum(_bins_of(m, cuts).sum() for m in requests[t]) for t in trees])
    trees = trees[: max(1, int((used <= MOST_COUNTS).sum()))]
    owners = [o for o in owners if all(totals[o][t][0].counts.any() for t in trees)]
    if not owners or not trees:
        return None
    forest, moved = _forest(trees, requests, splits, cuts)
    parts = {}
    for o in owners:
        bins = np.zeros((int(forest.at[-1]), len(view.schema.classes)), dtype=np.int64)
        bins[moved] = np.concatenate([m.counts for t in trees for m in counts_of[o][t]])
        nodes = np.zeros((len(forest.nodes), bins.shape[1]), dtype=np.int64)
        nodes[forest.start[:-1]] = [totals[o][t][0].counts for t in trees]
        _complete(*forest.arrays, bins, nodes)
        parts[o] = Counts(bins, nodes)
    return CountedSources(forest, cuts, parts)


def _of_everyone(
    view: View, trees: list[int], totals: Mapping[int, list[ClassTotals]]
) -> list[int]:
    """Return the trees whose sums contain all clients, excluding those with dropped clients."""
    if view.parameters.get("max_samples") is None:
        return [t for t in trees if totals[t][0].counts.sum() == view.n_rows]
    stayed = {m.parties for _, m in view.messages(MaskSurvivors)}
    lost = view.changes("sums", "parties") or len(stayed) > 1
    return [] if lost or len({int(totals[t][0].counts.sum()) for t in trees}) > 1 else trees


def _by_source(view: View, kind):  # type: ignore[no-untyped-def]
    """Return messages of one type by source and tree, in order. A secure sum has one source."""
    messages = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
    for item, m in view.messages(kind):
        messages[EVERYONE if item.opened else item.sender][m.tree].append(m)
    return messages


def _bins_of(message: ClassCountsRequest, cuts: Cuts) -> Longs:
    bins: Longs = cuts.n_bins[message.features].astype(np.int64)
    return bins


def _forest(
    trees: list[int],
    requests: Mapping[int, list[ClassCountsRequest]],
    splits: Mapping[int, list[NodeSplits]],
    cuts: Cuts,
) -> tuple[AskedForest, Longs]:
    """Return the forest, and the positions of the sent counts in its order."""
    sizes = [1 + 2 * sum(len(s.nodes) for s in splits.get(t, ())) for t in trees]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    nodes = np.full((start[-1], 5), -1, dtype=np.int32)
    of_pair, features = [], []
    for first, t in zip(start.tolist(), trees, strict=False):
        for s in splits.get(t, ()):
            v = first + s.nodes
            nodes[v, FEATURE] = s.feature
            nodes[v, CUT] = s.bin
            nodes[v, DEFAULT_LEFT] = s.default_left
            nodes[v, LEFT], nodes[v, RIGHT] = first + s.left, first + s.left + 1
        for m in requests[t]:
            of_pair.append(first + np.repeat(m.nodes, np.diff(m.offsets)))
            features.append(m.features)
    node, feature = np.concatenate(of_pair), np.concatenate(features)
    order = np.argsort(node, kind="stable")
    width = cuts.n_bins[feature].astype(np.int64)
    at = np.concatenate([[0], np.cumsum(width[order] + 1)])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = at[:-1]
    before = np.cumsum(width) - width
    moved = np.repeat(place - before, width) + np.arange(int(width.sum()))
    pairs = np.searchsorted(node[order], np.arange(len(nodes) + 1)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(cuts.n_bins + 1)]).astype(np.int32)
    forest = AskedForest(start, nodes, pairs, feature[order].astype(np.int32), at, offsets)
    return forest, moved


@kernel
def _complete(start, nodes, pairs, feature, at, offsets, bins, totals):  # type: ignore[no-untyped-def]
    """Compute the missing values in every requested bin, and the rows in every node."""
    for v in range(nodes.shape[0]):
        for p in range(pairs[v], pairs[v + 1]):
            f = feature[p]
            n = offsets[f + 1] - offsets[f] - 1
            for k in range(bins.shape[1]):
                rest = totals[v, k]
                left = np.int64(0)
                for b in range(n):
                    rest -= bins[at[p] + b, k]
                    left += bins[at[p] + b, k] if b <= nodes[v, CUT] else 0
                bins[at[p] + n, k] = rest
                if nodes[v, FEATURE] == f:
                    left += rest if nodes[v, DEFAULT_LEFT] == 1 else 0
                    totals[nodes[v, LEFT], k] = left
                    totals[nodes[v, RIGHT], k] = totals[v, k] - left


def presence(view: View, owner: str, draws: int) -> float:
    """Return a lower bound on the probability that a row is drawn for a tree.

    A client of n rows draws about ``max_samples * n`` of them
    (`fedtrees.trees.forest.grower.draw_rows`). If clients are not distinguished, the bound is that
    of the client with the smallest probability.

    Parameters
    ----------
    view : View
        Parameters of the forest.
    owner : str
        The client, or `EVERYONE`.
    draws : int
        Number of rows in a tree.
    """
    p = _params(view)
    n = np.arange(1, max(view.n_rows, draws) + 1)
    share = 1.0 if p.max_samples is None else p.max_samples
    size = np.minimum(n, np.maximum(1, np.round(n * share)))
    likely = 1 - (1 - 1 / n) ** size if p.bootstrap else size / n
    return float(likely[size == draws].min() if owner != EVERYONE else likely.min())


def coins(view: View, draws: int, rows: int) -> tuple[int, float]:
    """Return the trials and probability of the binomial number of draws of a row for a tree.

    Parameters
    ----------
    view : View
        Parameters of the forest.
    draws : int
        Number of rows in a tree.
    rows : int
        Number of rows of the source.
    """
    return (draws, 1 / rows) if _params(view).bootstrap else (1, draws / rows)


def _params(view: View) -> ForestParams:
    names = ForestParams.__dataclass_fields__
    return ForestParams(**{k: v for k, v in view.parameters.items() if k in names})
