"""What opened sums say of one column: whole numbers that rows of a node add up to in every bin."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.subsets import Column, NodeSums
from fedtrees.core.view import View
from fedtrees.messages.vertical import (
    BinCounts,
    ChosenSplits,
    KnownNodes,
    OpenedBinSums,
    OwnRowStatistics,
    RootRows,
    replayed,
    sibling,
)


def brought(view: View) -> dict[int, NDArray[np.int64]]:
    """Return what every row brings to the sums of a tree, shape (N, s), by the tree's number."""
    roots = {m.tree: m.rows for _, m in view.messages(RootRows)}
    found = {}
    for _, m in view.messages(OwnRowStatistics):
        every = np.zeros((view.n_rows, m.statistics.shape[1]), dtype=np.int64)
        every[roots[m.tree]] = m.statistics
        found[m.tree] = every
    return found


def columns_of(view: View) -> list[Column]:
    """Return what is seen of others' columns whose sums the principals opened, by position.

    The sums of a node's other child are what is left of the node's: bins are those of all rows. It
    is not added where defenses changed sums; then rows without a value have none either.
    """
    exact = not view.changes(OpenedBinSums, "sums")
    own = {int(c) for held in view.own for c in held.columns}
    widths, owners = {}, {}
    for _, told in view.messages(BinCounts):
        for column, count in zip(told.columns.tolist(), told.n_bins.tolist(), strict=True):
            widths[column], owners[column] = count, told.party
    trees, brings = replayed(view), brought(view)
    nodes: dict[int, list[NodeSums]] = {c: [] for c in widths if c not in own}
    for (tree, node), sums in _every_node(view, trees if exact else {}, widths).items():
        rows = trees[tree].rows_of(node)
        mine = brings[tree][rows]
        some = mine.any(axis=1)
        rows, mine = rows[some], mine[some]
        for column, told in sums.items():
            if column in nodes:
                whole = np.vstack([told, mine.sum(axis=0) - told.sum(axis=0)])
                nodes[column].append(NodeSums(tree, rows, mine, whole))
    allowed = _allowed(view, trees, {c: widths[c] for c in nodes})
    return [
        Column(owners[c], c, tuple(sorted(seen, key=lambda at: len(at.rows))), allowed[c])
        for c, seen in sorted(nodes.items())
        if seen
    ]


def _every_node(
    view: View, trees: Mapping[int, KnownNodes], widths: Mapping[int, int]
) -> dict[tuple[int, int], dict[int, NDArray[np.int64]]]:
    """Return sums by tree and node, and by column: as opened, and of the other children."""
    found: dict[tuple[int, int], dict[int, NDArray[np.int64]]] = {}
    for _, m in view.messages(OpenedBinSums):
        ends = np.cumsum([0, *(widths[c] for c in m.columns.tolist())])
        for node, sums in zip(m.nodes.tolist(), m.sums, strict=True):
            here = found.setdefault((m.tree, node), {})
            for column, a, b in zip(m.columns.tolist(), ends[:-1], ends[1:], strict=True):
                here[column] = sums[a:b]
    for tree, known in trees.items():
        for parent, left in known.left.items():  # in the order of splits: parents come first
            asked = [(tree, child) in found for child in (left, left + 1)]
            if (tree, parent) not in found or sum(asked) != 1:
                continue
            told = left if asked[0] else left + 1
            above, below = found[tree, parent], found[tree, told]
            rest = {c: above[c] - sums for c, sums in below.items() if c in above}
            found[tree, sibling(told)] = rest
    return found


def _allowed(
    view: View, trees: Mapping[int, KnownNodes], widths: Mapping[int, int]
) -> dict[int, NDArray[np.bool_]]:
    """Return in which bins a row may be after all splits of its column, (N, B + 1), by column."""
    found = {c: np.ones((view.n_rows, B + 1), dtype=bool) for c, B in widths.items()}
    for _, m in view.messages(ChosenSplits):
        known = trees[m.tree]
        splits = zip(
            m.nodes.tolist(), m.left.tolist(), m.columns.tolist(), m.bins, m.default_left,
            strict=True,
        )  # fmt: skip
        for node, left, column, bin, missing_left in splits:
            if column not in found or known.left.get(node) != left:
                continue
            goes_left = np.arange(widths[column] + 1) <= bin
            goes_left[-1] = missing_left
            found[column][known.rows_of(left)] &= goes_left
            found[column][known.rows_of(left + 1)] &= ~goes_left
    return found
