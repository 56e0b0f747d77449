"""Central boosting of trees with one value per class, with which federated trees are compared."""

import numpy as np

from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.histogram import build_histogram, to_fixed
from fedtrees.trees.boosted.multi_output import (
    MultiOutputForest,
    MultiOutputGrower,
    add_to_margins,
)
from fedtrees.trees.partition import RowPartition


def grow_multi_output(X, y, cuts, params, objective):
    """Grow a forest on one table, without sample weights, row sampling or column sampling."""
    bins = bin_rows(X, cuts)
    objective.check(y)
    totals, score = objective.target_sums(y, None), params.base_score
    bits = objective.bits(totals)
    start = objective.start(totals) if score is None else objective.base_margin(score)
    margin, trees = np.repeat(start[:, None], len(y), axis=1), []
    for _ in range(params.trees):
        gh = to_fixed(objective.gradients(margin, y), bits)
        rows = RowPartition(len(y))
        grower = MultiOutputGrower(cuts, params, gh.sum(axis=1), bits=bits)
        while len(grower.nodes):
            ranges = rows.ranges(grower.to_build)
            histograms = np.stack([build_histogram(bins, g, rows.rows, ranges) for g in gh], axis=2)
            rows.split(bins, grower.choose_splits(histograms))
        trees.append(grower.finish())
        add_to_margins(trees[-1], rows, margin)
    return MultiOutputForest(tuple(trees), start, objective)
