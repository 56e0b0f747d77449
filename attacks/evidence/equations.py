"""The sums of a tree's leaves as linear equations in the gradients of the rows."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.grid import LeafConstraints
from fedtrees.attacks.evidence.prior import ReachableLeaves
from fedtrees.attacks.evidence.sums import LeafSums

Floats = NDArray[np.float64]


def equations(
    evidence: Evidence, t: int, sums: LeafSums, leaves: LeafConstraints
) -> tuple[Floats, Floats]:
    """Return the right-hand sides of the leaf equations and their error variances.

    A leaf value gives one equation, sum_i g_i + (v/eta) h_i = -lambda v/eta - alpha sign(v). A
    value of 0 under an L1 penalty only shows that G is between -alpha and alpha.

    Parameters
    ----------
    evidence : Evidence
        Training parameters and leaf values.
    t : int
        The tree.
    sums : LeafSums
        Sums of the victims' rows in its leaves.
    leaves : LeafConstraints
        Leaves of the tree.

    Returns
    -------
    target, variance : float64 array, shape (J, K) each
        K is 2 if gradient and hessian sums are known, and 1 if only leaf values are.
    """
    if sums.g is not None and sums.h is not None:
        return np.stack([sums.g, sums.h], axis=1), np.stack([sums.var_g, sums.var_h], axis=1)
    u = slopes(evidence, t, leaves)
    target = -evidence.reg_lambda * u - evidence.reg_alpha * np.sign(u)
    # a leaf value contains the adversary's rows, so that their part is moved to the right-hand side
    target = target - sums.own_g - u * sums.own_h
    weight = (sums.own_h + evidence.reg_lambda + 1.0) / evidence.learning_rate
    values = evidence.trees[t].value[leaves.node]
    off = 0.0 if evidence.rounding is None else evidence.rounding.error(values)[1]
    variance = off * weight**2 + sums.var_g + u * u * sums.var_h
    # G is uniform between -alpha and alpha if the L1 penalty sets the value to 0
    variance = variance + np.where(u == 0, evidence.reg_alpha**2 / 3, 0.0)
    return target[:, None], variance[:, None]


def slopes(evidence: Evidence, t: int, leaves: LeafConstraints) -> Floats:
    """Return v / eta of every leaf, float64, shape (J,)."""
    return evidence.trees[t].value[leaves.node].astype(np.float64) / evidence.learning_rate


def contributions(
    evidence: Evidence,
    t: int,
    sums: LeafSums,
    leaves: LeafConstraints,
    options_of: ReachableLeaves,
    gh: tuple[Floats, Floats],
) -> Floats:
    """Return the contribution of each row to the equations of each leaf it can reach.

    Parameters
    ----------
    evidence : Evidence
        Training parameters and leaf values.
    t : int
        The tree.
    sums : LeafSums
        Sums of the victims' rows in its leaves.
    leaves : LeafConstraints
        Leaves of the tree.
    options_of : ReachableLeaves
        Leaves that each row can reach.
    gh : tuple of float64 array, shape (n,) each
        Gradient and hessian of each row.

    Returns
    -------
    float64 array, shape (nnz, K)
        One line per pair of row and reachable leaf, with K as in `equations`.
    """
    width = np.diff(options_of.offsets)
    ge, he = np.repeat(gh[0], width), np.repeat(gh[1], width)
    if sums.g is not None:
        return np.stack([ge, he], axis=1)
    u = slopes(evidence, t, leaves)
    return (ge + u[options_of.leaf] * he)[:, None]
