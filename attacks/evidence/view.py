"""Turn a view of messages into evidence: the most that this adversary saw."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence, Level, NodeHistograms, NodeNoise
from fedtrees.attacks.evidence.own_sums import bins_left, own_sums
from fedtrees.attacks.evidence.replay import (
    EVERYONE,
    OTHERS,
    TreeLevel,
    cuts_of,
    grow_again,
    levels_of,
    params_of,
)
from fedtrees.core.defense import Declared
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, LeafValues, NodeSplits
from fedtrees.messages.models import BoostedModel
from fedtrees.privacy.leaf_sums import leaf_scales
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.boosted.fixed_point import from_fixed, to_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.grower import children_to_build
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.routing import Routes

LEVELS: tuple[Level, ...] = ("values", "statistics", "histograms")


def evidence_of(view: View, most: Level = "histograms") -> Evidence | None:
    """Read the trees of a run from the messages in a view.

    Parameters
    ----------
    view : View
    most : {"histograms", "statistics", "values"}
        Use no more than this, for comparing what each level of detail is worth.

    Returns
    -------
    Evidence or None
        None where the view holds no trained tree.
    """
    cuts, start, classes = cuts_of(view), _start(view), len(view.schema.classes)
    params = params_of(view)
    histograms: tuple[NodeHistograms, ...] | None = None
    level: Level
    if cuts is None or start is None:  # whoever has the model alone
        trees, start, level = _released(view)
    elif levels := levels_of(view):
        trees, histograms = _replay(levels, cuts, params)
        level = "histograms"
    else:
        trees = _assemble(view)
        level = "statistics" if trees and trees[0].g is not None else "values"
    if not trees or len(start) != (1 if classes == 2 else classes):
        return None
    if LEVELS.index(most) < LEVELS.index(level):
        level, histograms = most, None
    declared, p = view.defense.declares(view.schema, view.parameters), view.parameters
    held_out = p["validation_fraction"] if p.get("early_stopping_rounds") else 0.0
    some = params.subsample < 1 or held_out > 0 or declared.least_rows > 0
    shown = trees if level != "values" else tuple(_bare(t) for t in trees)
    noisy_cuts = cuts or _cuts_used(trees, len(view.schema.features))
    return Evidence(
        trees=shown,
        level=level,
        base_margin=start[0] if len(start) == 1 else start,
        learning_rate=params.learning_rate,
        reg_lambda=params.reg_lambda,
        min_child_weight=params.min_child_weight,
        histograms=histograms,
        cuts=cuts,
        n_rows=view.n_rows,
        noise=_noise(view, shown, noisy_cuts, declared),
        rounding=declared.rounding or None,
        constant_hessian=declared.unit_hessian,
        mean_start=params.base_score is None,
        reg_alpha=params.reg_alpha,
        subsample=params.subsample,
        held_out=held_out,
        own_sums=own_sums(view, shown, cuts) if some else None,
        suppressed=declared.least_rows > 0,
    )


def _start(view: View) -> NDArray[np.float32] | None:
    for _, m in view.messages(BaseScore):
        return m.margin
    return None


def _replay(
    levels: Mapping[int, Sequence[TreeLevel]], cuts: Cuts, params: TreeParams
) -> tuple[tuple[Tree, ...], tuple[NodeHistograms, ...]]:
    """Grow all trees again, and return them with their histograms over all clients, or others."""
    trees, histograms = [], []
    for tree in sorted(levels):
        bits, others = levels[tree][0].bits, OTHERS in levels[tree][0].sums
        seen = levels[tree] if others else [level.summed() for level in levels[tree]]
        grown = grow_again(seen, cuts, params)
        trees.append(grown.tree)
        source = OTHERS if others else EVERYONE
        parts = (from_fixed(part[source], bits) for part in (grown.sums, grown.totals))
        histograms.append(NodeHistograms(grown.nodes, *parts))
    return tuple(trees), tuple(histograms)


def _assemble(view: View) -> tuple[Tree, ...]:
    """Build the trees from the broadcast splits and leaf values."""
    builders: dict[int, TreeBuilder] = defaultdict(TreeBuilder)
    for item in view.seen:
        m = item.message
        if isinstance(m, NodeSplits):
            builder = builders[m.tree]
            split = (m.feature, m.threshold, m.default_left, m.gain, m.categories)
            builder.expand(m.nodes, *split)
        elif isinstance(m, LeafValues):
            builder = builders[m.tree]
            builder.set_values(m.nodes, m.value)
        else:
            continue
        if m.g is not None and m.h is not None:
            builder.set_sums(m.nodes, np.stack([m.g, m.h], axis=1))
    return tuple(builders[t].build() for t in sorted(builders))


def _released(view: View) -> tuple[tuple[Tree, ...], NDArray[np.float32], Level]:
    """Return trees and start of the released model, and how much it tells; without it no tree."""
    for _, message in view.messages(BoostedModel):
        forest = message.model()
        told = all(t.h is not None for t in forest.trees)
        return forest.trees, forest.base_margin, "statistics" if told else "values"
    return (), np.zeros(0, dtype=np.float32), "values"


def _cuts_used(trees: Sequence[Tree], features: int) -> Cuts:
    """Return the thresholds of a model as cut points: there are at least these."""
    feature = np.concatenate([t.feature for t in trees] or [np.zeros(0, dtype=np.int32)])
    threshold = np.concatenate([t.threshold for t in trees] or [np.zeros(0, dtype=np.float32)])
    known = ~np.isnan(threshold)  # a split by categories has none
    used = [np.unique(threshold[(feature == k) & known]) for k in range(features)]
    used = [values if len(values) else np.zeros(1, dtype=np.float32) for values in used]
    return Cuts.join(used, [np.nextafter(values[0], np.float32(-np.inf)) for values in used])


def _bare(tree: Tree) -> Tree:
    return replace(tree, g=None, h=None, gain=None)


def _noise(
    view: View, trees: tuple[Tree, ...], cuts: Cuts, declared: Declared
) -> tuple[NodeNoise, ...] | None:
    """Return what is known of the noise on every tree's sums, None where they are exact."""
    if "hessian_share" in view.parameters:
        return _leaf_noise(view, trees)
    cell = declared.noise_variance + declared.histogram_step**2 / 12
    if not (cell or declared.row_variance):
        return None
    clients = sum(role == "client" for role in view.roles.values())
    cells = [_node_noise(t, cuts, clients * cell) for t in trees]
    if not declared.row_variance:
        return tuple(cells)
    if declared.unit_hessian and trees[0].h is not None:
        rows = [np.maximum(t.h, 0.0) for t in trees]
    else:
        rows = _expected_rows(view, trees)
    return tuple(
        replace(n, g=n.g + declared.row_variance * r, row_g=declared.row_variance)
        for n, r in zip(cells, rows, strict=True)
    )


def _leaf_noise(view: View, trees: tuple[Tree, ...]) -> tuple[NodeNoise, ...] | None:
    """Return the noise where only leaves are released: a node's sums are those of its leaves."""
    p = view.parameters
    norms = objective_of(p.get("objective"), view.schema.classes).norms
    scales = leaf_scales(
        (min(norms[0], p["clip"] or math.inf), norms[1]),
        epsilon=p["epsilon"],
        delta=p["delta"],
        rounds=p["trees"],
        hessian_share=p["hessian_share"],
    )
    if not any(scales):
        return None
    g, h = np.square(scales).tolist()
    out = []
    for tree in trees:
        leaves = np.ones(len(tree))
        for i in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
            leaves[i] = leaves[tree.left[i]] + leaves[tree.right[i]]
        out.append(NodeNoise(g=g * leaves, h=h * leaves, cell_g=g, cell_h=h))
    return tuple(out)


def _expected_rows(view: View, trees: tuple[Tree, ...]) -> list[NDArray[np.float64]]:
    """Return how many rows every node holds if own rows are like all, one array per tree."""
    X = (Table.empty(view.schema) if view.rows is None else view.rows).X
    out = []
    for tree, leaf in zip(trees, Routes.of(trees).apply(X).T, strict=True):
        rows = np.bincount(leaf, minlength=len(tree)) + np.where(tree.feature < 0, 0.5, 0.0)
        rows *= view.n_rows / rows.sum()
        for i in range(len(tree) - 1, -1, -1):  # children come after their parent
            if tree.feature[i] >= 0:
                rows[i] = rows[tree.left[i]] + rows[tree.right[i]]
        out.append(rows)
    return out


def _node_noise(tree: Tree, cuts: Cuts, cell: float) -> NodeNoise:
    """Follow the variance of the noise through splits and sibling subtraction.

    ``cell`` is that of one element of a freshly built histogram, over all clients; ``tree.h``
    decides which sibling was built.
    """
    node = np.zeros(len(tree))
    cells = np.full(len(tree), cell)
    node[0] = cell
    bin_of = _bins_left(tree, cuts)
    for i in np.flatnonzero(tree.feature >= 0):
        left, right = int(tree.left[i]), int(tree.right[i])
        node[left] = bin_of[i] * cells[i]
        node[right] = node[i] + node[left]
        if tree.h is not None:
            pair = np.array([left, right], dtype=np.int32)
            sums = to_fixed(np.stack([np.zeros(2), tree.h[pair]], axis=1))
            built = int(children_to_build(pair, sums)[0])
            cells[left + right - built] = cells[i] + cell
    return NodeNoise(g=node, h=node.copy(), cell_g=cells, cell_h=cells.copy())


def _bins_left(tree: Tree, cuts: Cuts) -> NDArray[np.int64]:
    """Return how many histogram cells make up each inner node's left child, int64, (n_nodes,)."""
    count = np.zeros(len(tree), dtype=np.int64)
    for i in np.flatnonzero(tree.feature >= 0):
        count[i] = bins_left(tree, int(i), cuts).sum()
    return count
