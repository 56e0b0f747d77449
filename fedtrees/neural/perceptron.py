"""Perceptrons with ReLU layers: the layout of their parameters in one vector, and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError


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
