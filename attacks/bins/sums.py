"""Decrypted sums of one column: integers that the rows of a node add up to in every bin."""

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
    """Return the statistics of every row in a tree, shape (N, s), by tree number."""
    roots = {m.tree: m.rows for _, m in view.messages(RootRows)}
    statistics = {}
    for _, m in view.messages(OwnRowStatistics):
        of_all_rows = np.zeros((view.n_rows, m.statistics.shape[1]), dtype=np.int64)
        of_all_rows[roots[m.tree]] = m.statistics
        statistics[m.tree] = of_all_rows
    return statistics


def columns_of(view: View) -> list[Column]:
    """Return the observations of other parties' columns with decrypted sums, by position.

    The sums of a node's sibling are computed as differences, because bins are the same for all
    nodes. This is not done if defenses changed the sums. Rows without a value then have no entry
    either.
    """
    exact = not view.changes(OpenedBinSums, "sums")
    local_columns = {int(c) for local_data in view.own for c in local_data.columns}
    widths, owners = {}, {}
    for _, column_sums in view.messages(BinCounts):
        for column, count in zip(
            column_sums.columns.tolist(), column_sums.n_bins.tolist(), strict=True
        ):
            widths[column], owners[column] = count, column_sums.party
    trees, statistics = replayed(view), brought(view)
    nodes: dict[int, list[NodeSums]] = {c: [] for c in widths if c not in local_columns}
    for (tree, node), sums in _every_node(view, trees if exact else {}, widths).items():
        rows = trees[tree].rows_of(node)
        node_statistics = statistics[tree][rows]
        some = node_statistics.any(axis=1)
        rows, node_statistics = rows[some], node_statistics[some]
        for column, column_sums in sums.items():
            if column in nodes:
                with_missing = np.vstack(
                    [column_sums, node_statistics.sum(axis=0) - column_sums.sum(axis=0)]
                )
                nodes[column].append(NodeSums(tree, rows, node_statistics, with_missing))
    allowed = _allowed(view, trees, {c: widths[c] for c in nodes})
    return [
        Column(owners[c], c, tuple(sorted(seen, key=lambda at: len(at.rows))), allowed[c])
        for c, seen in sorted(nodes.items())
        if seen
    ]


def _every_node(
    view: View, trees: Mapping[int, KnownNodes], widths: Mapping[int, int]
) -> dict[tuple[int, int], dict[int, NDArray[np.int64]]]:
    """Return sums by tree and node, and by column: decrypted ones, and those of siblings."""
    sums_of: dict[tuple[int, int], dict[int, NDArray[np.int64]]] = {}
    for _, m in view.messages(OpenedBinSums):
        ends = np.cumsum([0, *(widths[c] for c in m.columns.tolist())])
        for node, sums in zip(m.nodes.tolist(), m.sums, strict=True):
            here = sums_of.setdefault((m.tree, node), {})
            for column, a, b in zip(m.columns.tolist(), ends[:-1], ends[1:], strict=True):
                here[column] = sums[a:b]
    for tree, tree_nodes in trees.items():
        for parent, left in tree_nodes.left.items():  # in the order of splits: parents come first
            is_open = [(tree, child) in sums_of for child in (left, left + 1)]
            if (tree, parent) not in sums_of or sum(is_open) != 1:
                continue
            open_child = left if is_open[0] else left + 1
            above, below = sums_of[tree, parent], sums_of[tree, open_child]
            rest = {c: above[c] - sums for c, sums in below.items() if c in above}
            sums_of[tree, sibling(open_child)] = rest
    return sums_of


def _allowed(
    view: View, trees: Mapping[int, KnownNodes], widths: Mapping[int, int]
) -> dict[int, NDArray[np.bool_]]:
    """Return the bins that a row can have after all splits of its column, (N, B + 1)."""
    allowed = {c: np.ones((view.n_rows, B + 1), dtype=bool) for c, B in widths.items()}
    for _, m in view.messages(ChosenSplits):
        tree_nodes = trees[m.tree]
        splits = zip(
            m.nodes.tolist(), m.left.tolist(), m.columns.tolist(), m.bins, m.default_left,
            strict=True,
        )  # fmt: skip
        for node, left, column, bin, missing_left in splits:
            if column not in allowed or tree_nodes.left.get(node) != left:
                continue
            goes_left = np.arange(widths[column] + 1) <= bin
            goes_left[-1] = missing_left
            allowed[column][tree_nodes.rows_of(left)] &= goes_left
            allowed[column][tree_nodes.rows_of(left + 1)] &= ~goes_left
    return allowed
