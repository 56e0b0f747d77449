"""Trees over the rows of several owners, as a federation grows them: sums of what each knows."""

from __future__ import annotations

import numpy as np

from fedtrees.core.streams import Streams
from fedtrees.trees.boosted.boosting import ColumnSampler, drop_rows, grow_tree
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.histogram import to_fixed, weighted
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.forest.gini import class_histogram
from fedtrees.trees.forest.grower import ForestGrower, class_totals, draw_columns, draw_rows
from fedtrees.trees.forest.random_forest import RandomForest, keep_best_splits
from fedtrees.trees.partition import RowPartition


def grow_forest_over(owners, cuts, params, objective=LOGISTIC, streams=None):
    """Boost over `OwnerRows` rows; only the rows left out depend on who owns which."""
    streams = streams or Streams(0)
    totals = np.sum([objective.target_sums(o.y, o.weight) for o in owners], axis=0)
    bits, score = objective.bits(totals), params.base_score
    start = objective.start(totals) if score is None else objective.base_margin(score)
    margins = [np.repeat(start[:, None], len(o.y), axis=1) for o in owners]
    trees = []
    for number in range(params.trees * objective.n_outputs):
        round, k = divmod(number, objective.n_outputs)
        if k == 0:
            gradients = [
                to_fixed(weighted(objective.gradients(m, o.y), o.weight, bits), bits)
                for o, m in zip(owners, margins, strict=True)
            ]
            for i, gh in enumerate(gradients):
                drop_rows(gh, params.subsample, streams.client(i), round)
        sampler = ColumnSampler(cuts, params, streams.deciding(), number)
        parts = [(o.bins, gh[k]) for o, gh in zip(owners, gradients, strict=True)]
        tree, partitions = grow_tree(parts, cuts, params, bits=bits, sampler=sampler)
        leaves = tree.leaves.astype(np.int32)
        for partition, margin in zip(partitions, margins, strict=True):
            partition.add_to(margin[k], leaves, tree.value[leaves])
        trees.append(tree)
    return Forest(tuple(trees), start, objective)


def grow_class_tree(parts, weights, cuts, n_classes, params, features, key):
    """Grow one classification tree over (bins, labels) by summed class counts."""
    owners = [
        (bins, y, w, RowPartition(np.flatnonzero(w).astype(np.int32)))
        for (bins, y), w in zip(parts, weights, strict=True)
    ]
    totals = np.sum([class_totals(y, w, n_classes) for _, y, w, _ in owners], axis=0)
    grower = ForestGrower(cuts, params, totals, features, key)
    while len(grower.nodes):
        asked = grower.features, grower.offsets
        counts = sum(
            class_histogram(bins, y, w, p.rows, p.ranges(grower.nodes), *asked, n_classes)
            for bins, y, w, p in owners
        )
        decisions = grower.decide(counts)
        for bins, _, _, p in owners:
            p.split(bins, decisions)
    return grower.finish()


def grow_random_forest_over(parts, cuts, params, n_classes=2, seed=0):
    """Grow a random forest over (bins, labels), every owner drawing its own rows."""
    streams = Streams(seed)
    trees = []
    for t in range(params.trees):
        weights = [
            draw_rows(len(y), params, streams.client(i).rng("rows", t))
            for i, (_, y) in enumerate(parts)
        ]
        drawn = draw_columns(cuts.n_features, params, streams.deciding().rng("columns", t))
        tree = grow_class_tree(parts, weights, cuts, n_classes, params, *drawn)
        limit = params.max_leaf_nodes
        trees.append(tree if limit is None else keep_best_splits(tree, limit))
    return RandomForest(tuple(trees))


def rows_of(partition, node):
    """Return the rows of one node."""
    begin, end = partition.ranges(np.array([node]))[0]
    return partition.rows[begin:end]
