"""Multi-output trees: trees whose leaves have one value per class.

One such tree replaces the K trees of a boosting round with K classes. The gain of a split is the
sum of the gains of all classes, as in the code of Takahashi et al. (2023) and in XGBoost's
``multi_strategy="multi_output_tree"``.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeBuilder, children_to_build, with_siblings
from fedtrees.trees.boosted.histogram import Bits
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import MIN_GAIN, _gain, node_weights
from fedtrees.trees.jit import readonly
from fedtrees.trees.partition import ROOT, Decisions, RowPartition
from fedtrees.trees.routing import LeafRouting


@dataclass(frozen=True, eq=False)
class MultiOutputForest(LeafRouting):
    """A boosted ensemble of multi-output trees. Every tree adds to every margin."""

    trees: tuple[Tree, ...]  # their `value` has shape (n_nodes, K)
    base_margin: NDArray[np.float32]  # shape (K,)
    objective: Objective

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predictions of the objective, float64, shape (n, K)."""
        X = self._routes.rows(X)
        margin = np.repeat(self.base_margin[:, None], len(X), axis=1)
        for block, leaves in self._routes.blocks(X):
            for tree, leaf in zip(self.trees, leaves.T, strict=True):
                margin[:, block] += tree.value[leaf].T
        return self.objective.predict(margin)


@kernel
def _scan(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    offsets: NDArray[np.int32],
    mask: NDArray[np.bool_],
    limits: NDArray[np.float64],
    best_split: NDArray[np.int32],
    gain: NDArray[np.float32],
    left_sums: NDArray[np.int64],
) -> None:
    """Choose the best split of every node by a scan over all bins."""
    reg_lambda, alpha, weight = limits[0], limits[1], limits[2]
    unit_g, unit_h = limits[3], limits[4]
    n_outputs = totals.shape[1]
    side = np.zeros((n_outputs, 2), dtype=np.int64)
    for node in range(hist.shape[0]):
        total = totals[node]
        root = np.float32(0)
        for k in range(n_outputs):
            root += _gain(total[k, 0] * unit_g, total[k, 1] * unit_h, reg_lambda, alpha)
        best = np.float32(0)
        for f in range(offsets.shape[0] - 1):
            # Missing values go right in the forward scan and left in the backward scan.
            for backward in range(2):
                side[:] = 0
                for step in range(offsets[f + 1] - offsets[f]):
                    i = offsets[f] + step if backward == 0 else offsets[f + 1] - 1 - step
                    for k in range(n_outputs):
                        side[k, 0] += hist[node, i, k, 0]
                        side[k, 1] += hist[node, i, k, 1]
                    allowed = i
                    if backward == 1:
                        # A split before the first bin separates the same groups as one after the
                        # last bin, so that they share a mask.
                        allowed = i - 1 if i > offsets[f] else offsets[f + 1] - 1
                    if mask.shape[0] > 0 and not mask[node, allowed]:
                        continue
                    both = np.float32(0)
                    one = 0.0
                    other = 0.0
                    for k in range(n_outputs):
                        g = side[k, 0] * unit_g
                        h = side[k, 1] * unit_h
                        rest = (total[k, 1] - side[k, 1]) * unit_h
                        one += h
                        other += rest
                        both += _gain(g, h, reg_lambda, alpha) + _gain(
                            (total[k, 0] - side[k, 0]) * unit_g, rest, reg_lambda, alpha
                        )
                    change = both - root
                    if one < weight or other < weight or one <= 0.0 or other <= 0.0:
                        continue
                    if change > best:
                        best = change
                        best_split[node, 0] = f
                        best_split[node, 1] = i - offsets[f] - backward
                        best_split[node, 2] = backward
                        for k in range(n_outputs):
                            for part in range(2):
                                inside = side[k, part]
                                left_sums[node, k, part] = (
                                    total[k, part] - inside if backward == 1 else inside
                                )
                if backward == 0:
                    complete = True
                    for k in range(n_outputs):
                        # Without missing values, the backward scan finds the same splits.
                        if side[k, 0] != total[k, 0] or side[k, 1] != total[k, 1]:
                            complete = False
                    if complete:
                        break
        gain[node] = best


class MultiOutputGrower:
    """State of one multi-output tree: it receives histograms and returns split decisions.

    It is used like `fedtrees.trees.boosted.grower.TreeGrower`, with K pairs of sums in place of
    one.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Hyperparameters. `max_leaves` and `grow_policy` are not used.
    root_sums : int64 array, shape (K, 2)
        Sums of all rows.
    bits : Bits
        Binary places of all sums.
    subtract : bool
        As in `TreeGrower`.

    Attributes
    ----------
    nodes : int32 array
        Open nodes, which need a decision.
    to_build : int32 array
        Those of `nodes` whose histograms are requested.
    """

    def __init__(
        self,
        cuts: Cuts,
        params: TreeParams,
        root_sums: NDArray[np.int64],
        *,
        bits: Bits,
        subtract: bool = True,
    ) -> None:
        self._cuts, self._params, self._bits, self._subtract = cuts, params, bits, subtract
        self._builder, self._values = TreeBuilder(), dict[int, NDArray[np.float32]]()
        self._parents: NDArray[np.int64] | None = None
        self._depth = 0
        self._open(ROOT, root_sums[None])

    def _open(self, nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> None:
        """Open nodes for a decision, or make them leaves at the largest depth."""
        if self._depth == self._params.max_depth:
            self._close(nodes, sums)
            nodes, sums = nodes[:0], sums[:0]
        self.nodes = self.to_build = nodes
        self._sums = sums
        if self._parents is not None:
            # The weight of a node is the sum of its hessians over all classes.
            self.to_build = children_to_build(nodes, sums.sum(axis=1))

    def _close(self, nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> None:
        """Make nodes leaves, and compute their values."""
        rate = np.float32(self._params.learning_rate)
        weights = node_weights(sums, self._params, self._bits) * rate
        self._values.update(zip(nodes.tolist(), weights, strict=True))

    def decide(self, built: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> Decisions:
        """Split the open nodes, and open their children.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, K, 2)
            Histograms of `to_build`.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen.
        """
        hist = built
        if len(self.to_build) < len(self.nodes):
            assert self._parents is not None
            hist = with_siblings(built, self.to_build == self.nodes[::2], self._parents)
        best, gain, left = self._best(hist, mask)
        inner = best[:, 0] >= 0
        self._close(self.nodes[~inner], self._sums[~inner])
        nodes, best, gain, left = self.nodes[inner], best[inner], gain[inner], left[inner]
        feature, bin, default_left = best[:, 0], best[:, 1], best[:, 2].astype(bool)
        threshold = self._cuts.thresholds(feature, bin)
        children = self._builder.expand(nodes, feature, threshold, default_left, gain)
        self._parents = hist[inner] if self._subtract and len(nodes) else None
        self._depth += 1
        pairs = np.stack([left, self._sums[inner] - left], axis=1).reshape(-1, *left.shape[1:])
        self._open(np.stack([children, children + 1], axis=1).reshape(-1).astype(np.int32), pairs)
        return Decisions(nodes, feature, bin, threshold, default_left, children)

    def _best(
        self, hist: NDArray[np.int64], mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
        """Return the best split of every node.

        The arrays are (feature, bin, direction of missing values), the gains, and the sums on the
        left.
        """
        p, n = self._params, len(hist)
        limits = np.array(  # XGBoost stores its parameters in float32
            [p.reg_lambda, p.reg_alpha, p.min_child_weight], dtype=np.float32
        ).astype(np.float64)
        limits = np.append(limits, np.ldexp(1.0, np.negative(self._bits)))
        best, gain = np.full((n, 3), -1, dtype=np.int32), np.zeros(n, dtype=np.float32)
        left = np.zeros_like(self._sums)
        allowed = np.zeros((0, 0), dtype=bool) if mask is None else mask
        _scan(
            readonly(hist), readonly(self._sums), self._cuts.offsets, readonly(allowed), limits,
            best, gain, left,
        )  # fmt: skip
        best[(gain <= MIN_GAIN) | (gain < np.float32(p.gamma))] = -1
        return best, gain, left

    def finish(self) -> Tree:
        """Return the tree."""
        tree = self._builder.build()
        outputs = len(next(iter(self._values.values())))
        value = np.zeros((len(tree), outputs), dtype=np.float32)
        for node, values in self._values.items():
            value[node] = values
        return replace(tree, value=value)


def add_to_margins(tree: Tree, rows: RowPartition, margin: NDArray[np.float32]) -> None:
    """Add a tree to the margins of its training rows, shape (K, n), in place.

    Parameters
    ----------
    tree : Tree
        A multi-output tree.
    rows : RowPartition
        Leaves of the rows.
    margin : float32 array, shape (K, n)
        Margins of the rows.
    """
    leaves = tree.leaves.astype(np.int32)
    for k in range(len(margin)):
        rows.add_to(margin[k], leaves, np.ascontiguousarray(tree.value[leaves, k]))
