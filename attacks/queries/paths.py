"""The ways that a row to predict may take through trees of which some splits are others'."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.vertical import HeldModel

_MOST_WAYS = 2**15  # kept of one row; beyond, the likeliest
_ABOVE_ALL = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways of a row through some trees.

    `leaves`: int32 array, shape (M, T).
    `low, high`: int32 array, shape (M, c). Bins of the row in others' columns: from ``low``, below
    ``high``.
    `odds`: float64 array, shape (M,). Log probability, before anything is answered, in nats.
    `total`: float64 array, shape (M,). Sum of the leaves' values, 0 where they are vectors.
    `whole`: Whether none was left out.
    """

    leaves: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    odds: NDArray[np.float64]
    total: NDArray[np.float64]
    whole: bool = True

    def take(self, kept: NDArray[np.intp], whole: bool) -> "Ways":
        """Return some of them."""
        parts = (self.leaves, self.low, self.high, self.odds, self.total)
        return Ways(*(part[kept] for part in parts), whole)  # type: ignore[arg-type]


class Paths:
    """Ways of rows, with probabilities by splits.

    `theirs`: bool array, shape (n_nodes,). Nodes that others split.
    `alike`: Whether bins of a column are the same at all nodes.
    `values`: float64 array, shape (n_nodes,). What a leaf adds to the score's sum.
    """

    def __init__(
        self,
        model: HeldModel,
        theirs: NDArray[np.bool_],
        alike: bool,
        values: NDArray[np.float64],
    ) -> None:
        self.model, self.theirs, self.values = model, theirs, values
        nodes = np.flatnonzero(theirs)
        columns = model.feature[nodes] if alike else nodes
        self.column = np.full(len(theirs), -1)
        names, self.column[nodes] = np.unique(columns, return_inverse=True)
        self.width = len(names)

    def of_row(
        self,
        own: NDArray[np.int8],
        left: NDArray[np.float64],
        fits: Callable[[NDArray[np.float64], float, float], NDArray[np.bool_]],
    ) -> Ways:
        """Return the ways that a row may take through all trees.

        `own`: int8 array, shape (n_nodes,). 1: it goes left at an own split; 0: right.
        `left`: float64 array, shape (n_nodes,). Probability of going left at others' splits.
        `fits`: From sums so far, and the least and most that the trees to come add, to whether what
        is answered is within reach.
        """
        found = [self._of_tree(t, own, left) for t in range(len(self.model.sizes))]
        least, most = (
            np.cumsum([0.0, *(end(w.total) for w in found[::-1])])[::-1] for end in (np.min, np.max)
        )
        ways = found[0]
        for t, more in enumerate(found):
            ways = ways if t == 0 else _joined(ways, more)
            kept = np.flatnonzero(fits(ways.total, least[t + 1], most[t + 1]))
            whole = len(kept) <= _MOST_WAYS
            if not whole:
                kept = kept[np.argpartition(-ways.odds[kept], _MOST_WAYS)[:_MOST_WAYS]]
            ways = ways.take(kept, ways.whole and whole)
        return ways

    def _of_tree(self, t: int, own: NDArray[np.int8], left: NDArray[np.float64]) -> Ways:
        m, start, rows = self.model, int(self.model.starts[t]), []
        box = np.tile(np.array([[0], [_ABOVE_ALL]], dtype=np.int32), (1, self.width))
        waiting = [(0, box, 0.0)]
        while waiting:
            node, box, odds = waiting.pop()
            at = start + node
            if m.feature[at] < 0:
                rows.append((node, box, odds, self.values[at]))
            elif not self.theirs[at]:
                waiting.append((int((m.left if own[at] else m.right)[at]), box, odds))
            else:
                c, cut = self.column[at], np.int32(m.threshold[at])
                for child, end, p in ((m.left, 1, left[at]), (m.right, 0, 1 - left[at])):
                    part = box.copy()
                    part[end, c] = (np.minimum if end else np.maximum)(part[end, c], cut)
                    if part[0, c] < part[1, c]:
                        waiting.append((int(child[at]), part, odds + np.log(max(p, 1e-9))))
        leaf, boxes, logs, added = zip(*rows, strict=True)
        ends = np.array(boxes)
        leaves = np.array(leaf, dtype=np.int32)[:, None]
        return Ways(leaves, ends[:, 0], ends[:, 1], np.array(logs), np.array(added))

    def branches(self, ways: Ways, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how likely each node goes left if the row comes by, (n_nodes,); NaN: it does not.

        `odds`: float64 array, shape (M,). Log probabilities of the ways.
        """
        m, p = self.model, np.exp(odds - odds.max())
        out = np.full(len(m.feature), np.nan)
        for t, start in enumerate(m.starts.tolist()):
            size = int(m.sizes[t])
            mass = np.bincount(ways.leaves[:, t], weights=p, minlength=size)
            for node in range(size - 1, -1, -1):  # children have greater numbers
                if m.feature[start + node] >= 0:
                    a, b = (mass[int(c[start + node])] for c in (m.left, m.right))
                    mass[node] = a + b
                    out[start + node] = a / (a + b) if a + b > 0 else np.nan
        return out


def _joined(ways: Ways, more: Ways) -> Ways:
    """Return the ways through both of which some row could take both."""
    low = np.maximum(ways.low[:, None], more.low[None])
    high = np.minimum(ways.high[:, None], more.high[None])
    i, j = np.nonzero((low < high).all(axis=2))
    return Ways(
        np.hstack([ways.leaves[i], more.leaves[j]]),
        low[i, j],
        high[i, j],
        ways.odds[i] + more.odds[j],
        ways.total[i] + more.total[j],
        ways.whole,
    )
