"""Perceptrons with ReLU layers: the layout of their parameters in one vector, and predictions.

The module also contains `TabularNetwork`, a trained network together with the encoding of its
inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
