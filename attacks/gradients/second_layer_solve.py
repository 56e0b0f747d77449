"""Recover rows from the second layer, for batches with fewer rows than hidden units."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.observed import (
    BatchGradient,
    LocalSteps,
    batch_gradient,
    decode_with_missing,
    layer_spaces,
    noise_beyond_rank,
)
from fedtrees.attacks.gradients.posterior import outer_products
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding

Floats = NDArray[np.float64]

#: Number of starts, steps from each, and damping of the first step, which halves with each step.
_STARTS, _STEPS, _DAMPED = 600, 15, 0.01
#: Search range of standardised values, in standard deviations.
_WIDE = 20.0
#: Largest relative distance of a root from the space, smallest distance between roots in standard
#: deviations, tolerance of the rank-reduction test, and tolerance of a category's share.
_NEAR, _APART, _ONE, _WHOLE = 3e-4, 0.2, 0.01, 0.02
#: Number of attempts with new starts if no row was found.
_TRIES = 8
#: Number of surplus equations, which excludes accidental roots.
_SPARE = 3


def rows_by_units(batch: BatchGradient, rng: np.random.Generator) -> Table:
    """Return rows that are certainly in the batch, with labels. Empty if none is certain.

    If there are fewer rows than hidden units, the row space of the second layer's gradient contains
    the first layer's output relu(W x + b) of each row. This gives equations for x that are linear
    between the kinks of the units. They are solved by damped Gauss-Newton steps from many starts,
    which are weighted means of the batch's rows from the first layer's gradient. A root is a row if
    subtracting its gradient reduces the rank of the second layer's gradient by one. No other x does
    this, and only one label does.
    """
    for _ in range(_TRIES):
        X, y = _terms(batch, 1 / batch.rows, rng)
        if len(X):
            break
    n_solved = len(X) if len(X) <= batch.rows else 0
    return _decode_inputs(X[:n_solved], y[:n_solved], batch.encoding)


def rows_of_steps(batch: BatchGradient, local: LocalSteps, rng: np.random.Generator) -> Table:
    """Return rows that are certainly among those of local steps, with labels.

    An update is a sum of terms like those of a gradient, one for each row and step, each at
    different weights. At the start the weights are known and determine the rows of the first step.
    Its gradient gives the weights before the second step, and so on until the end of the first
    epoch.

    Parameters
    ----------
    batch : BatchGradient
        The network at the start, its change instead of a gradient, and the rows of the client.
    local : LocalSteps
        How the client trains.
    rng : numpy.random.Generator
        Starts of the search.
    """
    at, rest, layers = batch.weights, batch.gradient.astype(np.float64) / -local.rate, batch.layers
    recovered, labels = np.zeros((0, len(batch.encoding))), np.zeros(0, dtype=np.int64)
    terms = local.epochs * batch.rows
    for begin in range(0, batch.rows, local.batch):
        size, before, tries = min(local.batch, batch.rows - begin), len(recovered), 0
        while len(recovered) < before + size and tries < _TRIES:
            step = replace(batch, weights=at, gradient=rest.astype(np.float32), rows=terms)
            X, y = _terms(step, 1 / size, rng)
            new = [
                i for i, x in enumerate(X) if not (np.abs(recovered - x).max(axis=1) < _APART).any()
            ]
            new = new[: before + size - len(recovered)]
            X, y = X[new], y[new]
            tries = 0 if len(X) else tries + 1
            if len(X):
                recovered, labels = np.concatenate([recovered, X]), np.concatenate([labels, y])
                gradient = batch_gradient(layers, at, X.astype(np.float32), y).astype(np.float64)
                rest, terms = rest - gradient * (len(X) / size), terms - len(X)
        if len(recovered) == before:
            break
        # A row that is not found may have a negligible gradient. If it has not, the next step finds
        # no rows.
        X, y = recovered[before:].astype(np.float32), labels[before:]
        moved = batch_gradient(layers, at, X, y) * np.float32(len(X) / size)
        at = at - np.float32(local.rate) * moved
    return _decode_inputs(recovered, labels, batch.encoding)


def _terms(
    batch: BatchGradient, share: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Return inputs, (k, D), and labels of rows at these weights, most certain first.

    The gradient is a sum of `batch.rows` terms at any weights, each a row's gradient times a share.
    """
    network, target = batch.network, batch.target
    nothing = np.zeros((0, len(batch.encoding))), np.zeros(0, np.int64)
    noise = noise_beyond_rank(target[1], batch.rows) if len(target) > 2 else None
    if noise is None:
        return nothing
    columns, size, row_space, free = layer_spaces(target[1], noise)
    open_ = _open(target[0], batch.rows)
    if len(free) < open_.shape[1] + _SPARE or not len(size):
        return nothing
    first = (np.asarray(network[0][0], np.float64), np.asarray(network[0][1], np.float64))
    X, off = _roots(_starts(target[0], rng), open_, first, free, rng)
    X, off = X[off < _NEAR], off[off < _NEAR]
    roots: list[tuple[float, int, int]] = []
    for y in range(network[-1][0].shape[0]):
        # subtracting c u v' reduces the rank iff c v' G^-1 u = 1 (Wedderburn 1934)
        A, D = outer_products(network, X, np.full(len(X), y))[1]
        part = np.einsum("nr,nr->n", D @ columns * (share / size), A @ row_space.T)
        roots += [(off[i], int(i), y) for i in np.flatnonzero(np.abs(part - 1) < _ONE)]
    chosen = list[tuple[int, int]]()
    for _, i, y in sorted(roots):
        if all(np.abs(X[i] - X[j]).max() > _APART for j, _ in chosen):
            chosen.append((i, y))
    at = np.array([i for i, _ in chosen], dtype=np.intp)
    return X[at], np.array([y for _, y in chosen], dtype=np.int64)


def _open(layer: tuple[Any, Any], rows: int) -> Floats:
    """Return the directions in which rows can differ by the first layer's row space, (D, m)."""
    noise, inputs = noise_beyond_rank(layer, rows), layer[0].shape[1]
    if noise is None:
        return np.eye(inputs)
    *_, free = layer_spaces(layer, noise)
    _, size, right = np.linalg.svd(free[:, :-1])
    return np.asarray(right[int((size > _NEAR).sum()) :].T)


def _starts(layer: tuple[Any, Any], rng: np.random.Generator) -> Floats:
    """Return weighted means of rows, from gradients of random units, (starts, D)."""
    weight, bias = (np.asarray(part, dtype=np.float64) for part in layer)
    mixed = rng.standard_normal((_STARTS, len(bias)))
    return np.asarray((mixed @ weight) / (mixed @ bias)[:, None])


def _roots(
    X: Floats, open_: Floats, first: tuple[Floats, Floats], free: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the end points, (n, D), and their relative distances from the space, (n,).

    If there are many equations, random combinations of them are used.
    """
    (weight, bias), m = first, open_.shape[1]
    many = 3 * m + 8
    if len(free) > many:
        free = rng.standard_normal((many, len(free))) @ free / np.sqrt(many)
    along = weight @ open_
    turned = (free[:, None, :-1] * along.T[None]).reshape(-1, len(bias)).T
    best, at = np.full(len(X), np.inf), X
    for step in range(_STEPS + 1):
        on = np.asarray(X @ weight.T + bias > 0, dtype=np.float64)
        out = on * (X @ weight.T + bias)
        off = out @ free[:, :-1].T + free[:, -1]
        missed = np.linalg.norm(off, axis=1) / np.sqrt((out**2).sum(axis=1) + 1)
        better = missed < best
        best, at = np.where(better, missed, best), np.where(better[:, None], X, at)
        A = (on @ turned).reshape(len(X), len(free), m)
        square = A.transpose(0, 2, 1) @ A
        damped = _DAMPED * 0.5**step * np.trace(square, axis1=1, axis2=2) / max(m, 1) + 1e-12
        square += damped[:, None, None] * np.eye(m)
        move = np.linalg.solve(square, np.einsum("nqm,nq->nm", A, off)[..., None])[..., 0]
        X = np.clip(X - move @ open_.T, -_WIDE, _WIDE)
    return at, best


def _decode_inputs(X: Floats, y: NDArray[np.int64], encoding: Encoding) -> Table:
    """Return the rows of inputs whose categories are one-hot or missing."""
    raw = X * encoding.std + encoding.mean
    codes = np.full((len(X), len(encoding.groups)), -1, dtype=np.int64)
    is_valid = np.ones(len(X), dtype=bool)
    for k, g in enumerate(encoding.groups):
        codes[:, k] = np.where(raw[:, g].max(axis=1) > 0.5, raw[:, g].argmax(axis=1), -1)
        is_valid &= (np.abs(raw[:, g] - (codes[:, [k]] == np.arange(len(g)))) < _WHOLE).all(axis=1)
    return decode_with_missing(X[is_valid], codes[is_valid], y[is_valid], encoding)
