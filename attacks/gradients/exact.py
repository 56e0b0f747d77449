"""Recover rows of a batch exactly, by linear algebra without a search.

The numbers of rows of each class follow from the gradient of the output bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.spatial import cKDTree

from fedtrees.attacks.gradients.observed import (
    BatchGradient,
    batch_gradient,
    decode_with_missing,
    layer_spaces,
    no_rows,
)
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers


def restored_counts(bias: NDArray[Any], probability: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """Return the number of rows of each class, int64, shape (K,), with sum `rows`.

    For example, a mean probability of 0.5 and a bias gradient of -0.25 give a share of 0.75, and 6
    of 8 rows.

    Parameters
    ----------
    bias : float array, shape (K,)
        Gradient of the output bias: mean probability less share of rows, for each class.
    probability : float array, shape (K,)
        Mean prediction of the network, for likely rows or for found rows.
    rows : int
        Number of rows of the batch.

    Notes
    -----
    Yin et al. (2021) count labels in this way, with a bound in place of the predictions.
    """
    share = np.clip(np.asarray(probability, np.float64) - np.asarray(bias, np.float64), 0, None)
    return largest_remainder(share, rows)


#: Largest number of partial rows per half, and of candidates in total.
_HALF, _MOST = 20_000, 40_000
#: Largest relative distance of a true row from a space. False candidates are 0.01 or more off.
_NEAR = 1e-3
#: For numbers that the span leaves open: starts, steps from each, and number of equations.
_STARTS, _STEPS, _EQUATIONS = 6, 6, 16


def exact_rows(batch: BatchGradient, rng: np.random.Generator) -> Table:
    """Return rows that are certainly in the batch, with labels. Empty if none is certain.

    The gradient of a layer is a sum of outer products. Its row space contains the layer's inputs,
    and its column space the derivatives of its units. Categories for which a row can be in the
    first row space are found by meeting in the middle (Horowitz and Sahni 1974). Numbers that it
    leaves open are found by Gauss-Newton steps into the second layer's row space. A row is certain
    if its activations are in the second layer's row space, or if its derivative is in the first
    layer's column space.
    """
    layers, weights, encoding, rows = batch.layers, batch.weights, batch.encoding, batch.rows
    network, target, gradient = batch.network, batch.target, batch.gradient
    columns, size, row_space, free = layer_spaces(target[0], batch.noise)
    nothing = no_rows(encoding)
    if not len(row_space) or len(row_space) + 3 > min(target[0][0].shape):
        return nothing
    codes = _codes(row_space, free, encoding)
    if codes is None or not len(codes):
        return nothing
    X, open_ = _numbers(codes, free, encoding)
    *_, deeper, other = layer_spaces(target[1], batch.noise)
    sure = np.zeros(len(X), dtype=bool)
    if len(deeper) + open_.shape[1] + 3 <= min(target[1][0].shape):
        X, distance = _fit_open_numbers(X, open_, encoding, network[0], other, rng)
        sure = distance < _NEAR
    classes = network[-1][0].shape[0]
    if not open_.shape[1]:
        # with two classes, the class changes the length of the derivative, but not its direction
        D = _derivatives(layers, weights, X, np.zeros(len(X), np.int64))
        distance = np.linalg.norm(D - (D @ columns) @ columns.T, axis=1)
        sure |= distance < _NEAR * np.linalg.norm(D, axis=1)
    X, codes = X[sure], codes[sure]
    if not 0 < len(X) <= 2 * rows:
        return nothing
    G = [batch_gradient(layers, weights, x[None].astype(np.float32), np.array([y]))
         for x in X for y in range(classes)]  # fmt: skip
    q, upper = np.linalg.qr(np.array(G, dtype=np.float64).T)
    share, _ = nnls(upper, q.T @ gradient.astype(np.float64))
    missed = np.linalg.norm(gradient - np.array(G).T @ share) / np.linalg.norm(gradient)
    times = np.rint(share.reshape(len(X), classes) * rows).astype(np.int64)
    if missed > _NEAR or times.sum() != rows:
        # if rows are missing, accept those whose removal reduces the rank by one
        part = np.stack([
            np.einsum("nr,nr->n", _derivatives(layers, weights, X, np.full(len(X), y)) @ columns
                      / (rows * size), np.column_stack([X, np.ones(len(X))]) @ row_space.T)
            for y in range(classes)
        ], axis=1)  # fmt: skip
        times = (np.abs(part - 1) < 0.01).astype(np.int64)
        times[times.sum(axis=1) > 1] = 0
    row, label = np.nonzero(times)
    again = np.repeat(np.arange(len(row)), times[row, label])
    row, label = row[again], label[again]
    return decode_with_missing(X[row], codes[row], label, encoding)


def _codes(
    row_space: NDArray[Any], free: NDArray[Any], encoding: Encoding
) -> NDArray[np.int64] | None:
    """Return categories that some numbers complete to the span, -1 if missing. None if too many."""
    if not encoding.groups:
        return np.zeros((1, 0), np.int64)
    mean, std = encoding.mean.astype(np.float64), encoding.std.astype(np.float64)
    numbers = encoding.continuous
    left, size, _ = np.linalg.svd(free[:, numbers])
    rest = left[:, int((size > _NEAR).sum()) :].T @ free  # numbers cannot move these
    if not len(rest):  # numbers put any categories into the span
        return None
    coded = np.flatnonzero(encoding.category >= 0)
    base = rest[:, -1] - rest[:, coded] @ (mean / std)[coded]
    parts = []
    for g in encoding.groups:
        # a category that no row has is a direction without rows, like the constraint that shares
        # sum to 1
        tests = np.zeros((len(g) + 1, row_space.shape[1]))
        tests[np.arange(len(g)), g], tests[:-1, -1] = std[g], mean[g]
        tests[-1, g], tests[-1, -1] = std[g], mean[g].sum() - 1
        far = np.linalg.norm(tests @ row_space.T, axis=1) > _NEAR * np.linalg.norm(tests, axis=1)
        code = np.append(np.arange(len(g)), -1)[far]
        steps = np.append((rest[:, g] / std[g]).T, np.zeros((1, len(rest))), axis=0)[far]
        parts.append((steps, code))
    # in as few dimensions as differ, the first of all categories at the origin
    if any(not len(code) for _, code in parts):
        return None
    base = base + sum(steps[0] for steps, _ in parts)
    parts = [(steps - steps[0], code) for steps, code in parts]
    _, size, axes = np.linalg.svd(np.vstack([base, *(s for s, _ in parts)]), full_matrices=False)
    axes = axes[: max(int((size > _NEAR).sum()), 1)]
    halves: list[list[int]] = [[], []]
    many = [1, 1]
    for k in np.argsort([-len(code) for _, code in parts], kind="stable"):
        which = int(many[1] < many[0])
        halves[which].append(int(k))
        many[which] *= len(parts[k][1])
    if max(many) > _HALF:
        return None
    (a, first), (b, second) = (_sums([parts[k] for k in h], axes) for h in halves)
    one, other = cKDTree(-(a + axes @ base)), cKDTree(b)
    if one.count_neighbors(other, _NEAR) > _MOST:
        return None
    met = one.query_ball_tree(other, _NEAR)
    i = np.repeat(np.arange(len(a)), [len(m) for m in met])
    j = np.array([k for m in met for k in m], dtype=np.intp)
    codes = np.empty((len(i), len(parts)), dtype=np.int64)
    codes[:, halves[0]], codes[:, halves[1]] = first[i], second[j]
    return codes


def _sums(
    parts: list[tuple[NDArray[Any], NDArray[Any]]], axes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return all sums of one step per feature, with the codes of the steps."""
    total, codes = np.zeros((1, len(axes))), np.zeros((1, 0), dtype=np.int64)
    for steps, code in parts:
        step = steps @ axes.T
        codes = np.column_stack([np.repeat(codes, len(code), axis=0), np.tile(code, len(codes))])
        total = (total[:, None] + step[None]).reshape(-1, len(axes))
    return total, codes


def _numbers(
    codes: NDArray[np.int64], free: NDArray[Any], encoding: Encoding
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs (n, D) with numbers of smallest norm, and the directions left open."""
    mean, std = encoding.mean.astype(np.float64), encoding.std.astype(np.float64)
    X = np.tile(np.where(encoding.category < 0, 0, -mean / std), (len(codes), 1))
    for k, g in enumerate(encoding.groups):
        has = np.flatnonzero(codes[:, k] >= 0)
        X[has, g[codes[has, k]]] += 1 / std[g[codes[has, k]]]
    number = encoding.continuous
    left, size, right = np.linalg.svd(free[:, number])
    rank = int((size > _NEAR).sum())
    off = (X @ free[:, :-1].T + free[:, -1]) @ left[:, :rank]
    X[:, number] = -(off / size[:rank]) @ right[:rank]
    return X, right[rank:].T


def _fit_open_numbers(
    X: NDArray[np.float64],
    open_: NDArray[np.float64],
    encoding: Encoding,
    first: tuple[Any, Any],
    free: NDArray[Any],
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs whose open numbers bring the first layer's outputs closest to a space.

    The space is the row space of the second layer. The relative distances are returned as well.
    """
    n, m = len(X), open_.shape[1]
    weight, bias = (np.asarray(p, dtype=np.float64) for p in first)
    still = X @ weight.T + bias
    along = (weight[:, encoding.continuous] @ open_).T
    few = rng.standard_normal((_EQUATIONS, len(free))) @ free / np.sqrt(_EQUATIONS)
    turned = (few[:, None, :-1] * along[None]).reshape(-1, few.shape[1] - 1).T
    best, best_numbers = np.full(n, np.inf), np.zeros((n, m))
    for start in range(_STARTS if m else 1):
        z = rng.standard_normal((n, m)) * min(start, 1)
        for _ in range(_STEPS if m else 0):
            on = np.asarray(still + z @ along > 0, dtype=np.float64)
            A = (on @ turned).reshape(n, _EQUATIONS, m)
            off = (on * still) @ few[:, :-1].T + few[:, -1]
            square = np.einsum("nqm,nqk->nmk", A, A) + 1e-9 * np.eye(m)
            z = -np.linalg.solve(square, np.einsum("nqm,nq->nm", A, off)[..., None])[..., 0]
            z = np.clip(z, -20, 20)
        out = np.maximum(still + z @ along, 0)
        off = np.linalg.norm(out @ few[:, :-1].T + few[:, -1], axis=1)
        off /= np.sqrt((out**2).sum(axis=1) + 1)
        better = off < best
        best[better], best_numbers[better] = off[better], z[better]
    X = X.copy()
    X[:, encoding.continuous] += best_numbers @ open_.T
    return X, best


def _derivatives(
    layers: Layers, weights: NDArray[np.float32], X: NDArray[np.float64], y: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the derivatives of rows' losses by the first layer's units, shape (n, units)."""
    gradients = [batch_gradient(layers, weights, x[None].astype(np.float32), y[k : k + 1])
             for k, x in enumerate(X)]  # fmt: skip
    return np.array([layers.split(g)[0][1] for g in gradients], dtype=np.float64)
