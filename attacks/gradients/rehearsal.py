"""Would likely rows be a better guess than found ones? Try both on rows of one's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.inversion import invert
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.tolerance import SIGMA_SHARE
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, join_layers, softmax

_RESTARTS, _STEPS = 3, 150


def likely_rows(
    view: View,
    encoding: Encoding,
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    spread: float = 0.0,
) -> Table:
    """Return rows of the distribution with such labels: own ones, else draws of what means say.

    Without own rows, categories are drawn by their shares, which the means of the inputs are, and
    numbers are their mean, or so many standard deviations about it.
    """
    own = view.rows
    if own is not None and len(own) >= 2:
        picked = np.concatenate([_some(own, y, n, rng) for y, n in _counts(labels)])
        return Table(own.X[picked], labels)
    n = len(labels)
    codes = np.empty((n, len(encoding.groups)), dtype=np.int64)
    for k, g in enumerate(encoding.groups):
        share = np.clip(encoding.mean[g].astype(np.float64), 1e-9, None)
        codes[:, k] = rng.choice(len(g), n, p=share / share.sum())
    numbers = spread * rng.standard_normal((n, len(encoding.continuous)))
    return Table(encoding.decode(codes, numbers), labels)


def rehearsed(
    layers: Layers,
    weights: NDArray[np.float32],
    noise: float,
    view: View,
    encoding: Encoding,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    labels: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the accuracy of found and of likely rows, on a batch of likely ones with such noise.

    A shorter search than the real one, of a batch with the same labels.
    """
    batch = likely_rows(view, encoding, np.sort(labels), rng, spread=1.0)
    other = likely_rows(view, encoding, batch.y, rng)
    gradient = batch_gradient(layers, weights, encoding.encode(batch.X), batch.y)
    gradient = gradient + noise * rng.standard_normal(len(gradient))
    found = invert(
        layers, weights, gradient.astype(np.float32), encoding, bounds, len(batch), rng,
        labels=batch.y, restarts=_RESTARTS, steps=_STEPS,
    )  # fmt: skip
    return accuracy(found.table.X, batch.X, encoding), accuracy(other.X, batch.X, encoding)


def batch_gradient(
    layers: Layers, weights: NDArray[np.float32], X: NDArray[np.float32], y: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the gradient of the mean cross-entropy, float32, (parameters,), without torch."""
    network = layers.split(weights)
    A, on = [X], []
    for k, (w, b) in enumerate(network):
        Z = A[-1] @ w.T + b
        if k < len(network) - 1:
            on.append(Z > 0)
            A.append(Z * on[-1])
    D = (softmax(Z) - np.eye(Z.shape[1], dtype=np.float32)[y]) / np.float32(len(y))
    parts = []
    for k in range(len(network) - 1, -1, -1):
        parts.append((D.T @ A[k], D.sum(axis=0)))
        if k:
            D = (D @ network[k][0]) * on[k - 1]
    return join_layers(parts[::-1]).astype(np.float32)


def accuracy(guess: NDArray[np.float32], truth: NDArray[np.float32], encoding: Encoding) -> float:
    """Return the share of cells that agree under the best matching (Vero et al. 2023, Eq. 7)."""
    width = np.zeros(len(encoding.coded))
    k = encoding.continuous
    width[encoding.feature[k]] = SIGMA_SHARE * encoding.std[k]
    same = (np.abs(truth[:, None] - guess[None]) <= width).sum(axis=2)
    a, b = linear_sum_assignment(-same)
    return float(same[a, b].mean() / len(width))


def _counts(labels: NDArray[np.int64]) -> list[tuple[int, int]]:
    classes, n = np.unique(labels, return_counts=True)
    return list(zip(classes.tolist(), n.tolist(), strict=True))


def _some(own: Table, label: int, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw own rows of a label, of any where none has it."""
    rows = np.flatnonzero(own.y == label)
    return rng.choice(rows if len(rows) else len(own), n, replace=len(rows) < n)
