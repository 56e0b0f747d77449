"""Compiled training of a boosted reference model, reduced to the margins of all rows.

The attack trains many small reference models. It needs their predictions but not their trees. A
Python loop over trees takes ten times as long as this kernel.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Bins, Cuts
from fedtrees.trees.boosted.losses import LOGISTIC, Objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import MIN_GAIN
from fedtrees.trees.jit import readonly

#: Two gains are equal if they differ by less than this share of the node's gain, which is the
#: precision of float32. The first of equal splits is chosen.
_TIE = 3e-7
#: Hessian sums below this value belong to empty nodes.
_NONE = 1e-9


def is_plain(params: TreeParams, objective: Objective, cuts: Cuts) -> bool:
    """Return whether `margins` supports a training.

    It supports two classes, all rows and columns in each tree, thresholds as splits, and growth
    level by level.

    Parameters
    ----------
    params : TreeParams
        Parameters of the trees.
    objective : Objective
        Only `LOGISTIC` is supported.
    cuts : Cuts
        Cut points. Categorical columns are not supported.
    """
    every = params.subsample == 1 and not params.samples_columns
    unpruned = (
        params.max_leaves == 0 and params.grow_policy == "depthwise" and params.reg_alpha == 0
    )
    return every and unpruned and objective is LOGISTIC and cuts.categorical is None


def margins(
    bins: Bins, y: NDArray[np.int64], used: NDArray[np.bool_], params: TreeParams
) -> NDArray[np.float64]:
    """Return the log-odds of all rows under trees that are grown on a part of them, shape (n,).

    If `is_plain`, then the result is that of `fedtrees.trees.boosted.boosting.grow_forest`, up to
    the rounding of sums.

    Parameters
    ----------
    bins : Bins
        All n rows.
    y : int64 array, shape (n,)
        Labels 0 and 1.
    used : bool array, shape (n,)
        Rows that the trees are grown on.
    params : TreeParams
        Parameters of the trees.

    Returns
    -------
    float64 array, shape (n,)
    """
    base = float(y[used].mean()) if params.base_score is None else params.base_score
    weight = max(params.min_child_weight, _NONE)
    numbers = (params.learning_rate, params.reg_lambda, params.gamma, weight)
    margin = np.full(len(y), math.log(base / (1 - base)))
    sizes = (params.trees, params.max_depth, bins.missing)
    _boost(readonly(bins.columns), bins.offsets, y, used, margin, sizes, numbers, MIN_GAIN)
    return margin


@kernel
def _boost(codes, offsets, y, used, margin, sizes, numbers, least):  # type: ignore[no-untyped-def]
    """Grow all trees, and add their values to the margins in place."""
    d, n = codes.shape
    trees, depth, missing = sizes
    eta, penalty, gamma, weight = numbers
    g, h = np.empty(n), np.empty(n)
    node, total = np.empty(n, dtype=np.int64), np.zeros((1, 2))
    for _ in range(trees):
        for i in range(n):
            p = 1.0 / (1.0 + math.exp(-margin[i]))
            g[i], h[i], node[i] = p - y[i], max(p * (1.0 - p), 1e-16), 0
        total = np.zeros((1, 2))
        for i in range(n):
            if used[i]:
                total[0, 0] += g[i]
                total[0, 1] += h[i]
        for level in range(depth + 1):
            k = total.shape[0]
            split, best = np.full((k, 3), -1), np.full(k, max(least, gamma))
            sums = np.zeros((k, 2))
            if level < depth:
                for f in range(d):
                    _scan(codes[f], offsets[f + 1] - offsets[f], missing, node, used, g, h, total,
                          penalty, weight, f, best, split, sums)  # fmt: skip
            child, n_children = np.full(k, -1), 0
            for v in range(k):
                if split[v, 0] >= 0:
                    child[v] = n_children
                    n_children += 2
            for i in range(n):
                v = node[i]
                if v < 0:
                    continue
                if child[v] < 0:
                    margin[i] -= eta * total[v, 0] / (total[v, 1] + penalty)
                    node[i] = -1
                else:
                    c = codes[split[v, 0], i]
                    left = split[v, 2] == 1 if c == missing else c <= split[v, 1]
                    node[i] = child[v] + (0 if left else 1)
            if n_children == 0:
                break
            below = np.empty((n_children, 2))
            for v in range(k):
                if child[v] >= 0:
                    for s in range(2):
                        below[child[v], s] = sums[v, s]
                        below[child[v] + 1, s] = total[v, s] - sums[v, s]
            total = below


@inner_kernel
def _scan(  # type: ignore[no-untyped-def]
    code, width, missing, node, used, g, h, total, penalty, weight, f, best, split, sums
):
    """Update the best split of each node with the thresholds of one feature."""
    k = total.shape[0]
    hist = np.zeros((k, width, 2))
    for i in range(code.shape[0]):
        v, c = node[i], code[i]
        if v >= 0 and used[i] and c != missing:
            hist[v, c, 0] += g[i]
            hist[v, c, 1] += h[i]
    for v in range(k):
        G, H = total[v, 0], total[v, 1]
        parent_score = G * G / (H + penalty)
        a = b = 0.0
        for c in range(width):  # missing values go right
            a, b = a + hist[v, c, 0], b + hist[v, c, 1]
            if b < weight or H - b < weight:
                continue
            gain = a * a / (b + penalty) + (G - a) ** 2 / (H - b + penalty) - parent_score
            if gain > best[v] + _TIE * parent_score:
                best[v], sums[v, 0], sums[v, 1] = gain, a, b
                split[v, 0], split[v, 1], split[v, 2] = f, c, 0
        if abs(H - b) < _NONE:
            continue
        a = b = 0.0
        for c in range(width - 1, -1, -1):  # missing values go left
            a, b = a + hist[v, c, 0], b + hist[v, c, 1]
            if b < weight or H - b < weight:
                continue
            gain = a * a / (b + penalty) + (G - a) ** 2 / (H - b + penalty) - parent_score
            if gain > best[v] + _TIE * parent_score:
                best[v], sums[v, 0], sums[v, 1] = gain, G - a, H - b
                split[v, 0], split[v, 1], split[v, 2] = f, c - 1, 1
