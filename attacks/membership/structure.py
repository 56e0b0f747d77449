"""Membership tests of single candidates that need no reference models.

Two tests compare the values of a candidate with values of training rows that messages contain:
`column_overlap` with the columns of sketches, `shared_thresholds` with the thresholds of a model.
The third, `hessian_shortfall`, checks necessary conditions: every histogram sum on the path of a
member is at least its hessian.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedtrees.attacks.counts.leaf_sums import counts_bins
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.columns import Column
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.forest.random_forest import ClassTree

Floats = NDArray[np.float64]
#: Relative error of a hessian sum, which is made of float32 numbers in fixed point.
_ROUNDED = 1e-3
#: Weight of the rarity of a candidate's values, which only breaks ties.
_RARE = 1e-6
#: Smallest hessian of a row, as in XGBoost.
_LEAST = 1e-16


def shared_thresholds(
    X: NDArray[np.float32], trees: Sequence[Tree | ClassTree], known_rows: Table | None = None
) -> Floats:
    """Return the evidence for membership from thresholds that equal values of a candidate.

    A cut point of a sketch is the value of a training row. Of k candidates with this value at
    least one is a member, and each is with probability 1/2. The value of a non-member must come
    from one of the other candidates, which has the log probability log(1 - 2^(1-k)). A single
    candidate with the value is a member, unless the value is also that of a row that is not a
    candidate. The log-odds are set to log n in this case. Columns are added up.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates.
    trees : sequence of Tree or ClassTree
        The model under attack.
    known_rows : Table or None
        Rows known to be members. Thresholds that are among their values are ignored.

    Returns
    -------
    float64 array, shape (n,)
        Log-odds in nats.
    """
    nats = np.zeros(len(X))
    for column in range(X.shape[1]):
        used = [t.threshold[t.feature == column] for t in trees]
        values = np.unique(np.concatenate([*used, np.zeros(0, dtype=np.float32)]))
        values = values[~np.isnan(values)]
        if known_rows is not None:
            values = np.setdiff1d(values, known_rows.X[:, column])
        x = X[:, column]
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        shared = -np.log1p(-(0.5 ** np.maximum(count - 1, 1)))
        each = np.where(count == 1, np.log(len(x)), shared)
        nats += np.where(np.isin(x, values), each[at.ravel()], 0.0)
    return nats


def column_overlap(X: NDArray[np.float32], owners: Iterable[Sequence[Column]]) -> Floats:
    """Return the largest share of a candidate's values that the sketches of one client contain.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates. A missing value counts as contained.
    owners : iterable of sequence of Column
        The d columns of each client's sketch.

    Returns
    -------
    float64 array, shape (n,)
        At least 1 if one client's sketch contains all values. Among candidates with the same share,
        those with rare values have a score that is greater by at most `_RARE`.
    """
    best, rare = np.zeros(len(X)), np.zeros(len(X))
    for x in X.T:
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        rare -= np.log(count / len(X))[at.ravel()]
    for columns in owners:
        contained = [np.isin(x, c.values) | np.isnan(x) for x, c in zip(X.T, columns, strict=True)]
        best = np.maximum(best, np.mean(contained, axis=0))
    return np.asarray(best + _RARE * rare / max(rare.max(initial=0.0), 1.0))


def hessian_shortfall(candidates: Table, evidence: BoostingObservations, cuts: Cuts) -> Floats:
    """Return minus the total shortfall of hessian sums on the path of each candidate.

    If a candidate is a member, then its hessian is part of the sum of every bin it falls into, in
    every node on its path. If the sum is smaller, the missing part is added up, in units of the
    candidate's hessian. For a numeric target, a bin that contains a single row must in addition
    have exactly the candidate's gradient.

    Parameters
    ----------
    candidates : Table
        The n candidates.
    evidence : BoostingObservations
        Trees with the histograms of their nodes.
    cuts : Cuts
        Cut points of the histograms.

    Returns
    -------
    float64 array, shape (n,)
        0 if the candidate can be a member, else negative.
    """
    X, counted = candidates.X, evidence.targets is not None and counts_bins(evidence)
    bins = bin_rows(X, cuts)
    rows, cell = np.nonzero(bins.codes != bins.missing)
    cell = cuts.offsets[cell] + bins.codes[rows, cell].astype(np.int64)
    shortfall, margin = np.zeros(len(X)), np.full(len(X), float(evidence.base_margin))
    for tree, seen in zip(evidence.trees, evidence.observed.histograms or (), strict=True):
        p = expit(margin)
        h = np.ones(len(X)) if evidence.constant_hessian else np.maximum(p * (1 - p), _LEAST)
        passed = passes(X, tree)
        slack = seen.errors
        for node, sums, off in zip(seen.nodes.tolist(), seen.sums, slack.tolist(), strict=True):
            inside = passed[rows, node]
            at = rows[inside]
            # missing share of the candidate's hessian in the sum of its bin
            lack = np.clip(1 - sums[cell[inside], 1] / h[at], 0, 1)
            if counted:
                g = np.abs(sums[cell[inside], 0] - (margin - candidates.y)[at])
                single = np.rint(sums[cell[inside], 1]) == 1
                lack = np.where(single & (g > off + _ROUNDED * (1 + np.abs(margin[at]))), 1, lack)
            shortfall -= np.bincount(at, np.where(lack > _ROUNDED, lack, 0), minlength=len(X))
        margin += tree.value[np.argmax(passed * (tree.feature < 0), axis=1)]
    return shortfall


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
