"""The network of FedXGBllr: a learnable learning rate for every tree of every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

Floats = NDArray[np.floating[Any]]


class Parts(NamedTuple):
    """Parameters, or what belongs to them, as views."""

    # float array, shape (C, M): the convolution's weight: a learning rate per channel and tree, the
    # same for all clients
    rates: Any
    shift: Any  # float array, shape (C,)
    weight: Any  # float array, shape (C, K): of the linear layer
    bias: Any  # float array, shape (1,)


@dataclass(frozen=True)
class RatesNetwork:
    """``Conv1d(1 -> C, kernel = stride = M)``, ReLU, ``Linear(C K -> 1)`` (Ma et al. 2023, Sec. 3).

    Its input are the outputs of K models of M trees each, end to end. As kernel and stride are M,
    the convolution is a matrix product, and needs no torch.
    """

    # models, trees: K and M
    models: int
    trees: int
    channels: int = 64  # c

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return self.channels * (self.trees + 1 + self.models) + 1

    @staticmethod
    def of(models: int, trees: int, parameters: int) -> RatesNetwork:
        """Return the network on such models that has so many parameters.

        Raises `DataError` if none has.
        """
        network = RatesNetwork(models, trees, (parameters - 1) // (trees + 1 + models))
        if network.parameters != parameters or not network.channels:
            raise DataError(f"no network on {models} x {trees} trees has {parameters} parameters")
        return network

    def split(self, flat: NDArray[Any]) -> Parts:
        """Return the parts of one vector, in the order of ``torch.nn.Module.parameters()``.

        Raises `DataError` if it has another shape than (parameters,).
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

        As ``torch.nn`` draws them by default, but for the linear layer's weight, which is He's
        uniform.
        """
        c, m, k = self.channels, self.trees, self.models
        ends = (m**-0.5, m**-0.5, (6 / (c * k)) ** 0.5, (c * k) ** -0.5)
        parts = zip(ends, (c * m, c, c * k, 1), strict=True)
        return np.concatenate([rng.uniform(-e, e, n) for e, n in parts]).astype(np.float32)

    def hidden(self, flat: Floats, V: Floats) -> NDArray[Any]:
        """Return what the ReLU gets, shape (n, K, C), for inputs of shape (n, K, M)."""
        parts = self.split(flat)
        units = V.reshape(-1, self.trees) @ parts.rates.T + parts.shift
        return np.asarray(units).reshape(len(V), self.models, self.channels)

    def outputs(self, flat: Floats, V: Floats) -> NDArray[Any]:
        """Return the outputs of rows, shape (n,), for inputs of shape (n, K, M)."""
        parts = self.split(flat)
        active = np.maximum(self.hidden(flat, V), 0).reshape(len(V), self.models * self.channels)
        return np.asarray(active @ parts.weight.T.reshape(-1) + parts.bias)

    def gradient(self, flat: Floats, V: Floats, slope: Floats) -> NDArray[Any]:
        """Return the gradient of a sum of losses, shape (parameters,).

        `flat`: float array, shape (parameters,).
        `V`: float array, shape (n, K, M).
        `slope`: float array, shape (n,). Derivative of each row's loss by its output.
        """
        H = self.hidden(flat, V)
        weight = slope @ np.maximum(H, 0).reshape(len(V), self.models * self.channels)
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
        """Return the gradient of every row's loss, shape (n, parameters); as `gradient`."""
        n, H = len(V), self.hidden(flat, V)
        back = slope[:, None, None] * self.split(flat).weight.T * (H > 0)
        rates = np.matmul(back.transpose(0, 2, 1), V)
        weight = slope[:, None, None] * np.maximum(H, 0).transpose(0, 2, 1)
        c = self.channels
        flattened = rates.reshape(n, c * self.trees), weight.reshape(n, c * self.models)
        parts = [flattened[0], back.sum(axis=1), flattened[1], slope[:, None]]
        return np.concatenate(parts, axis=1)
