"""Perceptrons with rectified layers: their parameters as one vector, and what they predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError


@dataclass(frozen=True)
class Layers:
    """Sizes of a perceptron: linear layers, each but the last followed by a ReLU.

    `sizes`: Inputs, hidden units of every layer, outputs.
    """

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    def split(self, flat: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return weight, shape (out, in), and bias, (out,), of every layer, as views.

        `flat`: float array, shape (parameters,). Weight and bias of the first layer, then of the
        next, each row after row: the order of ``torch.nn.Module.parameters()``.

        Raises `DataError` if there are more or fewer.
        """
        if flat.shape != (self.parameters,):
            raise DataError(
                f"layers {self.sizes} have {self.parameters} parameters; got {flat.shape}"
            )
        found, at = [], 0
        for a, b in pairwise(self.sizes):
            weight = flat[at : at + a * b].reshape(b, a)
            found.append((weight, flat[at + a * b : at + a * b + b]))
            at += (a + 1) * b
        return found


def join_layers(layers: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[Any]:
    """Return weights and biases as one vector, as `Layers.split` takes it."""
    return np.concatenate([part.reshape(-1) for layer in layers for part in layer])


def logits(layers: Sequence[tuple[NDArray[Any], NDArray[Any]]], A: NDArray[Any]) -> NDArray[Any]:
    """Return the outputs of rows, shape (..., K), for inputs of shape (..., D)."""
    for weight, bias in layers[:-1]:
        A = np.maximum(A @ weight.T + bias, 0)
    weight, bias = layers[-1]
    return np.asarray(A @ weight.T + bias)


def softmax(z: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities along the last axis."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))
