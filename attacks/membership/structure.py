"""What messages and models say of single rows: values that they hold, sums that they are in."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.column import Column
from fedtrees.attacks.evidence.counts import counts_bins
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.forest.random_forest import ClassTree

Floats = NDArray[np.float64]
#: Of a hessian: sums are of float32 in fixed point.
_ROUNDED = 1e-3
_RARE = 1e-6  # what rarity adds to a share
_LEAST = 1e-16  # hessian of a row, as in XGBoost


def held_thresholds(
    X: NDArray[np.float32], trees: Sequence[Tree | ClassTree], own: Table | None = None
) -> Floats:
    """Return how much likelier members hold the thresholds that candidates hold, nats, shape (n,).

    A cut point of a sketch is a value that somebody holds. Of k candidates that hold it one at
    least is a member, each with one chance in two: of one that is not the others must have been,
    -log(1 - 2^(1-k)). One alone is a member, unless its value is also somebody's who is no
    candidate: log n stands for that. Columns are summed.

    `own`: Rows known to have been trained on, which explain the values that they hold.
    """
    told = np.zeros(len(X))
    for column in range(X.shape[1]):
        used = [t.threshold[t.feature == column] for t in trees]
        values = np.unique(np.concatenate([*used, np.zeros(0, dtype=np.float32)]))
        values = values[~np.isnan(values)]
        if own is not None:
            values = np.setdiff1d(values, own.X[:, column])
        x = X[:, column]
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        shared = -np.log1p(-(0.5 ** np.maximum(count - 1, 1)))
        nats = np.where(count == 1, np.log(len(x)), shared)
        told += np.where(np.isin(x, values), nats[at.ravel()], 0.0)
    return told


def in_columns(X: NDArray[np.float32], owners: Iterable[Sequence[Column]]) -> Floats:
    """Return the share of columns in which one owner has a candidate's value, (n,).

    Of equal ones, those of values that few candidates have come first.
    """
    best, rare = np.zeros(len(X)), np.zeros(len(X))
    for x in X.T:
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        rare -= np.log(count / len(X))[at.ravel()]
    for columns in owners:
        held = [np.isin(x, c.values) | np.isnan(x) for x, c in zip(X.T, columns, strict=True)]
        best = np.maximum(best, np.mean(held, axis=0))
    return np.asarray(best + _RARE * rare / max(rare.max(initial=0.0), 1.0))


def on_path(rows_of: Table, evidence: Evidence, cuts: Cuts) -> Floats:
    """Return how far sums of hessians fall short of a candidate's own, (n,): 0 nowhere.

    Every bin of a row, in every node that it passes, has at least its hessian: the shortfall, in
    parts of it, is summed over bins, nodes and trees. Of numeric targets a bin that has one row
    alone has its gradient, too.
    """
    X, counted = rows_of.X, evidence.targets is not None and counts_bins(evidence)
    bins = bin_rows(X, cuts)
    rows, cell = np.nonzero(bins.codes != bins.missing)
    cell = cuts.offsets[cell] + bins.codes[rows, cell].astype(np.int64)
    short, margin = np.zeros(len(X)), np.full(len(X), float(evidence.base_margin))
    for tree, seen in zip(evidence.trees, evidence.histograms or (), strict=True):
        p = expit(margin)
        h = np.ones(len(X)) if evidence.constant_hessian else np.maximum(p * (1 - p), _LEAST)
        passed = passes(X, tree)
        slack = np.zeros(len(seen.nodes)) if seen.slack is None else seen.slack
        for node, sums, off in zip(seen.nodes.tolist(), seen.sums, slack.tolist(), strict=True):
            inside = passed[rows, node]
            at = rows[inside]
            lack = np.clip(1 - sums[cell[inside], 1] / h[at], 0, 1)
            if counted:
                g = np.abs(sums[cell[inside], 0] - (margin - rows_of.y)[at])
                alone = np.rint(sums[cell[inside], 1]) == 1
                lack = np.where(alone & (g > off + _ROUNDED * (1 + np.abs(margin[at]))), 1, lack)
            short -= np.bincount(at, np.where(lack > _ROUNDED, lack, 0), minlength=len(X))
        margin += tree.value[np.argmax(passed * (tree.feature < 0), axis=1)]
    return short


def passes(X: NDArray[np.float32], tree: Tree) -> NDArray[np.bool_]:
    """Return which nodes every row passes, bool, shape (n, nodes)."""
    passed = np.zeros((len(X), len(tree)), dtype=bool)
    passed[:, 0] = True
    for node in np.flatnonzero(tree.feature >= 0):  # parents come before their children
        x = X[:, tree.feature[node]]
        goes = np.where(np.isnan(x), tree.default_left[node], x < tree.threshold[node])
        passed[:, tree.left[node]] = passed[:, node] & goes
        passed[:, tree.right[node]] = passed[:, node] & ~goes
    return passed
