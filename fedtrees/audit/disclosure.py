"""The structural checks that research environments make before a model leaves them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Forest, Tree

#: Fewer rows than this are too few to hide among, as statistical disclosure control has it.
LEAST_ROWS = 10
_KS_LEVEL = 0.05
#: Probabilities are alike, or 0, within what float32 sums of leaves tell.
_ALIKE = 6


@dataclass(frozen=True)
class Check:
    """One check: whether it is passed, and the figure behind it; None: the file does not say."""

    name: str
    passed: bool | None
    value: float
    rule: str


def depth_of(tree: Tree) -> int:
    """Return the number of splits on the longest path."""
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # parents come before their children
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def parameters_of(forest: Forest) -> int:
    """Return how many numbers a model has: two a split, K - 1 a leaf, one a tree.

    Boosted trees have one output each, whatever K; the definition is that of `sacroml` 2.0.
    """
    splits = sum(int((t.feature >= 0).sum()) for t in forest.trees)
    leaves = sum(len(t.leaves) for t in forest.trees)
    return 2 * splits + max(forest.objective.n_outputs - 1, 1) * leaves + len(forest.trees)


def groups_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which rows have equal probabilities, numbered, shape (n,)."""
    _, at = np.unique(np.round(_classes(scores), _ALIKE), axis=0, return_inverse=True)
    return np.asarray(at.ravel(), dtype=np.int64)


def _classes(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return scores if scores.ndim == 2 else np.column_stack([1 - scores, scores])


def checks(
    forest: Forest, train: Table, reserve: Table, min_child_weight: float | None = None
) -> list[Check]:
    """Return the checks of a boosted model on its training rows.

    Definitions are `sacroml`'s (Ritchie et al. 2023 describe them): training rows in groups of
    equal probabilities. Of multiclass models our number of parameters is its definition's, not its
    code's.

    `min_child_weight`: As trained with; a file does not say it.
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
    """Return whether parameters are those of models that were found risky (its XGBoost rules)."""
    trees = len(forest.trees) // forest.objective.n_outputs
    depth = max(map(depth_of, forest.trees), default=0)
    name, rule = "depth, trees and min_child_weight", "not those of models found risky"
    if depth <= 3.5 or trees <= 3.5:
        return Check(name, True, depth, rule)
    risky = 1.5 if trees <= 12.5 else 3.0 if trees <= 62.5 else 6.0
    passed = None if min_child_weight is None else min_child_weight > risky
    return Check(name, passed, depth, f"{rule}: min_child_weight above {risky:g}")


def losses(forest: Forest, table: Table) -> NDArray[np.float64]:
    """Return the log loss of every row, nats, shape (n,)."""
    p = _classes(forest.predict(table.X))[np.arange(len(table)), table.y]
    return np.asarray(-np.log(np.clip(p, 1e-12, 1)), dtype=np.float64)
