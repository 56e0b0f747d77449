"""Own rows through trees, and the gradients rows bring, in the arithmetic of the training."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.trees.boosted.losses import Softmax, logistic_gradients
from fedtrees.trees.routing import Routes


def gradients(
    margin: NDArray[np.float32], y: NDArray[Any], constant_hessian: bool = False, output: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return first and second derivatives of the log loss (Di Gennaro et al. 2025, Eqs. 3, 18).

    Computed in float32, as training libraries do, and returned as float64, shape (n,). Margins are
    log-odds of class 1, (n,); or one per class, (n, K), of which ``output`` is differentiated by:
    XGBoost's h is then twice the p(1-p) of the paper.
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
    """Return the same of rows with such classes; or with such ``target``, where it is a number."""
    if evidence.targets is None:
        return gradients(margin, y, evidence.constant_hessian, output)
    g = (margin - target.astype(np.float32)).astype(np.float64)
    return g, np.ones(len(g))


def of_output(margin: NDArray[Any], output: int) -> NDArray[Any]:
    """Return one output's part of margins of shape (n,) or (n, K), as a view."""
    return margin if margin.ndim == 1 else margin[:, output]


def add_values(margin: NDArray[Any], output: int, value: NDArray[Any]) -> None:
    """Add a tree's values to the margins of its output, in place."""
    part = of_output(margin, output)
    part += value


def at_tree(
    evidence: Evidence, X: NDArray[np.float32], t: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the leaves of rows X in tree ``t``, int32 (n,), and their margins before it."""
    nodes, margin = Routes.of(evidence.trees[: t + 1]).apply(X), evidence.start(len(X))
    for k in range(t):
        add_values(margin, k % evidence.outputs, evidence.trees[k].value[nodes[:, k]])
    return nodes[:, t], margin
