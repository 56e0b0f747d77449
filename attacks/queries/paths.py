"""Enumerate the paths of a row through trees if some splits belong to other parties.

The attack `path-restriction` uses the paths. A path is consistent if, for each column of another
party, some bin satisfies all splits on the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.vertical import HeldModel

# Upper limit of the paths per row. Beyond it, only the most probable paths are kept.
_MOST_WAYS = 2**15
_ABOVE_ALL = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Ways:
    """M paths of one row through some trees.

    Attributes
    ----------
    leaves : int32 array, shape (M, T)
        Leaf in every tree, numbered within the tree.
    low, high : int32 array, shape (M, c)
        Interval of the row's bin in each of the c columns of other parties: ``low`` included,
        ``high`` excluded.
    odds : float64 array, shape (M,)
        Prior log probability of each path, in nats.
    total : float64 array, shape (M,)
        Sum of the leaf values, 0 if leaf values are vectors.
    complete : bool
        Whether no path was discarded because of `_MOST_WAYS`.
    """

    leaves: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    odds: NDArray[np.float64]
    total: NDArray[np.float64]
    complete: bool = True

    def take(self, positions: NDArray[np.intp], complete: bool) -> Ways:
        """Return the paths at the given positions."""
        parts = (self.leaves, self.low, self.high, self.odds, self.total)
        return Ways(*(part[positions] for part in parts), complete)  # type: ignore[arg-type]


class Paths:
    """Enumerate paths of rows and compute the probabilities of branches.

    Parameters
    ----------
    model : HeldModel
        Trees as the active party knows them.
    is_foreign : bool array, shape (n_nodes,)
        Nodes at which other parties split.
    share_bins : bool
        Whether the bins of a column are the same at all nodes. If not, each node counts as a
        separate column.
    values : float64 array, shape (n_nodes,)
        Contribution of each leaf to the sum from which the score is computed.
    """

    def __init__(
        self,
        model: HeldModel,
        is_foreign: NDArray[np.bool_],
        share_bins: bool,
        values: NDArray[np.float64],
    ) -> None:
        self.model, self.is_foreign, self.values = model, is_foreign, values
        nodes = np.flatnonzero(is_foreign)
        columns = model.feature[nodes] if share_bins else nodes
        self.column = np.full(len(is_foreign), -1)
        # Number the columns (or nodes) that have an interval of bins.
        names, self.column[nodes] = np.unique(columns, return_inverse=True)
        self.width = len(names)

    def of_row(
        self,
        local_sides: NDArray[np.int8],
        left: NDArray[np.float64],
        fits: Callable[[NDArray[np.float64], float, float], NDArray[np.bool_]],
    ) -> Ways:
        """Return the paths that a row may take through all trees.

        Parameters
        ----------
        local_sides : int8 array, shape (n_nodes,)
            Side at splits on the adversary's columns: 1 for left, 0 for right.
        left : float64 array, shape (n_nodes,)
            Probability of going left at splits of other parties.
        fits : callable
            Receives the sums so far, and the smallest and largest sum that the remaining trees can
            add. Returns a bool array: whether the answer can still be reached.

        Returns
        -------
        ways : Ways
            Consistent paths, at most `_MOST_WAYS`.
        """
        tree_ways = [self._of_tree(t, local_sides, left) for t in range(len(self.model.sizes))]
        least, greatest = (
            np.cumsum([0.0, *(end(w.total) for w in tree_ways[::-1])])[::-1]
            for end in (np.min, np.max)
        )
        ways = tree_ways[0]
        for t, more in enumerate(tree_ways):
            ways = ways if t == 0 else _join_paths(ways, more)
            retained = np.flatnonzero(fits(ways.total, least[t + 1], greatest[t + 1]))
            complete = len(retained) <= _MOST_WAYS
            if not complete:
                retained = retained[np.argpartition(-ways.odds[retained], _MOST_WAYS)[:_MOST_WAYS]]
            ways = ways.take(retained, ways.complete and complete)
        return ways

    def _of_tree(self, t: int, local_sides: NDArray[np.int8], left: NDArray[np.float64]) -> Ways:
        """Return the paths of a row through one tree by a depth-first search."""
        m, start, rows = self.model, int(self.model.starts[t]), []
        box = np.tile(np.array([[0], [_ABOVE_ALL]], dtype=np.int32), (1, self.width))
        stack = [(0, box, 0.0)]
        while stack:
            node, box, odds = stack.pop()
            at = start + node
            if m.feature[at] < 0:
                rows.append((node, box, odds, self.values[at]))
            elif not self.is_foreign[at]:
                stack.append((int((m.left if local_sides[at] else m.right)[at]), box, odds))
            else:
                c, cut = self.column[at], np.int32(m.threshold[at])
                # A split at bin c limits the row's bin from above on the left (`high`) and from
                # below on the right (`low`).
                for child, end, p in ((m.left, 1, left[at]), (m.right, 0, 1 - left[at])):
                    part = box.copy()
                    part[end, c] = (np.minimum if end else np.maximum)(part[end, c], cut)
                    if part[0, c] < part[1, c]:
                        stack.append((int(child[at]), part, odds + np.log(max(p, 1e-9))))
        leaf, boxes, logs, added = zip(*rows, strict=True)
        ends = np.array(boxes)
        leaves = np.array(leaf, dtype=np.int32)[:, None]
        return Ways(leaves, ends[:, 0], ends[:, 1], np.array(logs), np.array(added))

    def branches(self, ways: Ways, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that the row goes left at each node, float64, shape (n_nodes,).

        Parameters
        ----------
        ways : Ways
            Paths of the row.
        odds : float64 array, shape (M,)
            Log probabilities of the paths, in nats, up to a constant.

        Returns
        -------
        left : float64 array, shape (n_nodes,)
            Conditional on the row reaching the node. NaN if it cannot reach the node.
        """
        m, p = self.model, np.exp(odds - odds.max())
        out = np.full(len(m.feature), np.nan)
        for t, start in enumerate(m.starts.tolist()):
            size = int(m.sizes[t])
            # The probability of a node is the sum over its children.
            mass = np.bincount(ways.leaves[:, t], weights=p, minlength=size)
            for node in range(size - 1, -1, -1):  # children have greater numbers
                if m.feature[start + node] >= 0:
                    a, b = (mass[int(c[start + node])] for c in (m.left, m.right))
                    mass[node] = a + b
                    out[start + node] = a / (a + b) if a + b > 0 else np.nan
        return out


def _join_paths(ways: Ways, more: Ways) -> Ways:
    """Return all pairs of paths that some bin of every column satisfies together."""
    low = np.maximum(ways.low[:, None], more.low[None])
    high = np.minimum(ways.high[:, None], more.high[None])
    i, j = np.nonzero((low < high).all(axis=2))
    return Ways(
        np.hstack([ways.leaves[i], more.leaves[j]]),
        low[i, j],
        high[i, j],
        ways.odds[i] + more.odds[j],
        ways.total[i] + more.total[j],
        ways.complete,
    )
