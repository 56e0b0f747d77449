"""Contribution of the adversary's rows to each leaf, from the histograms its parties sent.

If rounds are subsampled, the messages reveal more than the local rows: they show which rows took
part.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.horizontal import Histogram
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import from_fixed

Floats = NDArray[np.float64]
Sums = NDArray[np.int64]


def own_histograms(view: View) -> dict[tuple[int, bytes], Histogram]:
    """Return the sum of the histograms that the adversary's parties sent, by tree and nodes.

    Opened sums of several clients are not included.
    """
    histograms: dict[tuple[int, bytes], Histogram] = {}
    for item, m in view.messages(Histogram):
        if item.sender in view.principals and not item.opened:
            key = m.tree, m.nodes.tobytes()
            before = histograms.get(key)
            sums, totals = m.sums, m.totals
            if before is not None:
                sums, totals = before.sums + sums, before.totals + totals
            histograms[key] = Histogram(m.tree, m.nodes, sums, totals, *m.bits)
    return histograms


def own_sums(view: View, trees: Sequence[Tree], cuts: Cuts) -> tuple[Floats, ...] | None:
    """Return the sums of g and h of the adversary's rows in each leaf of every tree.

    Parameters
    ----------
    view : View
        The adversary's view.
    trees : sequence of Tree
        The trees.
    cuts : Cuts
        Bins of the histograms.

    Returns
    -------
    tuple of float64 array, shape (J, 2), or None
        Zeros if the adversary has no rows. None if the messages do not determine the sums of a
        tree.
    """
    if view.rows is None or not len(view.rows):
        return tuple(np.zeros((len(t.leaves), 2)) for t in trees)
    levels: dict[int, list[Histogram]] = defaultdict(list)
    for (tree, _), m in own_histograms(view).items():
        levels[tree].append(m)
    out = [_leaf_sums(tree, levels[t], cuts) for t, tree in enumerate(trees)]
    if any(part is None for part in out):
        return None
    return tuple(part for part in out if part is not None)


def _leaf_sums(tree: Tree, levels: Sequence[Histogram], cuts: Cuts) -> Floats | None:
    """Propagate the sums of the sent histograms from the root to the leaves."""
    if not levels or len(levels[0].totals) != 1:
        return None
    of: dict[int, Sums] = {}
    total: dict[int, Sums] = {0: levels[0].totals[0]}
    # a child that was not sent is the difference of its parent and its sibling
    sibling, parent = {}, {}
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        left, right = int(tree.left[node]), int(tree.right[node])
        sibling |= {left: right, right: left}
        parent |= {left: node, right: node}
    for m in levels:
        of.update(zip(m.nodes.tolist(), m.sums, strict=True))
        for node in m.nodes.tolist():
            other = sibling.get(node)
            if other is not None and other not in of and parent[node] in of:
                of[other] = of[parent[node]] - of[node]
    for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
        if node not in of:
            return None
        f = int(tree.feature[node])
        hist = of[node][cuts.offsets[f] : cuts.offsets[f + 1]]
        part = hist[bins_left(tree, node, cuts)].sum(axis=0)
        if tree.default_left[node]:
            part = part + total[node] - hist.sum(axis=0)
        total[int(tree.left[node])], total[int(tree.right[node])] = part, total[node] - part
    return from_fixed(np.array([total[n] for n in tree.leaves.tolist()]), levels[0].bits)


def bins_left(tree: Any, node: int, cuts: Cuts) -> NDArray[np.bool_]:
    """Return which bins of its feature a split sends left, as bools of shape (bins,).

    Parameters
    ----------
    tree : Tree
        The tree, or any object with its attributes.
    node : int
        An inner node.
    cuts : Cuts
        Bins of the features.
    """
    edges = cuts.of(int(tree.feature[node]))
    if not np.isnan(tree.threshold[node]):
        # a bin lies left of the split iff its upper edge does
        return edges <= tree.threshold[node]  # type: ignore[no-any-return]
    right = tree.categories[node, : len(edges)]
    return ~np.pad(right, (0, len(edges) - len(right)))  # type: ignore[no-any-return]
