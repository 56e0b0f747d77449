"""Small trained forests with known training rows, and the observations that an adversary has of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    NodeHistograms,
    ObservedSums,
    RowCounts,
)
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed
from fedtrees.trees.boosted.losses import LOGISTIC, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts


@dataclass(frozen=True, eq=False)
class World:
    """A forest that was trained on the adversary's local rows and the victims' rows."""

    schema: Schema
    local_rows: Table
    victims: Table
    forest: Forest
    cuts: Cuts
    params: TreeParams

    def evidence(self, level="statistics", **changes) -> BoostingObservations:
        trees, start = self.forest.trees, self.forest.base_margin
        if level == "values":
            trees = tuple(replace(t, g=None, h=None, gain=None) for t in trees)
        histograms = None
        if level == "histograms":
            histograms = node_histograms(self.forest, self.cuts, self.all_rows, self.params)
        announced_params = TreeParams(
            learning_rate=self.params.learning_rate,
            reg_lambda=self.params.reg_lambda,
            min_child_weight=self.params.min_child_weight,
        )
        margin = changes.pop("base_margin", start[0] if len(start) == 1 else start)
        observed = ObservedSums(level, histograms, self.cuts)
        rows = RowCounts(len(self.local_rows) + len(self.victims))
        arguments = (changes.pop("trees", trees), margin, announced_params, observed)
        return BoostingObservations(*arguments, row_counts=rows).change(**changes)

    @property
    def all_rows(self) -> Table:
        return Table.concat([self.local_rows, self.victims])

    def first_counts(self, t=0):
        """Return the victims per leaf of first tree `t`: those of other classes than the tree's,
        and those of its class.
        """
        tree = self.forest.trees[t]
        leaf = self.forest.apply(self.victims.X)[:, t]
        positive = self.victims.y == (1 if self.forest.objective.n_outputs == 1 else t)
        return tuple(
            np.array([((leaf == j) & in_class).sum() for j in tree.leaves])
            for in_class in (~positive, positive)
        )


def world(X, y, n_local, seed=0, categorical=(), order=None, classes=2, **params) -> World:
    """Train a forest on all rows. The first `n_local` rows of `order` (random if None) are the
    adversary's.
    """
    objective = LOGISTIC if classes == 2 else Softmax(classes)
    params = TreeParams(**({"trees": 12, "max_depth": 3, "max_bin": 32} | params))
    if order is None:
        order = np.random.default_rng(seed).permutation(len(y))
    table = Table(np.asarray(X, dtype=np.float32)[order], np.asarray(y)[order])
    cuts = quantile_cuts(table.X, params.max_bin)
    features = tuple(
        Feature(f"x{k}", "categorical", categories=tuple("abcdefgh"[: categorical[k]]))
        if k in categorical
        else Feature(f"x{k}")
        for k in range(table.X.shape[1])
    )
    return World(
        Schema(features, "y", tuple(map(str, range(classes)))),
        table.take(np.arange(n_local)),
        table.take(np.arange(n_local, len(y))),
        grow_forest(table.X, table.y, cuts, params, objective),
        cuts,
        params,
    )


def structured(n=320, seed=5):
    """Return a table of six features that depend on one hidden position, so a leaf reveals much
    about a row.
    """
    rng = np.random.default_rng(seed)
    position = rng.normal(size=n)
    X = np.column_stack(
        [position * slope + 0.15 * rng.normal(size=n) for slope in (1, -1, 2, 1, -2)]
    )
    X = np.column_stack([X, (position > 0.3).astype(float) + (position > 1)]).astype(np.float32)
    return X, (rng.random(n) < 1 / (1 + np.exp(-2 * position))).astype(np.int64)


def node_histograms(forest, cuts, table, params):
    """Return the exact histograms of every node above the deepest level, computed by brute
    force.
    """
    leaf = forest.apply(table.X)
    objective = forest.objective
    margin = np.repeat(forest.base_margin[:, None], len(table), axis=1)
    out = []
    for t, tree in enumerate(forest.trees):
        output = t % objective.n_outputs
        if output == 0:
            gradients = objective.gradients(margin, table.y)
        gh = to_fixed(gradients[output])
        member, depth = _node_membership(tree, leaf[:, t])
        nodes = np.flatnonzero(depth < params.max_depth).astype(np.int32)
        sums = np.zeros((len(nodes), len(cuts.values), 2), dtype=np.int64)
        for f in range(table.X.shape[1]):
            is_present = ~np.isnan(table.X[:, f])
            last = int(cuts.n_bins[f]) - 1
            bins = np.minimum(np.searchsorted(cuts.of(f), table.X[:, f], side="right"), last)
            for k, node in enumerate(nodes):
                rows = member[node] & is_present
                np.add.at(sums[k], cuts.offsets[f] + bins[rows], gh[rows])
        totals = np.array([gh[member[node]].sum(axis=0) for node in nodes])
        out.append(NodeHistograms(nodes, from_fixed(sums), from_fixed(totals)))
        margin[output] += tree.value[leaf[:, t]]
    return tuple(out)


def _node_membership(tree: Tree, leaf):
    depth = np.zeros(len(tree), dtype=int)
    member = {int(n): leaf == n for n in range(len(tree))}
    for node in range(len(tree)):
        for child in (tree.left[node], tree.right[node]):
            if child >= 0:
                depth[child] = depth[node] + 1
    for node in range(len(tree) - 1, -1, -1):
        if tree.left[node] >= 0:
            member[node] = member[int(tree.left[node])] | member[int(tree.right[node])]
    return member, depth


def accuracy(guess: Table, truth: Table, schema: Schema) -> float:
    """Return the share of agreeing columns, label included, under the best matching of the rows."""
    width = np.where(schema.categorical, 0.0, 0.319 * np.nanstd(truth.X, axis=0))
    agree = (np.abs(truth.X[:, None] - guess.X[None]) <= width).sum(axis=2)
    agree = (agree + (truth.y[:, None] == guess.y[None])) / (len(width) + 1)
    rows, columns = linear_sum_assignment(-agree)
    return float(agree[rows, columns].sum() / len(truth))
