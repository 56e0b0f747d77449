"""Structural disclosure checks that research environments apply before a model is released.

The checks are those of `sacroml` 2.0 (Ritchie et al. 2023). They need the training rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Forest, Tree

#: Smallest group that statistical disclosure control considers large enough to hide a person.
LEAST_ROWS = 10
_KS_LEVEL = 0.05
#: Decimals to which probabilities are compared, about the precision of float32 sums of leaves.
_ALIKE = 6


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes
    ----------
    name : str
        Name of the check.
    passed : bool or None
        None if the file does not contain the necessary information.
    value : float
        The measured figure.
    rule : str
        The condition for passing, in words.
    """

    name: str
    passed: bool | None
    value: float
    rule: str


def depth_of(tree: Tree) -> int:
    """Return the number of splits on the longest path of a tree."""
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # parents come before their children
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def parameters_of(forest: Forest) -> int:
    """Return the number of parameters of a model: 2 per split, K - 1 per leaf and 1 per tree.

    A leaf of boosted trees has one output for any K. The definition is that of `sacroml` 2.0.
    """
    splits = sum(int((t.feature >= 0).sum()) for t in forest.trees)
    leaves = sum(len(t.leaves) for t in forest.trees)
    return 2 * splits + max(forest.objective.n_outputs - 1, 1) * leaves + len(forest.trees)


def groups_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group of each row, int64, shape (n,). Rows of a group have equal probabilities."""
    _, at = np.unique(np.round(_classes(scores), _ALIKE), axis=0, return_inverse=True)
    return np.asarray(at.ravel(), dtype=np.int64)


def _classes(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one column of probabilities per class, float64, shape (n, K)."""
    return scores if scores.ndim == 2 else np.column_stack([1 - scores, scores])


def checks(
    forest: Forest, train: Table, reserve: Table, min_child_weight: float | None = None
) -> list[Check]:
    """Run the checks of a boosted model on its training rows.

    The definitions are those of `sacroml` (Ritchie et al. 2023). They group the training rows by
    equal probabilities. For multiclass models, the number of parameters follows the definition of
    `sacroml`, from which its code differs.

    Parameters
    ----------
    forest : Forest
        The model.
    train : Table
        Its n training rows.
    reserve : Table
        Rows from the same population that were not used for training.
    min_child_weight : float, optional
        Value of the training. The file does not contain it.

    Returns
    -------
    checks : list of Check
    """
    from scipy.stats import ks_2samp

    scores = forest.predict(train.X)
    at = groups_of(scores)
    size, p = np.bincount(at)[at], np.round(_classes(scores), _ALIKE)
    inside = p * size[:, None]
    free = len(train) - parameters_of(forest)
    ks = ks_2samp(losses(forest, train), losses(forest, reserve)).pvalue
    small = ((inside > 0) & (inside < LEAST_ROWS)).any(axis=1)
    return [
        Check("residual degrees of freedom", free >= LEAST_ROWS, free,
              f"rows minus parameters, {LEAST_ROWS} or more"),
        Check("smallest group of equal probabilities", bool(size.min() >= LEAST_ROWS),
              int(size.min()), f"{LEAST_ROWS} rows or more"),
        Check("rows of which a class is excluded", not (p == 0).any(),
              int((p == 0).any(axis=1).sum()), "no probability of 0"),
        Check("rows in a small group of a class", not small.any(), int(small.sum()),
              f"probability times group: 0, or {LEAST_ROWS} or more"),
        _settings(forest, min_child_weight),
        Check("losses of training and other rows", bool(ks >= _KS_LEVEL), float(ks),
              f"Kolmogorov-Smirnov p of {_KS_LEVEL} or more"),
    ]  # fmt: skip


def _settings(forest: Forest, min_child_weight: float | None) -> Check:
    """Check the training parameters against those of models that were found risky.

    The thresholds are the rules of `sacroml` for XGBoost.
    """
    trees = len(forest.trees) // forest.objective.n_outputs
    depth = max(map(depth_of, forest.trees), default=0)
    name, rule = "depth, trees and min_child_weight", "not those of models found risky"
    if depth <= 3.5 or trees <= 3.5:
        return Check(name, True, depth, rule)
    risky = 1.5 if trees <= 12.5 else 3.0 if trees <= 62.5 else 6.0
    passed = None if min_child_weight is None else min_child_weight > risky
    return Check(name, passed, depth, f"{rule}: min_child_weight above {risky:g}")


def losses(forest: Forest, table: Table) -> NDArray[np.float64]:
    """Return the log loss of every row in nats, float64, shape (n,)."""
    p = _classes(forest.predict(table.X))[np.arange(len(table)), table.y]
    return np.asarray(-np.log(np.clip(p, 1e-12, 1)), dtype=np.float64)
