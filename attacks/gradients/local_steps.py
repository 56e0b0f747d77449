"""Updates of several local steps: how they come about, and what they say as one gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.perceptron import Layers, join_layers, softmax


@dataclass(frozen=True)
class LocalSteps:
    """How a client of FedAvg trains in a round (McMahan et al. 2017), which is public.

    `batch, epochs`: Rows of a step, and how often a client goes through its rows.
    `rate`: Learning rate.
    """

    batch: int
    epochs: int
    rate: float

    def count(self, rows: int) -> int:
        """Return how many steps a client takes on so many rows."""
        return self.epochs * -(-rows // self.batch)

    def orders(self, rows: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
        """Draw the rows of every step, in an order drawn anew for each epoch."""
        drawn = [rng.permutation(rows) for _ in range(self.epochs)]
        return [o[i : i + self.batch] for o in drawn for i in range(0, rows, self.batch)]

    def update(
        self,
        layers: Layers,
        weights: NDArray[np.float32],
        X: NDArray[np.float32],
        y: NDArray[np.int64],
        steps: Sequence[NDArray[np.intp]],
    ) -> NDArray[np.float32]:
        """Return how far steps on such rows move the weights, float32, shape (parameters,).

        `weights`: float32 array, shape (parameters,).
        `X`: float32 array, shape (n, D). Inputs of all rows.
        `y`: int64 array, shape (n,).
        `steps`: sequence of intp array. The rows of each step.
        """
        at, rate = weights, np.float32(self.rate)
        for rows in steps:
            at = at - rate * batch_gradient(layers, at, X[rows], y[rows])
        return at - weights

    def as_gradient(
        self, weights: NDArray[np.float32], update: NDArray[np.float32], rows: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return one gradient that says what an update says, and the weights that it was taken at.

        The order of rows need not be known: when the path is at a row, it has gone half of its way
        by other rows' steps on average, and (E - 1) / 2 of E steps of its own. Between the two the
        mean gradient of all rows is about the steps' mean.

        `weights, update`: float32 array, shape (parameters,). At the start, and how far they moved.

        Returns: float32 array, shape (parameters,), twice. Weights, and gradient.
        """
        own = (self.epochs - 1) / (2 * self.epochs)
        share = own if rows <= self.batch else (own + 0.5) / 2
        gradient = update / np.float32(-self.rate * self.count(rows))
        return weights + np.float32(share) * update, gradient


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
