"""Compute how precisely the equations of a file determine eta, lambda and an L1 penalty.

Several values of eta and lambda can agree with all equations, for example if the only tree is a
stump. An L1 penalty alpha, which moves every G towards 0 by alpha, leaves no trace in a stump whose
gradients add up to 0, because both leaves move by the same amount. This module linearises the
equations around the solution, and includes every further effect that a training may have had as an
unknown:

* G of a node with weight w is ``-w (H + lambda) - sign(w) alpha``, and arbitrary if w is 0.
* A node with the largest weight may have been truncated there (``max_delta_step``). Its G is free.
* Gains are those of the weights or, with a limit on steps or monotone constraints, contain a
  further term ``2 alpha |w|`` (XGBoost 3.2, ``split_evaluator.h``). Both cases are tried.

A quantity that these equations determine was therefore determined by the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import Splits

Floats = NDArray[np.float64]

# Assumed error of every equation in float32 roundings. The largest residual of valid models is 1.9.
ROUNDINGS = 4.0
# Largest eta. A truncated inner node has the weight of a truncated leaf, which is at least the
# largest leaf value divided by this.
MOST_ETA = 2.0
NEAR = 1e-5  # largest relative difference of weights that were truncated at one limit
_STEP = 1e-5  # step of log eta for the numerical derivative
_NONE = 1e-9  # singular values below this (relative to the largest) determine nothing


@dataclass(frozen=True)
class Freedom:
    """Errors of eta, lambda and alpha that the equations admit, infinite if any value agrees."""

    eta: float  # relative
    reg_lambda: float
    alpha: float


def freedom(
    parts: Sequence[tuple[Splits, Floats, bool]], eta: float, reg_lambda: float, given: bool = False
) -> Freedom:
    """Return how far eta, lambda and alpha may deviate from `eta`, `reg_lambda` and 0.

    Parameters
    ----------
    parts : sequence of (Splits, float64 array of shape (J,), bool)
        Equations, sums of hessians of the leaves, and whether the file contains the sums. If it
        does not, they are further unknowns.
    eta, reg_lambda : float
        The solution around which the equations are linearised.
    given : bool
        True if eta and lambda are known independently of the file, so that only alpha is unknown.

    Returns
    -------
    freedom : Freedom
        The larger error of both forms of the gains.
    """
    leaf = max((float(np.abs(s.child[s.leaf]).max()) for s, _, _ in parts), default=0.0)
    inner = max((float(np.abs(s.weight).max()) for s, _, _ in parts), default=0.0)
    largest = leaf, max(inner, leaf / MOST_ETA)
    every = []
    for in_gain in (False, True):
        blocks = [_derivatives(part, eta, reg_lambda, largest, in_gain) for part in parts]
        wide = sum(free.shape[1] for _, free in blocks)
        rows, at = [], 0
        for sought, free in blocks:
            apart = np.zeros((len(sought), wide))
            apart[:, at : at + free.shape[1]] = free
            at += free.shape[1]
            rows.append(np.column_stack([sought[:, 2:] if given else sought, apart]))
        errors = _errors(np.concatenate(rows)) if rows else np.full(3, np.inf)
        every.append([0.0, 0.0, errors[0]] if given else errors[:3])
    return Freedom(*map(float, np.max(every, axis=0)))


def _derivatives(
    part: tuple[Splits, Floats, bool],
    eta: float,
    reg_lambda: float,
    largest: tuple[float, float],
    in_gain: bool,
) -> tuple[Floats, Floats]:
    """Return the derivatives of the equations, in units of their errors.

    The first array, shape (2k, 3), contains the derivatives by log eta, lambda and alpha. The
    second one, shape (2k, m), contains those by the m further unknowns.
    """
    splits, h, h_known = part
    a, c, _ = splits.system(eta)

    def off(at: float) -> Floats:
        a, c, b = splits.system(at)
        return a @ h + c * reg_lambda - b

    by_eta = (off(eta * np.exp(_STEP)) - off(eta * np.exp(-_STEP))) / (2 * _STEP)
    weight = np.abs(np.where(splits.leaf, splits.child / eta, splits.child))
    sign = np.sign(splits.child)
    below = splits.member[splits.inner]
    moved = sign[splits.inner] - below @ sign[splits.leaf]
    inner, left, right = splits.inner, splits.left, splits.right
    more = 2 * (weight[left] + weight[right] - weight[inner]) * in_gain
    by_alpha = np.concatenate([moved, more])
    limit = np.where(splits.leaf, *largest) * (1 - NEAR)
    nodes = np.flatnonzero((np.abs(splits.child) >= limit) | (splits.child == 0))
    free = np.zeros((2 * len(inner), len(nodes)))
    leaves = np.flatnonzero(splits.leaf)
    for k, node in enumerate(nodes):
        if splits.leaf[node]:
            free[: len(inner), k] = -below[:, np.searchsorted(leaves, node)]
        free[: len(inner), k] += inner == node
        child = (left == node).astype(float) + (right == node)
        free[len(inner) :, k] = 2 * weight[node] * sign[node] * (child - (inner == node))
    if not h_known:
        free = np.column_stack([free, a])
    scale = splits.error(h, eta, reg_lambda)[:, None]
    return np.column_stack([by_eta, c, by_alpha]) / scale, free / scale


def _errors(derivatives: Floats) -> Floats:
    """Return the error of every unknown if the equations are exact up to `ROUNDINGS`."""
    size = np.linalg.norm(derivatives, axis=0)
    used = np.where(size > 0, size, 1.0)
    # R of the QR decomposition has the singular values of the (much taller) matrix.
    triangle = np.linalg.qr(derivatives / used, mode="r")
    _, s, v = np.linalg.svd(triangle, full_matrices=True)
    s = np.concatenate([s, np.zeros(len(v) - len(s))])
    with np.errstate(divide="ignore"):
        spread = np.where(s > _NONE * max(s[0], 1e-300), 1 / s, np.inf)
    share = np.abs(v) > 1e-7
    parts = np.where(share, v * np.where(np.isinf(spread), 1.0, spread)[:, None], 0.0)
    error = np.sqrt((parts**2).sum(axis=0))
    error[(share & np.isinf(spread)[:, None]).any(axis=0)] = np.inf
    error[size == 0] = np.inf
    return np.asarray(ROUNDINGS * error / used)
