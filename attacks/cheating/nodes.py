"""Nodes of trees that were grown before anybody's predictions moved, and which rows are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import class_counts, sums_by_node
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, Histogram, LeafValues, NodeSplits

Longs = NDArray[np.int64]
#: Bin of every column, -1 for none, and the label.
Row = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """How a node is split.

    `right`: bool array, shape (b,). Bins of the column whose rows go right.
    `default_left`: Where rows without a value go.
    `left`: The left child; the right one follows it.
    """

    column: int
    right: NDArray[np.bool_]
    default_left: bool
    left: int

    def child(self, row: Row) -> int:
        """Return where a row goes."""
        bin = row[self.column]
        right = not self.default_left if bin < 0 else bool(self.right[bin])
        return self.left + right


@dataclass(frozen=True, eq=False)
class Nodes:
    """Class counts of the nodes of one tree whose sums are known; changed in place.

    `counts`: int64 array, shape (m, total_bins, 2).
    `sizes`: int64 array, shape (m, 2). Of all rows, those without a value included.
    `place`: Of each node in these.
    """

    counts: Longs
    sizes: Longs
    place: Mapping[int, int]
    splits: Mapping[int, Split]

    def take_out(self, row: Row, count: int, offsets: NDArray[np.int32]) -> None:
        """Take so many rows like this out of all nodes on their way."""
        bins = np.array(row[:-1])
        cells = (offsets[:-1] + bins)[bins >= 0]
        node = 0
        while True:
            if node in self.place:
                self.counts[self.place[node], cells, row[-1]] -= count
                self.sizes[self.place[node], row[-1]] -= count
            if node not in self.splits:
                return
            node = self.splits[node].child(row)


@dataclass(frozen=True, eq=False)
class Grown:
    """One tree: its splits, and sums of nodes that were asked for or follow.

    `totals`: int64 array, shape (2,). Sums of all rows.
    `sums`: int64 array, shape (total_bins, 2), by node, with how many answers they are made of.
    """

    totals: Longs
    sums: Mapping[int, tuple[Longs, int]]
    splits: Mapping[int, Split]

    def nodes(self, start: BaseScore, offsets: NDArray[np.int32]) -> Nodes:
        """Count rows by class: how many go left follows from the column that is split."""
        counts = {node: class_counts(sums, start) for node, (sums, _) in self.sums.items()}
        sizes = {0: class_counts(self.totals[None], start)[0]}
        for node, split in self.splits.items():
            if node in counts and split.left in counts:
                column_counts = counts[node][offsets[split.column] : offsets[split.column + 1]]
                right = column_counts[split.right].sum(axis=0)
                if not split.default_left:
                    right = sizes[node] - column_counts[~split.right].sum(axis=0)
                sizes |= {split.left: sizes[node] - right, split.left + 1: right}
        places = {node: k for k, node in enumerate(counts)}
        node_counts = np.array([*counts.values()]).reshape(-1, int(offsets[-1]), 2)
        size = np.array([sizes[node] for node in counts], dtype=np.int64).reshape(-1, 2)
        return Nodes(node_counts, size, places, self.splits)


def unmoved_trees(view: View, offsets: NDArray[np.int32]) -> list[Grown]:
    """Return the trees up to the first that has a leaf value other than 0.

    A sibling's sums are its parent's less the other's.
    """
    moved = [m.tree for _, m in view.messages(LeafValues) if m.value.any()]
    node_sums, totals, every = sums_by_node(view), _totals(view), _splits(view, offsets)
    grown = []
    for tree in sorted(t for t in totals if t <= min(moved, default=t)):
        splits = every.get(tree, {})
        sums_of_node = {0: (node_sums[tree, 0], 1)} if (tree, 0) in node_sums else {}
        for node, split in splits.items():  # parents come first
            for one in (split.left, split.left + 1):
                if node in sums_of_node and (tree, one) in node_sums:
                    other, (sums, n_summands) = 2 * split.left + 1 - one, sums_of_node[node]
                    sums_of_node[one] = node_sums[tree, one], 1
                    sums_of_node[other] = sums - node_sums[tree, one], n_summands + 1
        grown.append(Grown(totals[tree], sums_of_node, splits))
    return grown


def _totals(view: View) -> dict[int, Longs]:
    """Return the sums of all rows of all clients, int64 (2,), by tree."""
    totals: dict[int, Longs] = {}
    for _, m in view.messages(Histogram):
        if len(m.totals):
            totals[m.tree] = totals.get(m.tree, np.zeros(2, np.int64)) + m.totals[0]
    return totals


def _splits(view: View, offsets: NDArray[np.int32]) -> dict[int, dict[int, Split]]:
    splits_of_tree: dict[int, dict[int, Split]] = {}
    for _, m in view.messages(NodeSplits):
        for k, node in enumerate(m.nodes.tolist()):
            column = int(m.feature[k])
            right = np.arange(offsets[column + 1] - offsets[column]) > m.bin[k]
            if np.isnan(m.threshold[k]) and m.categories is not None:
                right = m.categories[k][: len(right)]
            split = Split(column, right, bool(m.default_left[k]), int(m.left[k]))
            splits_of_tree.setdefault(m.tree, {})[node] = split
    return splits_of_tree


def rows_alike(trees: list[Nodes], offsets: NDArray[np.int32]) -> Iterator[tuple[Row, int]]:
    """Yield contents of nodes whose rows of a label are alike in all columns, and how many."""
    for nodes in trees:
        for label in (0, 1):
            left = nodes.sizes[:, label] > 0
            size, counts = nodes.sizes[left, label], nodes.counts[left, :, label]
            largest = np.zeros((len(size), len(offsets) - 1), dtype=np.int64)
            bins, total = largest - 1, largest.copy()
            for c, (low, end) in enumerate(pairwise(offsets.tolist())):
                if end > low:
                    column = counts[:, low:end]
                    largest[:, c], total[:, c] = column.max(axis=1), column.sum(axis=1)
                    bins[:, c] = np.where(total[:, c] > 0, column.argmax(axis=1), -1)
            uniform = ((largest == size[:, None]) | (total == 0)).all(axis=1)
            for k in np.flatnonzero(uniform & (counts >= 0).all(axis=1)).tolist():
                yield (*bins[k].tolist(), label), int(size[k])
