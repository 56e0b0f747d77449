"""Perceptrons with ReLU layers: the layout of their parameters in one vector, and predictions.

The module also defines a trained network together with the encoding of its inputs, and the network
of FedXGBllr (Ma et al. 2023). This network consists of a learnable learning rate for every tree of
every client. Its inputs are the outputs of the clients' trees. It is trained with the Adam
optimizer (Kingma and Ba 2015), which this module implements without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.neural.encoding import Encoding


@dataclass(frozen=True)
class Layers:
    """Sizes of a perceptron. All linear layers but the last one are followed by a ReLU.

    For example, the sizes ``(9, 16, 2)`` are 9 inputs, 16 hidden units and 2 outputs.
    """

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        # A layer with a inputs and b outputs has a b weights and b biases.
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    def split(self, flat: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return weight, shape (out, in), and bias, shape (out,), of every layer, as views.

        The vector, shape (P,), contains weight (in row-major order) and bias of the first layer,
        then of the next one. This is the order of ``torch.nn.Module.parameters()``. Any other shape
        raises `DataError`.
        """
        if flat.shape != (self.parameters,):
            raise DataError(
                f"layers {self.sizes} have {self.parameters} parameters; got {flat.shape}"
            )
        layers, start = [], 0
        for a, b in pairwise(self.sizes):
            weight = flat[start : start + a * b].reshape(b, a)
            layers.append((weight, flat[start + a * b : start + a * b + b]))
            start += (a + 1) * b
        return layers


def join_layers(layers: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[Any]:
    """Return weights and biases as one vector, in the order of `Layers.split`."""
    return np.concatenate([part.reshape(-1) for layer in layers for part in layer])


def logits(layers: Sequence[tuple[NDArray[Any], NDArray[Any]]], A: NDArray[Any]) -> NDArray[Any]:
    """Return the outputs, shape (..., K), for inputs of shape (..., D)."""
    for weight, bias in layers[:-1]:
        A = np.maximum(A @ weight.T + bias, 0)
    weight, bias = layers[-1]
    return np.asarray(A @ weight.T + bias)


def softmax(z: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities along the last axis."""
    # Subtracting the maximum prevents overflow.
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class TabularNetwork:
    """A perceptron on the rows of a table. Predictions do not need torch.

    `weights` contains all parameters, float32, shape (P,), in the order of `Layers.split`.
    """

    layers: Layers
    weights: NDArray[np.float32]
    encoding: Encoding

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of class 1, shape (n,), or of every class, shape (n, K) with K > 2.

        It raises `DataError` if a category is not declared in the schema, or a number is infinite.
        """
        # Predictions are computed in float64, the training in float32.
        parts = [(w.astype(np.float64), b.astype(np.float64)) for w, b in self.split()]
        probabilities = softmax(logits(parts, self.encoding.encode(X).astype(np.float64)))
        return np.asarray(probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities)

    def split(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Return weight and bias of every layer."""
        return self.layers.split(self.weights)


_TINY = np.float32(1e-8)


@dataclass(eq=False)
class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1) in float32, as ``torch.optim.Adam`` computes it.

    `rate` is the learning rate, and `decays` are the decay rates of the first and second moment.
    The moments are None before the first step.
    """

    rate: float
    decays: tuple[float, float]
    steps: int = 0
    first: NDArray[np.float32] | None = None
    second: NDArray[np.float32] | None = None

    def step(
        self, weights: NDArray[np.float32], gradient: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the weights, shape (P,), after one more step against a gradient, shape (P,)."""
        a, b = self.decays
        if self.first is None or self.second is None:
            self.first, self.second = np.zeros_like(weights), np.zeros_like(weights)
        self.steps += 1
        self.first += np.float32(1 - a) * (gradient - self.first)
        self.second += np.float32(1 - b) * (gradient * gradient - self.second)
        # Moments start at 0. The division corrects this bias.
        mean = self.first / np.float32(1 - a**self.steps)
        spread = np.sqrt(self.second / np.float32(1 - b**self.steps)) + _TINY
        return np.asarray(weights - np.float32(self.rate) * mean / spread, dtype=np.float32)


Floats = NDArray[np.floating[Any]]


class Parts(NamedTuple):
    """Parameters of the network, or arrays with the same shapes, as views of one vector.

    `rates`, shape (C, M), is the weight of the convolution: a learning rate per channel and tree,
    the same for all clients. `shift`, shape (C,), is its bias. `weight`, shape (C, K), and `bias`,
    shape (1,), belong to the linear layer.
    """

    rates: Any
    shift: Any
    weight: Any
    bias: Any


@dataclass(frozen=True)
class RatesNetwork:
    """``Conv1d(1 -> C, kernel = stride = M)``, ReLU, ``Linear(C K -> 1)`` (Ma et al. 2023, Sec. 3).

    The input consists of the outputs of K `models` with M `trees` each, one model after the other.
    Kernel and stride are M, so that the convolution is a matrix product and does not need torch. C
    is the number of `channels`.
    """

    models: int
    trees: int
    channels: int = 64

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.channels * (self.trees + 1 + self.models) + 1

    @staticmethod
    def of(models: int, trees: int, parameters: int) -> RatesNetwork:
        """Return the network on K models of M trees that has a given number of parameters.

        It raises `DataError` if no number of channels gives this number of parameters.
        """
        network = RatesNetwork(models, trees, (parameters - 1) // (trees + 1 + models))
        if network.parameters != parameters or not network.channels:
            raise DataError(f"no network on {models} x {trees} trees has {parameters} parameters")
        return network

    def split(self, flat: NDArray[Any]) -> Parts:
        """Return the parts of one vector, in the order of ``torch.nn.Module.parameters()``.

        It raises `DataError` if its shape is not (P,).
        """
        if flat.shape != (self.parameters,):
            raise DataError(f"{self} has {self.parameters} parameters; got {flat.shape}")
        c, m, k = self.channels, self.trees, self.models
        at = c * m
        return Parts(
            flat[:at].reshape(c, m), flat[at : at + c], flat[at + c : -1].reshape(c, k), flat[-1:]
        )

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw parameters as the authors' code does.

        The weight of the linear layer has He's uniform distribution. All remaining parameters have
        the default distribution of ``torch.nn``.
        """
        c, m, k = self.channels, self.trees, self.models
        # Ranges of the convolution's weight and bias, and of the linear layer's weight and bias.
        ends = (m**-0.5, m**-0.5, (6 / (c * k)) ** 0.5, (c * k) ** -0.5)
        parts = zip(ends, (c * m, c, c * k, 1), strict=True)
        return np.concatenate([rng.uniform(-e, e, n) for e, n in parts]).astype(np.float32)

    def hidden(self, flat: Floats, V: Floats) -> NDArray[Any]:
        """Return the inputs of the ReLU, shape (n, K, C), for inputs of shape (n, K, M)."""
        parts = self.split(flat)
        # The kernel does not overlap: one product per model.
        units = V.reshape(-1, self.trees) @ parts.rates.T + parts.shift
        return np.asarray(units).reshape(len(V), self.models, self.channels)

    def outputs(self, flat: Floats, V: Floats) -> NDArray[Any]:
        """Return the outputs of rows, shape (n,), for inputs of shape (n, K, M)."""
        parts = self.split(flat)
        active = np.maximum(self.hidden(flat, V), 0).reshape(len(V), self.models * self.channels)
        return np.asarray(active @ parts.weight.T.reshape(-1) + parts.bias)

    def gradient(self, flat: Floats, V: Floats, slope: Floats) -> NDArray[Any]:
        """Return the gradient of the sum of all rows' losses, shape (P,).

        Parameters
        ----------
        flat : float array, shape (P,)
            Parameters.
        V : float array, shape (n, K, M)
            Outputs of the trees.
        slope : float array, shape (n,)
            Derivative of each row's loss with respect to its output.
        """
        H = self.hidden(flat, V)
        weight = slope @ np.maximum(H, 0).reshape(len(V), self.models * self.channels)
        # Derivative with respect to the input of the ReLU, which is 0 for negative inputs.
        back = (slope[:, None, None] * self.split(flat).weight.T * (H > 0)).reshape(
            -1, self.channels
        )
        return np.concatenate(
            [
                (back.T @ V.reshape(-1, self.trees)).reshape(-1),
                back.sum(axis=0),
                weight.reshape(self.models, self.channels).T.reshape(-1),
                slope.sum(keepdims=True),
            ]
        )

    def example_gradients(self, flat: Floats, V: Floats, slope: Floats) -> NDArray[Any]:
        """Return the gradient of every row's loss, shape (n, P), see `gradient`."""
        n, H = len(V), self.hidden(flat, V)
        back = slope[:, None, None] * self.split(flat).weight.T * (H > 0)
        # Sums over the models of each row. `gradient` sums over all rows and models at once.
        rates = np.matmul(back.transpose(0, 2, 1), V)
        weight = slope[:, None, None] * np.maximum(H, 0).transpose(0, 2, 1)
        c = self.channels
        flattened = rates.reshape(n, c * self.trees), weight.reshape(n, c * self.models)
        parts = [flattened[0], back.sum(axis=1), flattened[1], slope[:, None]]
        return np.concatenate(parts, axis=1)
