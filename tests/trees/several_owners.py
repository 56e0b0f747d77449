"""Grow trees over the rows of several owners by adding their sums, as a federation does."""

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
    """Boost over the rows of `OwnerRows`; the owners matter only for the sampled rows."""
    streams = streams or Streams(0)
    totals = np.sum([objective.target_sums(owner.y, owner.weight) for owner in owners], axis=0)
    bits, score = objective.bits(totals), params.base_score
    start = objective.start(totals) if score is None else objective.base_margin(score)
    margins = [np.repeat(start[:, None], len(owner.y), axis=1) for owner in owners]
    trees = []
    for number in range(params.trees * objective.n_outputs):
        round, output = divmod(number, objective.n_outputs)
        if output == 0:
            gradients = [
                to_fixed(weighted(objective.gradients(m, owner.y), owner.weight, bits), bits)
                for owner, m in zip(owners, margins, strict=True)
            ]
            for i, row_sums in enumerate(gradients):
                drop_rows(row_sums, params.subsample, streams.client(i), round)
        sampler = ColumnSampler(cuts, params, streams.deciding(), number)
        parts = [
            (owner.bins, row_sums[output])
            for owner, row_sums in zip(owners, gradients, strict=True)
        ]
        tree, partitions = grow_tree(parts, cuts, params, bits=bits, sampler=sampler)
        leaves = tree.leaves.astype(np.int32)
        for partition, margin in zip(partitions, margins, strict=True):
            partition.add_to(margin[output], leaves, tree.value[leaves])
        trees.append(tree)
    return Forest(tuple(trees), start, objective)


def grow_class_tree(parts, weights, cuts, n_classes, params, features, key):
    """Grow one classification tree over (bins, labels) by summed class counts."""
    owners = [
        (bins, y, weights_of_owner, RowPartition(np.flatnonzero(weights_of_owner).astype(np.int32)))
        for (bins, y), weights_of_owner in zip(parts, weights, strict=True)
    ]
    totals = np.sum(
        [class_totals(y, weights_of_owner, n_classes) for _, y, weights_of_owner, _ in owners],
        axis=0,
    )
    grower = ForestGrower(cuts, params, totals, features, key)
    while len(grower.nodes):
        requested = grower.features, grower.offsets
        counts = sum(
            class_histogram(
                bins,
                y,
                weights_of_owner,
                partition.rows,
                partition.ranges(grower.nodes),
                *requested,
                n_classes,
            )
            for bins, y, weights_of_owner, partition in owners
        )
        decisions = grower.choose_splits(counts)
        for bins, _, _, partition in owners:
            partition.split(bins, decisions)
    return grower.finish()


def grow_random_forest_over(parts, cuts, params, n_classes=2, seed=0):
    """Grow a random forest over (bins, labels); every owner samples its own rows."""
    streams = Streams(seed)
    trees = []
    for tree_number in range(params.trees):
        weights = [
            draw_rows(len(y), params, streams.client(number).rng("rows", tree_number))
            for number, (_, y) in enumerate(parts)
        ]
        drawn_columns = draw_columns(
            cuts.n_features, params, streams.deciding().rng("columns", tree_number)
        )
        tree = grow_class_tree(parts, weights, cuts, n_classes, params, *drawn_columns)
        limit = params.max_leaf_nodes
        trees.append(tree if limit is None else keep_best_splits(tree, limit))
    return RandomForest(tuple(trees))


def rows_of(partition, node):
    """Return the rows of one node."""
    begin, end = partition.ranges(np.array([node]))[0]
    return partition.rows[begin:end]
