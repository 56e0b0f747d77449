"""The observed gradient of a batch, and how clients compute it.

`BatchGradient` combines a gradient with the network at which it was computed. All reconstructions
of a batch start from it. Updates of several local steps are simulated, or converted to one gradient
(`LocalSteps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.rows import SIGMA_SHARE
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, join_layers, softmax

Floats = NDArray[np.float32]
Layer = tuple[NDArray[Any], NDArray[Any]]

#: Noise per coordinate, relative to the gradient's root mean square, above which no direction is
#: free of noise. Less noise is rounding.
_CLEAN = 1e-3


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
        weights: Floats,
        X: Floats,
        y: NDArray[np.int64],
        steps: Sequence[NDArray[np.intp]],
    ) -> Floats:
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

    def as_gradient(self, weights: Floats, update: Floats, rows: int) -> tuple[Floats, Floats]:
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


def batch_gradient(layers: Layers, weights: Floats, X: Floats, y: NDArray[np.int64]) -> Floats:
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


@dataclass(frozen=True, eq=False)
class BatchGradient:
    """The mean gradient of a batch, and the network at which it was computed.

    Attributes
    ----------
    layers : Layers
        Sizes of the network.
    encoding : Encoding
        Conversion of rows to inputs.
    bounds : pair of float32 array, shape (continuous features,)
        Smallest and largest standardised value of every number.
    weights : float32 array, shape (parameters,)
        The network. With several local steps, a point on their path.
    gradient : float32 array, shape (parameters,)
        The mean gradient.
    rows : int
        Number of rows of the batch, announced or assumed.
    shown : bool array, shape (parameters,), or None
        Coordinates that were sent. None means all.
    """

    layers: Layers
    encoding: Encoding
    bounds: tuple[Floats, Floats]
    weights: Floats
    gradient: Floats
    rows: int
    shown: NDArray[np.bool_] | None = None

    @cached_property
    def network(self) -> list[Layer]:
        """Weights and biases of the layers."""
        return self.layers.split(self.weights)

    @cached_property
    def target(self) -> list[Layer]:
        """The gradient by weights and biases of the layers."""
        return self.layers.split(self.gradient)

    def of(self, rows: Table) -> Floats:
        """Return the mean gradient of other rows at the same network."""
        return batch_gradient(self.layers, self.weights, self.encoding.encode(rows.X), rows.y)

    def without(self, rows: Table) -> Self:
        """Return the mean gradient of the remaining rows of the batch."""
        left = self.rows - len(rows)
        total = self.gradient * self.rows - self.of(rows) * len(rows)
        return replace(self, rows=left, gradient=total / np.float32(max(left, 1)))

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the noise per coordinate, estimated from a layer.

        A layer's gradient is a sum of outer products over the rows, so that everything beyond this
        rank is noise. If no layer has more dimensions than rows, categories reveal it: the column
        of a category that no row has is that of the bias times -mean / std, and if each row has a
        value of a feature, the sum of all its columns is that of the bias.
        """
        for layer in self.target:
            if (noise := noise_beyond_rank(layer, self.rows)) is not None:
                return noise
        encoding = self.encoding
        both = np.column_stack(self.target[0]).astype(np.float64)
        if not encoding.groups:
            return 0.0
        mean, std = encoding.mean.astype(np.float64), encoding.std.astype(np.float64)
        column_sets = [*np.flatnonzero(encoding.category >= 0)[:, None], *encoding.groups]
        tests = np.zeros((len(column_sets), both.shape[1]))
        for test, columns in zip(tests, column_sets, strict=True):
            test[columns], test[-1] = std[columns], mean[columns].sum()
        tests[-len(encoding.groups) :, -1] -= 1
        off = tests @ both.T / np.linalg.norm(tests, axis=1, keepdims=True)
        return float(np.sqrt((off**2).mean(axis=1)).min())

    @property
    def added_noise(self) -> float:
        """The estimated noise, or 0 if it is only rounding."""
        size = float(np.linalg.norm(self.gradient)) / np.sqrt(len(self.gradient))
        return self.noise if self.noise >= _CLEAN * max(size, 1e-30) else 0.0


def noise_beyond_rank(layer: Layer, rows: int) -> float | None:
    """Return the noise level beyond the given rank, None if there are too few dimensions."""
    both = np.column_stack(layer).astype(np.float64)
    m, n = both.shape
    if rows >= 0.8 * min(m, n):
        return None
    size = np.linalg.svd(both, compute_uv=False)[rows:]
    return float(np.sqrt((size**2).sum() / ((m - rows) * (n - rows))))


def layer_spaces(layer: Layer, noise: float) -> tuple[NDArray[Any], ...]:
    """Return column space (units, r), singular values, row space (r, D + 1) and its complement."""
    both = np.column_stack(layer).astype(np.float64)
    left, size, right = np.linalg.svd(both)
    rank = int((size > 3 * noise * sum(np.sqrt(both.shape))).sum())
    return left[:, :rank], size[:rank], right[:rank], right[rank:]


def no_rows(encoding: Encoding) -> Table:
    """Return a table without rows."""
    return Table(np.zeros((0, len(encoding.coded)), np.float32), np.zeros(0, np.int64))


def decode_with_missing(
    X: NDArray[np.floating], codes: NDArray[np.int64], y: NDArray[np.int64], encoding: Encoding
) -> Table:
    """Return rows with the numbers of inputs (n, D) and category codes, which are -1 if missing."""
    decoded = encoding.decode(codes, X[:, encoding.continuous])
    missing = np.zeros(decoded.shape, dtype=bool)
    missing[:, encoding.coded] = codes < 0
    return Table(np.where(missing, np.float32(np.nan), decoded), y)


def accepted_errors(encoding: Encoding) -> NDArray[np.float64]:
    """Return the accepted error of each feature, float64, shape (d,). It is 0 for categories."""
    width = np.zeros(len(encoding.coded))
    k = encoding.continuous
    width[encoding.feature[k]] = SIGMA_SHARE * encoding.std[k]
    return width
