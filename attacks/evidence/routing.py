"""Route rows through trees and compute their gradients in the arithmetic of the training."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import Softmax, logistic_gradients
from fedtrees.trees.routing import Routes


def gradients(
    margin: NDArray[np.float32], y: NDArray[Any], constant_hessian: bool = False, output: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return first and second derivatives of the log loss (Di Gennaro et al. 2025, Eqs. 3, 18).

    They are computed in float32, as training libraries do, and returned as float64.

    Parameters
    ----------
    margin : float32 array, shape (n,) or (n, K)
        Log-odds of class 1, or one margin per class.
    y : array, shape (n,)
        Classes.
    constant_hessian : bool, default False
        If True, the second derivative is replaced by 1.
    output : int, default 0
        Class whose margin is differentiated. With several classes, XGBoost's h is twice the p(1-p)
        of the paper.

    Returns
    -------
    g, h : float64 array, shape (n,) each
    """
    if margin.ndim == 1:
        gh = logistic_gradients(margin, y).astype(np.float64)
    else:
        objective = Softmax(margin.shape[1])
        gh = objective.gradients(np.ascontiguousarray(margin.T), y)[output].astype(np.float64)
    return gh[:, 0], np.ones(len(gh)) if constant_hessian else gh[:, 1]


def gradients_of(
    evidence: Evidence,
    margin: NDArray[np.float32],
    y: NDArray[Any],
    target: NDArray[Any],
    output: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the derivatives of the loss of the evidence, for classes or numeric targets.

    Parameters
    ----------
    evidence : Evidence
        Determines the loss.
    margin : float32 array, shape (n,) or (n, K)
        Predictions before the tree.
    y : array, shape (n,)
        Classes, read if targets are not numeric.
    target : array, shape (n,)
        Numeric targets.
    output : int, default 0
        Class whose margin is differentiated.
    """
    if evidence.targets is None:
        return gradients(margin, y, evidence.constant_hessian, output)
    g = (margin - target.astype(np.float32)).astype(np.float64)
    return g, np.ones(len(g))


def of_output(margin: NDArray[Any], output: int) -> NDArray[Any]:
    """Return one output's part of margins of shape (n,) or (n, K), as a NumPy view."""
    return margin if margin.ndim == 1 else margin[:, output]


def add_values(margin: NDArray[Any], output: int, value: NDArray[Any]) -> None:
    """Add a tree's leaf values to the margins of its output, in place.

    Parameters
    ----------
    margin : array, shape (n,) or (n, K)
        Margins to change.
    output : int
        Class that the tree belongs to.
    value : array, shape (n,)
        Leaf values of the rows.
    """
    part = of_output(margin, output)
    part += value


def at_tree(
    evidence: Evidence, X: NDArray[np.float32], t: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the leaves of rows in tree ``t`` and their margins before this tree.

    Parameters
    ----------
    evidence : Evidence
        The trees.
    X : float32 array, shape (n, d)
        Feature values.
    t : int
        The tree.

    Returns
    -------
    leaf : int32 array, shape (n,)
        Node numbers.
    margin : float32 array, shape (n,) or (n, K)
    """
    nodes, margin = Routes.of(evidence.trees[: t + 1]).apply(X), evidence.start(len(X))
    # The values are added tree by tree in float32, as in the training, so that roundings agree.
    for k in range(t):
        add_values(margin, k % evidence.outputs, evidence.trees[k].value[nodes[:, k]])
    return nodes[:, t], margin


def leaves_below(tree: Tree) -> NDArray[np.float64]:
    """Return which leaves are below each node, float64, shape (n_nodes, J)."""
    leaves = tree.leaves
    member = np.zeros((len(tree), len(leaves)))
    member[leaves, np.arange(len(leaves))] = 1
    for node in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        member[node] = member[tree.left[node]] + member[tree.right[node]]
    return member
