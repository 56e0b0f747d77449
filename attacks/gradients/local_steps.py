"""Updates of several local steps: how they are computed, and their conversion to one gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.perceptron import Layers, join_layers, softmax


@dataclass(frozen=True)
class LocalSteps:
    """Public parameters of a client's training in one round of FedAvg (McMahan et al. 2017).

    Attributes
    ----------
    batch : int
        Rows of a step.
    epochs : int
        Passes over the local rows.
    rate : float
        Learning rate.
    """

    batch: int
    epochs: int
    rate: float

    def count(self, rows: int) -> int:
        """Return the number of steps for the given number of rows."""
        return self.epochs * -(-rows // self.batch)

    def orders(self, rows: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
        """Draw the rows of every step, in a new order for each epoch."""
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
        """Return the change of the weights by steps on these rows, float32, (parameters,).

        Parameters
        ----------
        layers : Layers
            Sizes of the network.
        weights : float32 array, shape (parameters,)
            Initial weights.
        X : float32 array, shape (n, D)
            Inputs of all rows.
        y : int64 array, shape (n,)
            Classes.
        steps : sequence of intp array
            The rows of each step.
        """
        at, rate = weights, np.float32(self.rate)
        for rows in steps:
            at = at - rate * batch_gradient(layers, at, X[rows], y[rows])
        return at - weights

    def as_gradient(
        self, weights: NDArray[np.float32], update: NDArray[np.float32], rows: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Convert an update to one gradient and the weights at which it was taken.

        The order of rows need not be known. When a row is used, the weights have on average moved
        half of the way by the steps of other rows, and (E - 1) / 2 of E steps on the row. At this
        point the mean gradient of all rows is about the mean of the steps.

        Parameters
        ----------
        weights, update : float32 array, shape (parameters,)
            Initial weights, and their change.
        rows : int
            Number of rows.

        Returns
        -------
        weights, gradient : float32 array, shape (parameters,) each
        """
        on_row = (self.epochs - 1) / (2 * self.epochs)
        share = on_row if rows <= self.batch else (on_row + 0.5) / 2
        gradient = update / np.float32(-self.rate * self.count(rows))
        return weights + np.float32(share) * update, gradient


def batch_gradient(
    layers: Layers, weights: NDArray[np.float32], X: NDArray[np.float32], y: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the gradient of the mean cross-entropy, float32, (parameters,), without torch.

    Parameters
    ----------
    layers : Layers
        Sizes of the network.
    weights : float32 array, shape (parameters,)
        The network.
    X : float32 array, shape (n, D)
        Inputs.
    y : int64 array, shape (n,)
        Classes.
    """
    network = layers.split(weights)
    A, on = [X], []
    for k, (w, b) in enumerate(network):
        Z = A[-1] @ w.T + b
        if k < len(network) - 1:
            # derivative of the ReLU
            on.append(Z > 0)
            A.append(Z * on[-1])
    D = (softmax(Z) - np.eye(Z.shape[1], dtype=np.float32)[y]) / np.float32(len(y))
    parts = []
    for k in range(len(network) - 1, -1, -1):
        parts.append((D.T @ A[k], D.sum(axis=0)))
        if k:
            D = (D @ network[k][0]) * on[k - 1]
    return join_layers(parts[::-1]).astype(np.float32)
