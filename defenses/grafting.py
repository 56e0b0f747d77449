"""Grafting-LDP: branches that noise led astray are grown anew (Takahashi et al. 2023, Sec. 4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Memory
from fedtrees.core.defense import Context, Place, Stage
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
from fedtrees.trees.boosted.fixed_point import Bits, to_fixed, weighted
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import node_sums
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import leaf_values
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_forest import RandomForest
from fedtrees.trees.partition import RowPartition
from fedtrees.trees.routing import Routed
from fedtrees.trees.sketch import quantile_cuts

_COVERS = "passive"


@register.defense("grafting-ldp")
@dataclass(frozen=True)
class GraftingLDP(ManyStages):  # type: ignore[misc]
    """Train as `lp-mst` does, then repair the trees with the true labels (Takahashi et al. 2023).

    A leaf is contaminated if the majority of its rows by noisy labels is not that by true ones. Its
    deepest ancestor of which that is not so is grown anew (Algorithm 4; text and code compare by
    "differs", the box prints "equals"), to the depth that is left, from the active party's columns
    and true labels; where there is none, the whole tree, which the authors leave as it is. Nobody
    else takes part, and rows to predict are still routed through the trees as they were grown, so
    that what passive parties see is what they see of `lp-mst`. **Answers to whoever asks the model
    are made of true labels**, and no claim covers them.

    The authors rule boosting out: a repaired tree changes what later ones should fit. Here these
    keep their splits, which are on record, and all leaf values are computed anew from the true
    labels, tree by tree, as XGBoost's ``refresh`` does.

    Parameters
    ----------
    epsilon : float
        Of label-DP, in nats, above 0.
    stages : int
        As in `lp-mst`.
    published : bool
        As in `lp-mst`.
    """

    acts_through = frozenset({"finish", "rows"})
    requires = (NodeRows,)  # where the active party alone has the trees

    def claim(self) -> Guarantee:
        """Return label-DP of what passive parties see."""
        return LabelDP(float(self.epsilon), _COVERS)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return what the noisy labels cost."""
        spent = super().spent(transcript)
        assert isinstance(spent, LabelDP)
        return replace(spent, covers=_COVERS)

    def rows(self, stage: Stage, values: NDArray[Any], ctx: Context) -> NDArray[Any]:
        """Answer for every label; refuse an active party that has no column to repair with."""
        if ctx.held is None or not len(ctx.held.columns):
            raise DataError(
                f"{self.name!r} repairs trees with {ctx.party!r}'s columns, and it holds none; "
                "give it one, or take 'lp-mst'"
            )
        said: NDArray[Any] = super().rows(stage, values, ctx)
        return said

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the noise on labels, and that the model is repaired with true ones."""
        repaired = Memory("trees that noise led astray are grown anew on true labels")
        return {**super().channels(schema, parameters), ("model", "trees"): repaired}

    def finish(self, model: Any, ctx: Context) -> Any:
        """Repair the trees."""
        assert ctx.held is not None
        if isinstance(model.forest, RandomForest):
            return _repaired_forest(model, ctx.held, ctx.parameters)
        return _repaired_boosting(model, ctx.held, ctx.parameters)


@dataclass(frozen=True, eq=False)
class Graft(Routed):
    """Trees that speak for the rows in a node."""

    trees: tuple[Any, ...]  # features are positions in the schema
    # tuple of array, shape (n_nodes,) or (n_nodes, K): what each says in its nodes
    outputs: tuple[NDArray[Any], ...]

    def __call__(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return what they say of rows, (m,) or (m, K); several trees, one for each class."""
        said = [v[leaf] for v, leaf in zip(self.outputs, self.apply(X).T, strict=True)]
        found: NDArray[Any] = said[0] if len(said) == 1 else np.stack(said, axis=1)
        return found


def grafted_nodes(
    tree: Any, rows: RowPartition, noisy: NDArray[np.int64], true: NDArray[np.int64]
) -> dict[int, int]:
    """Return the nodes of a tree to be grown anew, with their depths.

    `tree`: tree. Children have greater numbers than their parents.
    `rows`: Where its rows are.
    `noisy, true`: int64 array, shape (n,). Labels; of classes of which there are equally many the
    first counts.
    """
    astray = np.zeros(len(tree), dtype=bool)
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    found: dict[int, int] = {}
    for node in range(len(tree) - 1, -1, -1):
        left, right = int(tree.left[node]), int(tree.right[node])
        inner = tree.feature[node] >= 0
        if inner and not (astray[left] or astray[right]):
            continue
        here = _rows_at(rows, node)
        astray[node] = len(here) and np.bincount(noisy[here]).argmax() != (
            np.bincount(true[here]).argmax()
        )
        if (inner and not astray[node]) or (node == 0 and astray[0]):
            found[node] = int(depth[node])
    for node in sorted(found):  # one above speaks for all below
        waiting = [int(tree.left[node]), int(tree.right[node])] if node in found else []
        for below in waiting:
            if below >= 0:
                found.pop(below, None)
                waiting += [int(tree.left[below]), int(tree.right[below])]
    return found


def _repaired_forest(model: Any, held: LocalData, parameters: Mapping[str, Any]) -> Any:
    assert held.y is not None
    cuts, deepest = quantile_cuts(held.X, parameters["max_bin"]), parameters["max_depth"]
    kept = {n: parameters[n] for n in ("min_samples_split", "min_samples_leaf", "max_bin")}
    params = ForestParams(trees=1, bootstrap=False, max_features=None, **kept)
    grafts = {}
    for t, (tree, rows) in enumerate(zip(model.trees, model.rows, strict=True)):
        for node, depth in grafted_nodes(tree, rows, model.y, held.y).items():
            here, left = _rows_at(rows, node), None if deepest is None else deepest - depth
            grown = grow_random_forest(
                held.X[here], held.y[here], cuts, replace(params, max_depth=left),
                n_classes=model.forest.n_classes,
            )  # fmt: skip
            grafts[t, node] = _graft(held, grown.trees, [g.probability for g in grown.trees])
    return replace(model, grafts=grafts)


def _repaired_boosting(model: Any, held: LocalData, parameters: Mapping[str, Any]) -> Any:
    assert held.y is not None
    params = TreeParams(**{f.name: parameters[f.name] for f in fields(TreeParams)})
    objective, start = model.forest.objective, model.forest.base_margin
    totals = objective.target_sums(held.y, held.weight)
    if params.base_score is None and totals[1:].all():  # without a class's rows there is no start
        start = objective.start(totals)
    repair = _Boosting(held, quantile_cuts(held.X, params.max_bin), params, objective.bits(totals))
    margin = np.repeat(start[:, None], len(held.y), axis=1)
    together = model.trees[0].value.ndim == 2  # a tree with a value for every class
    per_round = 1 if together else len(margin)
    trees, grafts = [], {}
    for t, (tree, rows) in enumerate(zip(model.trees, model.rows, strict=True)):
        k = t % per_round
        if k == 0:
            gradients = objective.gradients(margin, held.y)
            gh = to_fixed(weighted(gradients, held.weight, repair.bits), repair.bits)
        outputs = slice(None) if together else slice(k, k + 1)
        nodes = grafted_nodes(tree, rows, model.y, held.y)
        refreshed, added = repair.leaves(tree, rows, gh[outputs])
        for node, depth in nodes.items():
            here = _rows_at(rows, node)
            grafts[t, node] = graft = repair.grown(here, depth, gh[outputs])
            wide = np.full((len(here), len(model.owners)), np.nan, dtype=np.float32)
            wide[:, held.columns] = held.X[here]
            added[here] = graft(wide).reshape(len(here), -1)
        margin[outputs] += added.T
        trees.append(refreshed)
    forest = replace(model.forest, trees=tuple(trees), base_margin=start)
    return replace(model, forest=forest, grafts=grafts)


@dataclass(frozen=True, eq=False)
class _Boosting:
    """How boosted trees are repaired, whatever the margins so far."""

    held: LocalData
    cuts: Cuts
    params: TreeParams
    bits: Bits

    def leaves(
        self, tree: Tree, rows: RowPartition, gh: NDArray[np.int64]
    ) -> tuple[Tree, NDArray[np.float32]]:
        """Return a tree with leaf values by gradients (k, n, 2), and what it adds, (n, k)."""
        leaves = tree.leaves.astype(np.int32)
        ranges = rows.ranges(leaves)
        sums = (node_sums(one, rows.rows, ranges) for one in gh)
        new = np.stack([leaf_values(s, self.params, self.bits) for s in sums], axis=1)
        value, added = np.zeros_like(tree.value), np.zeros((gh.shape[1], len(gh)), np.float32)
        value[leaves] = new.reshape(value[leaves].shape)
        for (begin, end), said in zip(ranges, new, strict=True):
            added[rows.rows[begin:end]] = said
        return replace(tree, value=value), added

    def grown(self, here: NDArray[np.int32], depth: int, gh: NDArray[np.int64]) -> Graft:
        """Return what takes the place of a node at that depth with these rows."""
        params = replace(self.params, max_depth=self.params.max_depth - depth)
        bins = bin_rows(self.held.X[here], self.cuts)
        grown = [grow_tree([(bins, g[here])], self.cuts, params, bits=self.bits)[0] for g in gh]
        return _graft(self.held, grown, [tree.value for tree in grown])


def _graft(held: LocalData, trees: Sequence[Any], outputs: Sequence[NDArray[Any]]) -> Graft:
    """Name features of trees over own columns by their positions in the schema."""
    columns = held.columns.astype(np.int32)
    named = (np.where(t.feature < 0, -1, columns[t.feature]).astype(np.int32) for t in trees)
    placed = (replace(t, feature=f) for t, f in zip(trees, named, strict=True))
    return Graft(tuple(placed), tuple(outputs))


def _rows_at(rows: RowPartition, node: int) -> NDArray[np.int32]:
    ((begin, end),) = rows.ranges(np.array([node], dtype=np.int32))
    return rows.rows[begin:end]
