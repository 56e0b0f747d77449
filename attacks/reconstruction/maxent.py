"""Assign rows to leaves by maximum entropy: the most probable P that meets the leaf sums.

The method is not from a paper. The mixed-integer programme of Di Gennaro et al. (2025, Eqs. 11-13)
returns an arbitrary corner of a large solution set. Here, a row i of weight w_i is in leaf j with
probability P_ij. P minimises sum_i w_i KL(P_i || prior_i) subject to the equations
sum_i w_i P_ij x_ij = target_j of all leaves j. The contribution x_ij of a row is (g_i, h_i), or one
number if only leaf values are known (`fedtrees.attacks.reconstruction.context`). The dual problem
has one multiplier theta per equation:

    minimise  sum_i w_i log sum_j prior_ij exp(theta_j . x_ij) - theta . target
              + 1/2 sum ridge theta^2

The dual problem is convex, and is solved by Newton's method with backtracking. The ridge is the
variance of the noise on the target (a Gaussian likelihood), or a small constant if sums are exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from fedtrees.attacks.reconstruction.prior import ReachableLeaves
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]

# Smallest variance, also of exact sums. Without it, theta would diverge if no P meets the sums
# exactly, for example because they are rounded.
EXACT_RIDGE = 1e-3
MAX_ITERATIONS = 40
TOLERANCE = 1e-3  # largest component of the gradient of the dual at which Newton's method stops
ARMIJO = 1e-4  # share of the predicted decrease that a step must achieve


def max_entropy(
    reach: ReachableLeaves, weight: Floats, x: Floats, target: Floats, variance: Floats
) -> Floats:
    """Return the probability of each reachable leaf of each row.

    Parameters
    ----------
    reach : ReachableLeaves
        Reachable leaves and log prior of n rows.
    weight : float64 array, shape (n,)
        Number of equal rows that each row represents.
    x : float64 array, shape (nnz, K)
        Contribution of a row to each equation of a leaf.
    target : float64 array, shape (J, K)
        Required sums of the contributions.
    variance : float64 array, shape (J, K)
        Variance of the error of ``target``. Values below `EXACT_RIDGE` are replaced by it.

    Returns
    -------
    float64 array, shape (nnz,)
        P in the order of `ReachableLeaves.leaf`. The entries of each row add up to 1.
    """
    J, K = target.shape
    # exact sums may be infeasible after rounding, so that they also need a small ridge
    ridge = np.maximum(variance, EXACT_RIDGE).reshape(-1)
    # no parameter can change the equation of a leaf that no row can reach
    active = np.zeros(J, dtype=bool)
    active[reach.leaf] = True
    mask = np.repeat(active, K)
    goal = np.where(mask, target.reshape(-1), 0.0)
    theta = np.zeros(J * K)
    args = (reach.offsets, reach.leaf, reach.log_prior, weight, x)
    value, mean, P = _evaluate(*args, theta, J)
    value += -theta @ goal
    for _ in range(MAX_ITERATIONS):
        gradient = np.where(mask, mean - goal + ridge * theta, 0.0)
        if np.abs(gradient).max(initial=0.0) < TOLERANCE:
            break
        H = _hessian(reach.offsets, reach.leaf, weight, x, P, J)
        H.flat[:: len(H) + 1] += ridge
        # Cholesky's method without input checks, which would cost more than the solution
        _, direction, failed = dposv(H, -gradient)
        if failed:
            direction = -gradient / np.diag(H)
        step, slope = 1.0, float(gradient @ direction)
        while True:
            trial = theta + step * direction
            new, new_mean, new_P = _evaluate(*args, trial, J)
            new += -trial @ goal + 0.5 * float(ridge @ trial**2)
            if new <= value + ARMIJO * step * slope or step < 1e-6:
                break
            step *= 0.5
        if step < 1e-6:
            break
        theta, value, mean, P = trial, new, new_mean, new_P
    return P


@kernel
def _evaluate(offsets, leaf, log_prior, weight, x, theta, J):  # type: ignore[no-untyped-def]
    """Return the first term of the dual at theta, the expected leaf sums, and P."""
    K = x.shape[1]
    P = np.empty(leaf.shape[0])
    mean = np.zeros(J * K)
    value = 0.0
    for i in range(offsets.shape[0] - 1):
        a, b = offsets[i], offsets[i + 1]
        if a == b:
            continue
        top = -np.inf
        for e in range(a, b):
            s = log_prior[e]
            for k in range(K):
                s += theta[leaf[e] * K + k] * x[e, k]
            P[e] = s
            top = max(top, s)
        total = 0.0
        for e in range(a, b):
            P[e] = np.exp(P[e] - top)
            total += P[e]
        value += weight[i] * (top + np.log(total))
        for e in range(a, b):
            P[e] /= total
            for k in range(K):
                mean[leaf[e] * K + k] += weight[i] * P[e] * x[e, k]
    return value, mean, P


@kernel
def _hessian(offsets, leaf, weight, x, P, J):  # type: ignore[no-untyped-def]
    """Return the covariance of the leaf sums under P, the Hessian of the dual's first term."""
    K = x.shape[1]
    H = np.zeros((J * K, J * K))
    for i in range(offsets.shape[0] - 1):
        for e in range(offsets[i], offsets[i + 1]):
            if P[e] < 1e-12:
                continue
            for q in range(offsets[i], e + 1):
                c = weight[i] * ((P[e] if e == q else 0.0) - P[e] * P[q])
                for k in range(K):
                    for m in range(K):
                        value = c * x[e, k] * x[q, m]
                        H[leaf[e] * K + k, leaf[q] * K + m] += value
                        if e != q:
                            H[leaf[q] * K + m, leaf[e] * K + k] += value
    return H


def draw_leaves(
    reach: ReachableLeaves, P: Floats, rows: NDArray[np.intp], u: Floats
) -> NDArray[np.int32]:
    """Draw one leaf per row from P by inversion.

    Parameters
    ----------
    reach : ReachableLeaves
        Reachable leaves.
    P : float64 array, shape (nnz,)
        Result of `max_entropy`.
    rows : intp array, shape (m,)
        Row of `reach` from whose probabilities each leaf is drawn. A row can occur several times.
    u : float64 array, shape (m,)
        Uniform random numbers.

    Returns
    -------
    int32 array, shape (m,)
        Positions of the leaves.
    """
    out: NDArray[np.int32] = _draw(reach.offsets, reach.leaf, P, rows, u)
    return out


@kernel
def _draw(offsets, leaf, P, rows, u):  # type: ignore[no-untyped-def]
    """Return the first reachable leaf whose cumulative probability exceeds u, for each row."""
    out = np.empty(rows.shape[0], dtype=np.int32)
    for m in range(rows.shape[0]):
        a, b = offsets[rows[m]], offsets[rows[m] + 1]
        total = 0.0
        out[m] = leaf[b - 1]
        for e in range(a, b):
            total += P[e]
            if u[m] < total:
                out[m] = leaf[e]
                break
    return out
