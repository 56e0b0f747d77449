"""Rebuild tree nodes and their class counts from the messages of a malicious server.

Only trees that were grown before the first leaf value other than 0 are used, because all rows of a
class then have equal gradients.

Class counts are also computed from gradient histograms that a malicious server received. These
counts are exact as long as all predictions still equal the base score, because all rows of a class
then have the same gradient and hessian.

If the sums contain noise, the class counts of bins are estimated as the most probable integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, Histogram, LeafValues, NodeSplits


def unreadable(view: View) -> Reason | None:
    """Return why class counts cannot be computed from the sums, None if they can."""
    if len(view.schema.classes) != 2:
        return Reason("needs-classes", classes=2)
    return None if sums_by_node(view) else Reason("no-histograms")


def sums_by_node(view: View) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Return gradient sums over all clients, int64 (total_bins, 2), by tree and node."""
    sums_of_node: dict[tuple[int, int], NDArray[np.int64]] = {}
    for _, m in view.messages(Histogram):
        for node, sums in zip(m.nodes.tolist(), m.sums, strict=True):
            sums_of_node[m.tree, node] = (
                sums_of_node[m.tree, node] + sums if (m.tree, node) in sums_of_node else sums
            )
    return sums_of_node


def class_counts(sums: NDArray[np.int64], start: BaseScore, parts: int = 1) -> NDArray[np.int64]:
    """Compute class counts from sums of gradients and hessians.

    A row of class y contributes the gradient p - y and the hessian p (1 - p).

    Parameters
    ----------
    sums : int64 array, shape (b, 2)
        Gradient and hessian sums of b bins, as fixed-point numbers.
    start : BaseScore
        Initial log-odds and the fixed-point units of the sums.
    parts : int
        Divisor of the sums. The counts are those of an average client if it is the number of
        clients.

    Returns
    -------
    counts : int64 array, shape (b, 2)
        Number of rows of class 0 and of class 1 in every bin.
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    g, h = np.ldexp(sums.astype(np.float64).T / parts, [[-start.g_bits], [-start.h_bits]])
    rows = np.rint(h / (p * (1 - p)))
    ones = np.rint(rows * p - g)
    return np.column_stack([rows - ones, ones]).astype(np.int64)


Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

# The posterior is evaluated at integers up to this distance from the Gaussian mean.
_AROUND = 4
# Minimum of the expected counts, so that no count is excluded.
_LEAST = 0.05


def likely_class_counts(
    sums: Doubles, start: BaseScore, variance: tuple[float, float], expected: Doubles
) -> Longs:
    """Return the most probable class counts under independent Poisson priors.

    A row of class y contributes the gradient p - y and the hessian p (1 - p). The noise is treated
    as Gaussian.

    Parameters
    ----------
    sums : float64 array, shape (b, 2)
        Sums of gradients and hessians.
    start : BaseScore
        Initial log-odds.
    variance : tuple of float
        Variance of the noise on a gradient and a hessian sum.
    expected : float64 array, shape (b, 2)
        Prior mean of the count of each class.

    Returns
    -------
    counts : int64 array, shape (b, 2)
    """
    from scipy.stats import poisson  # takes half a second to load

    p = 1 / (1 + np.exp(-float(start.margin[0])))
    contribution = np.array([[p, p - 1], [p * (1 - p), p * (1 - p)]])
    noise, prior_mean = np.asarray(variance), np.maximum(expected, _LEAST)
    # Posterior mean if the Poisson prior is replaced by a Gaussian of the same mean and variance.
    weight = contribution.T @ (contribution / noise[:, None])
    weighted_sums = (sums / noise) @ contribution
    precision = weight + np.eye(2) / prior_mean[:, None, :]
    mean = np.linalg.solve(precision, (weighted_sums + 1.0)[..., None])[..., 0]
    best, likeliest = np.full(len(sums), -np.inf), np.zeros(sums.shape, np.int64)
    center = np.maximum(np.rint(mean), 0).astype(np.int64)
    for offset in product(range(-_AROUND, _AROUND + 1), repeat=2):
        counts = center + np.array(offset)
        residual = sums - counts @ contribution.T
        log_posterior = (
            poisson.logpmf(counts, prior_mean).sum(axis=1) - (residual**2 / noise).sum(axis=1) / 2
        )
        better = log_posterior > best
        best[better], likeliest[better] = log_posterior[better], counts[better]
    return likeliest


def shrink_counts(counts: Doubles, variance: Doubles) -> Doubles:
    """Shrink the counts of bins towards their mean by the share of noise in their variance.

    Parameters
    ----------
    counts : float64 array, shape (b, 2)
        Noisy counts.
    variance : float64 array, shape (2,)
        Variance of the noise.
    """
    mean = counts.mean(axis=0)
    spread = np.maximum(counts.var(axis=0) - variance, 0)
    return np.asarray(mean + spread / (spread + variance) * (counts - mean))


#: A row: the bin of every column, -1 for a missing value, and the label.
Row = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """Split of a node.

    Attributes
    ----------
    column : int
        Split column.
    right : bool array, shape (b,)
        Whether rows in each bin of the column go right.
    default_left : bool
        Whether rows with a missing value go left.
    left : int
        Number of the left child. The right child has the next number.
    """

    column: int
    right: NDArray[np.bool_]
    default_left: bool
    left: int

    def child(self, row: Row) -> int:
        """Return the number of the child that a row reaches."""
        bin = row[self.column]
        right = not self.default_left if bin < 0 else bool(self.right[bin])
        return self.left + right


@dataclass(frozen=True, eq=False)
class Nodes:
    """Class counts of the nodes of one tree whose sums are known. `take_out` changes them.

    Attributes
    ----------
    counts : int64 array, shape (m, total_bins, 2)
        Class counts of every bin of m nodes.
    sizes : int64 array, shape (m, 2)
        Class counts of the nodes, including rows with missing values.
    place : mapping of int to int
        Position of a node in `counts` and `sizes`.
    splits : mapping of int to Split
        Split of every inner node.
    """

    counts: Longs
    sizes: Longs
    place: Mapping[int, int]
    splits: Mapping[int, Split]

    def take_out(self, row: Row, count: int, offsets: NDArray[np.int32]) -> None:
        """Subtract rows from all nodes that they reach.

        Parameters
        ----------
        row : Row
            The row.
        count : int
            Its multiplicity.
        offsets : int32 array, shape (d + 1,)
            The bins of column ``f`` are ``offsets[f]`` to ``offsets[f + 1] - 1``.
        """
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
class TreeSums:
    """One tree with its splits and the sums of its nodes.

    Attributes
    ----------
    totals : int64 array, shape (2,)
        Sums over all rows, as fixed-point numbers.
    sums : mapping of int to tuple
        By node: the sums of its bins, int64 of shape (total_bins, 2), and the number of received
        histograms from which they were computed. This number multiplies the noise variance.
    splits : mapping of int to Split
        Split of every inner node.
    """

    totals: Longs
    sums: Mapping[int, tuple[Longs, int]]
    splits: Mapping[int, Split]

    def nodes(self, start: BaseScore, offsets: NDArray[np.int32]) -> Nodes:
        """Compute the class counts of all nodes.

        The size of a child follows from the bins of the split column in its parent.
        """
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


def unmoved_trees(view: View, offsets: NDArray[np.int32]) -> list[TreeSums]:
    """Return the trees up to the first that has a leaf value other than 0.

    The sums of a node that was not requested are the difference between its parent's and its
    sibling's sums.
    """
    updating = [m.tree for _, m in view.messages(LeafValues) if m.value.any()]
    node_sums, totals, tree_splits = sums_by_node(view), _totals(view), _splits(view, offsets)
    grown = []
    for tree in sorted(t for t in totals if t <= min(updating, default=t)):
        splits = tree_splits.get(tree, {})
        sums_of_node = {0: (node_sums[tree, 0], 1)} if (tree, 0) in node_sums else {}
        # Parents precede their children in the order of the messages.
        for node, split in splits.items():
            for child in (split.left, split.left + 1):
                if node in sums_of_node and (tree, child) in node_sums:
                    sibling, (sums, n_summands) = 2 * split.left + 1 - child, sums_of_node[node]
                    sums_of_node[child] = node_sums[tree, child], 1
                    sums_of_node[sibling] = sums - node_sums[tree, child], n_summands + 1
        grown.append(TreeSums(totals[tree], sums_of_node, splits))
    return grown


def _totals(view: View) -> dict[int, Longs]:
    """Return the sums over all rows of all clients, int64 (2,), by tree."""
    totals: dict[int, Longs] = {}
    for _, m in view.messages(Histogram):
        if len(m.totals):
            totals[m.tree] = totals.get(m.tree, np.zeros(2, np.int64)) + m.totals[0]
    return totals


def _splits(view: View, offsets: NDArray[np.int32]) -> dict[int, dict[int, Split]]:
    """Return the announced splits by tree and node."""
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
    """Yield the rows of nodes in which all rows of a label are equal, with their number.

    Parameters
    ----------
    trees : list of Nodes
        Class counts of the nodes.
    offsets : int32 array, shape (d + 1,)
        The bins of column ``f`` are ``offsets[f]`` to ``offsets[f + 1] - 1``.
    """
    for nodes in trees:
        for label in (0, 1):
            nonempty = nodes.sizes[:, label] > 0
            size, counts = nodes.sizes[nonempty, label], nodes.counts[nonempty, :, label]
            largest = np.zeros((len(size), len(offsets) - 1), dtype=np.int64)
            bins, total = largest - 1, largest.copy()
            for c, (low, end) in enumerate(pairwise(offsets.tolist())):
                if end > low:
                    column = counts[:, low:end]
                    largest[:, c], total[:, c] = column.max(axis=1), column.sum(axis=1)
                    bins[:, c] = np.where(total[:, c] > 0, column.argmax(axis=1), -1)
            # All rows of the label share a bin, or none of them has a value in the column.
            uniform = ((largest == size[:, None]) | (total == 0)).all(axis=1)
            for k in np.flatnonzero(uniform & (counts >= 0).all(axis=1)).tolist():
                yield (*bins[k].tolist(), label), int(size[k])
