"""How far the equations of a file leave eta, lambda and an L1 penalty open.

Eta and lambda may agree with all equations, and others may agree as well: of one stump some always
do. And an L1 penalty alpha, which moves every G towards 0 by alpha, leaves no trace in a stump
whose rows have gradients that add up to 0: both leaves move by as much. So the equations are
linearised around what was found, with everything free that a training may have done beside:

* G of a node of weight w is ``-w (H + lambda) - sign(w) alpha``, and of weight 0 anything;
* a node of the largest weight may have been cut off there (``max_delta_step``): its G is free;
* gains are those of the weights or, with a limit on steps or monotone constraints, have a term
  ``2 alpha |w|`` more (XGBoost 3.2, ``split_evaluator.h``). Both are tried.

What is then determined was determined by the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import Splits

Floats = NDArray[np.float64]

ROUNDINGS = 4.0  # of every equation; the largest residual of honest models is 1.9
MOST_ETA = 2.0  # an inner node that was cut off is as large as the largest leaf, eta aside
NEAR = 1e-5  # relative difference of weights that were cut off at one limit
_STEP = 1e-5  # of log eta, for its derivative
_NONE = 1e-9  # singular value, relative to the largest, that determines nothing


@dataclass(frozen=True)
class Freedom:
    """Errors up to which the equations agree as well; infinite where any value does."""

    eta: float  # relative
    reg_lambda: float
    alpha: float


def freedom(
    parts: Sequence[tuple[Splits, Floats, bool]], eta: float, reg_lambda: float, given: bool = False
) -> Freedom:
    """Return how far eta, lambda and alpha may lie from `eta`, `reg_lambda` and 0.

    `parts`: sequence of (Splits, float64 array of shape (J,), bool). Equations, hessian sums of the
    leaves, and whether the file tells the sums: otherwise they are free, too.
    `eta, reg_lambda`: What was found.
    `given`: eta and lambda are known beside the file: alpha alone is free.
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
    """Return derivatives of the equations, in units of their error, shapes (2k, 3) and (2k, m).

    By log eta, lambda and alpha, and by the m other unknowns.
    """
    splits, h, told = part
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
    if not told:
        free = np.column_stack([free, a])
    scale = splits.error(h, eta, reg_lambda)[:, None]
    return np.column_stack([by_eta, c, by_alpha]) / scale, free / scale


def _errors(derivatives: Floats) -> Floats:
    """Return the error of every unknown for equations that are right to `ROUNDINGS`."""
    size = np.linalg.norm(derivatives, axis=0)
    used = np.where(size > 0, size, 1.0)
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
