"""Multi-output trees: trees whose leaves have one value per class.

One such tree replaces the K trees of a boosting round with K classes. The gain of a split is the
sum of the gains of all classes, as in the code of Takahashi et al. (2023) and in XGBoost's
``multi_strategy="multi_output_tree"``.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.boosted.splitting import MIN_GAIN, Splits, _gain, node_weights, scan_limits
from fedtrees.trees.jit import readonly
from fedtrees.trees.partition import RowPartition
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


@inner_kernel
def _gain_of_sides(
    side: NDArray[np.int64], total: NDArray[np.int64], limits: NDArray[np.float64]
) -> tuple[np.float32, float, float]:
    """Return the gain of both sides of a split over all outputs, and the hessian of each side."""
    reg_lambda, alpha, unit_g, unit_h = limits[0], limits[1], limits[3], limits[4]
    both, h_side, h_other = np.float32(0), 0.0, 0.0
    for k in range(side.shape[0]):
        h = side[k, 1] * unit_h
        rest = (total[k, 1] - side[k, 1]) * unit_h
        h_side += h
        h_other += rest
        both += _gain(side[k, 0] * unit_g, h, reg_lambda, alpha) + _gain(
            (total[k, 0] - side[k, 0]) * unit_g, rest, reg_lambda, alpha
        )
    return both, h_side, h_other


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
                    both, h_side, h_other = _gain_of_sides(side, total, limits)
                    change = both - root
                    lighter = min(h_side, h_other)
                    if lighter < weight or lighter <= 0.0:
                        continue
                    if change > best:
                        best = change
                        best_split[node, 0] = f
                        best_split[node, 1] = i - offsets[f] - backward
                        best_split[node, 2] = backward
                        left_sums[node] = total - side if backward == 1 else side
                # Without missing values, the backward scan finds the same splits.
                if backward == 0 and (side == total).all():
                    break
        gain[node] = best


class MultiOutputGrower(TreeGrower):
    """A grower with K pairs of sums in place of one, so that `root_sums` has shape (K, 2).

    It ignores `complete`. The weight of a node is the sum of its hessians over all outputs.
    """

    def best(
        self,
        hist: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
        *,
        pruned: bool = True,
    ) -> Splits:
        """Return the best split of every open node, as `TreeGrower.best` does.

        Parameters
        ----------
        hist : int64 array, shape (k, total_bins, K, 2)
            Histograms of `nodes`.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen.
        pruned : bool
            Whether splits with too small a gain are leaves.
        """
        p, n = self._params, len(hist)
        best, gain = np.full((n, 3), -1, dtype=np.int32), np.zeros(n, dtype=np.float32)
        left = np.zeros_like(self.sums)
        allowed = np.zeros((0, 0), dtype=bool) if mask is None else mask
        _scan(
            readonly(hist), readonly(self.sums), self._cuts.offsets, readonly(allowed),
            scan_limits(p, self.bits), best, gain, left,
        )  # fmt: skip
        if pruned:
            best[(gain <= MIN_GAIN) | (gain < np.float32(p.gamma))] = -1
        feature, bin, missing_left = np.ascontiguousarray(best.T)
        threshold = self._cuts.thresholds(np.maximum(feature, 0), bin)
        return Splits(
            feature, bin, threshold, missing_left.astype(bool), gain, left, self.sums - left
        )

    def leaf_values(self) -> NDArray[np.float32]:
        """Return the values of the leaves, shape (n_leaves, K)."""
        rate = np.float32(self._params.learning_rate)
        return node_weights(self.leaves()[1], self._params, self.bits) * rate

    def finish(self, values: NDArray[np.float32] | None = None) -> Tree:
        """Return the tree, with leaf values of shape (n_leaves, K)."""
        tree = self._builder.build()
        outputs = self.leaf_values() if values is None else values
        value = np.zeros((len(tree), outputs.shape[1]), dtype=np.float32)
        value[self.leaves()[0]] = outputs
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
