"""Defense `grafting-ldp`: training on noisy labels, and repair of the trees with true labels.

The defense is Grafting-LDP (Takahashi et al. 2023, Sec. 4.1). `fedtrees.defenses.label_noise` makes
the labels noisy. After the training, the active party replaces subtrees that the noise made wrong
by subtrees ("grafts") grown from its columns and true labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import VaryingChannel
from fedtrees.core.defense import Channels, Context, ExampleStage
from fedtrees.core.errors import DataError
from fedtrees.core.guarantee import Guarantee, LabelDP
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.defenses.label_noise import ManyStages
from fedtrees.messages.vertical import NodeRows
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import grow_tree
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import Bits, node_sums, to_fixed, weighted
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import leaf_values
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_forest import RandomForest
from fedtrees.trees.partition import RowPartition
from fedtrees.trees.routing import LeafRouting

_COVERS = "passive"


@register.defense("grafting-ldp")
@dataclass(frozen=True)
class GraftingLDP(ManyStages):  # type: ignore[misc]
    """Train as `lp-mst` does, then repair the trees with the true labels (Takahashi et al. 2023).

    A leaf is contaminated if the majority class of its rows differs between the noisy and the true
    labels. The box of Algorithm 4 prints "equals" here. We follow the text and the authors' code,
    which compare by "differs". For every contaminated leaf, the deepest ancestor with the same
    majority class for both is grown again, up to the maximum depth of the tree. If there is no such
    ancestor, the complete tree is grown again. The authors keep the tree in this case.

    The active party repairs the trees from its own columns without communication. Rows to predict
    are still routed through the original trees. Passive parties therefore receive the same messages
    as with `lp-mst`. **The predictions of the model depend on the true labels, and no claim covers
    them.**

    The authors exclude boosting, because a repaired tree changes the residuals that later trees
    should fit. Here the later trees keep their splits, which the passive parties know, and all leaf
    values are computed again from the true labels, tree by tree, as XGBoost's ``refresh`` does.

    Parameters
    ----------
    epsilon : float
        Budget of label-DP, in nats, above 0.
    stages : int
        Number of stages, as in `lp-mst`.
    published : bool
        Rule of the authors' code for labels outside the k likeliest, as in `lp-mst`.
    """

    applies_to = (NodeRows,)  # sent in protocols in which only the active party has the trees

    def claim(self) -> Guarantee:
        """Return label-DP of the messages that passive parties receive."""
        return LabelDP(float(self.epsilon), _COVERS)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the label-DP of the noisy labels."""
        spent = super().spent(transcript)
        assert isinstance(spent, LabelDP)
        return replace(spent, covers=_COVERS)

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Randomise every label. Refuse an active party without columns to repair with."""
        if ctx.local_data is None or not len(ctx.local_data.columns):
            raise DataError(
                f"{self.name!r} repairs trees with {ctx.party!r}'s columns, and it has "
                "none; give it one, or use 'lp-mst'"
            )
        noisy_labels: NDArray[Any] = super().transform_examples(stage, values, ctx)
        return noisy_labels

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the noise on labels, and that the model is repaired with true labels."""
        repaired = VaryingChannel("trees that noise led astray are grown anew on true labels")
        return {**super().channels(schema, parameters), ("model", "trees"): repaired}

    def repair_model(self, model: Any, ctx: Context) -> Any:
        """Repair the trees of the active party's model."""
        assert ctx.local_data is not None
        if isinstance(model.forest, RandomForest):
            return _repaired_forest(model, ctx.local_data, ctx.parameters)
        return _repaired_boosting(model, ctx.local_data, ctx.parameters)


@dataclass(frozen=True, eq=False)
class Graft(LeafRouting):
    """Subtree that replaces a node of a tree.

    Attributes
    ----------
    trees : tuple of tree
        One tree, or one per class. Features are positions in the schema.
    outputs : tuple of array, shape (n_nodes,) or (n_nodes, K)
        Leaf values, or class shares, of the nodes of each tree.
    """

    trees: tuple[Any, ...]
    outputs: tuple[NDArray[Any], ...]

    def __call__(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return the outputs for rows, shape (m,) or (m, K). Several trees are one per class."""
        outputs = [v[leaf] for v, leaf in zip(self.outputs, self.apply(X).T, strict=True)]
        stacked: NDArray[Any] = outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=1)
        return stacked


def grafted_nodes(
    tree: Any, rows: RowPartition, noisy: NDArray[np.int64], true: NDArray[np.int64]
) -> dict[int, int]:
    """Return the nodes of a tree that must be grown again, with their depths.

    Parameters
    ----------
    tree : tree
        Children have greater numbers than their parents.
    rows : RowPartition
        Rows of every node.
    noisy : int64 array, shape (n,)
        Labels that the tree was grown on.
    true : int64 array, shape (n,)
        True labels. If several classes are equally frequent, the first one is the majority class.

    Returns
    -------
    nodes : dict of int to int
        Depth by node. No node of the result is below another one.
    """
    contaminated = np.zeros(len(tree), dtype=bool)
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    regrown: dict[int, int] = {}
    # Children have greater numbers, so that descending order visits them before their parent.
    for node in range(len(tree) - 1, -1, -1):
        left, right = int(tree.left[node]), int(tree.right[node])
        inner = tree.feature[node] >= 0
        if inner and not (contaminated[left] or contaminated[right]):
            continue
        node_rows = rows.rows_of(node)
        contaminated[node] = len(node_rows) and np.bincount(noisy[node_rows]).argmax() != (
            np.bincount(true[node_rows]).argmax()
        )
        # The search upwards ends at the first ancestor with the right majority. A contaminated root
        # has no such ancestor and is grown again itself.
        if (inner and not contaminated[node]) or (node == 0 and contaminated[0]):
            regrown[node] = int(depth[node])
    for node in sorted(regrown):  # a regrown node replaces everything below it
        descendants = [int(tree.left[node]), int(tree.right[node])] if node in regrown else []
        for child in descendants:
            if child >= 0:
                regrown.pop(child, None)
                descendants += [int(tree.left[child]), int(tree.right[child])]
    return regrown


def _repaired_forest(model: Any, local_data: LocalData, parameters: Mapping[str, Any]) -> Any:
    assert local_data.y is not None
    cuts, deepest = quantile_cuts(local_data.X, parameters["max_bin"]), parameters["max_depth"]
    limits = {n: parameters[n] for n in ("min_samples_split", "min_samples_leaf", "max_bin")}
    # A graft is a plain tree: no bootstrap, and all features at every split.
    params = ForestParams(trees=1, bootstrap=False, max_features=None, **limits)
    grafts = {}
    for t, (tree, rows) in enumerate(zip(model.trees, model.rows, strict=True)):
        for node, depth in grafted_nodes(tree, rows, model.y, local_data.y).items():
            node_rows = rows.rows_of(node)
            depth_left = None if deepest is None else deepest - depth
            grown = grow_random_forest(
                local_data.X[node_rows],
                local_data.y[node_rows],
                cuts,
                replace(params, max_depth=depth_left),
                n_classes=model.forest.n_classes,
            )
            grafts[t, node] = _graft(local_data, grown.trees, [g.probability for g in grown.trees])
    return replace(model, grafts=grafts)


def _repaired_boosting(model: Any, local_data: LocalData, parameters: Mapping[str, Any]) -> Any:
    assert local_data.y is not None
    params = TreeParams(**{f.name: parameters[f.name] for f in fields(TreeParams)})
    objective, start = model.forest.objective, model.forest.base_margin
    totals = objective.target_sums(local_data.y, local_data.weight)
    # The base score of the training was estimated from noisy labels.
    if params.base_score is None and totals[1:].all():  # no base score if a class has no rows
        start = objective.start(totals)
    repair = _Boosting(
        local_data, quantile_cuts(local_data.X, params.max_bin), params, objective.bits(totals)
    )
    margin = np.repeat(start[:, None], len(local_data.y), axis=1)
    is_multi_output = model.trees[0].value.ndim == 2  # every leaf has a value for each class
    per_round = 1 if is_multi_output else len(margin)
    trees, grafts = [], {}
    for t, (tree, rows) in enumerate(zip(model.trees, model.rows, strict=True)):
        k = t % per_round
        if k == 0:
            # All trees of a round use the gradients at the margins before this round.
            gradients = objective.gradients(margin, local_data.y)
            gh = to_fixed(weighted(gradients, local_data.weight, repair.bits), repair.bits)
        outputs = slice(None) if is_multi_output else slice(k, k + 1)
        nodes = grafted_nodes(tree, rows, model.y, local_data.y)
        refreshed, added = repair.leaves(tree, rows, gh[outputs])
        for node, depth in nodes.items():
            node_rows = rows.rows_of(node)
            grafts[t, node] = graft = repair.grow_graft(node_rows, depth, gh[outputs])
            # Grafts name features by their position in the schema, and use only the active party's
            # columns. All remaining columns stay NaN.
            wide = np.full((len(node_rows), len(model.owners)), np.nan, dtype=np.float32)
            wide[:, local_data.columns] = local_data.X[node_rows]
            added[node_rows] = graft(wide).reshape(len(node_rows), -1)
        margin[outputs] += added.T
        trees.append(refreshed)
    forest = replace(model.forest, trees=tuple(trees), base_margin=start)
    return replace(model, forest=forest, grafts=grafts)


@dataclass(frozen=True, eq=False)
class _Boosting:
    """Data and parameters for the repair of boosted trees, independent of the margins."""

    local_data: LocalData
    cuts: Cuts
    params: TreeParams
    bits: Bits

    def leaves(
        self, tree: Tree, rows: RowPartition, gh: NDArray[np.int64]
    ) -> tuple[Tree, NDArray[np.float32]]:
        """Compute the leaf values of a tree from gradients of the true labels.

        Parameters
        ----------
        tree : Tree
        rows : RowPartition
            Rows of every node.
        gh : int64 array, shape (k, n, 2)
            Fixed-point gradients and hessians for k outputs.

        Returns
        -------
        tree : Tree
            The tree with the new leaf values.
        added : float32 array, shape (n, k)
            Contribution of the tree to the margin of every row.
        """
        leaves = tree.leaves.astype(np.int32)
        ranges = rows.ranges(leaves)
        sums = (node_sums(output_gh, rows.rows, ranges) for output_gh in gh)
        new = np.stack([leaf_values(s, self.params, self.bits) for s in sums], axis=1)
        value, added = np.zeros_like(tree.value), np.zeros((gh.shape[1], len(gh)), np.float32)
        value[leaves] = new.reshape(value[leaves].shape)
        for (begin, end), leaf_output in zip(ranges, new, strict=True):
            added[rows.rows[begin:end]] = leaf_output
        return replace(tree, value=value), added

    def grow_graft(self, here: NDArray[np.int32], depth: int, gh: NDArray[np.int64]) -> Graft:
        """Grow the graft of a node.

        Parameters
        ----------
        here : int32 array, shape (m,)
            Rows of the node.
        depth : int
            Depth of the node. The graft may have the remaining depth of the tree.
        gh : int64 array, shape (k, n, 2)
            Fixed-point gradients and hessians of all rows.
        """
        params = replace(self.params, max_depth=self.params.max_depth - depth)
        bins = bin_rows(self.local_data.X[here], self.cuts)
        grown = [grow_tree([(bins, g[here])], self.cuts, params, bits=self.bits)[0] for g in gh]
        return _graft(self.local_data, grown, [tree.value for tree in grown])


def _graft(local_data: LocalData, trees: Sequence[Any], outputs: Sequence[NDArray[Any]]) -> Graft:
    """Make a graft of trees over the active party's columns.

    It replaces the numbers of the features among these columns by their positions in the schema.
    """
    columns = local_data.columns.astype(np.int32)
    named = (np.where(t.feature < 0, -1, columns[t.feature]).astype(np.int32) for t in trees)
    placed = (replace(t, feature=f) for t, f in zip(trees, named, strict=True))
    return Graft(tuple(placed), tuple(outputs))
