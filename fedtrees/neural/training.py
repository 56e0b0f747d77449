"""Gradients of a perceptron by torch, in float32 as federations compute them.

Torch is loaded when the first gradient is requested. It computes in one thread, because sums in
another order round differently. Gradients may still differ in the last bits between processors.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.neural.opacus_engine import OPACUS, per_sample_gradients
from fedtrees.neural.perceptron import Layers, join_layers
from fedtrees.neural.torch_module import perceptron_module, torch_module


def initial(layers: Layers, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw parameters as ``torch.nn.Linear`` does: uniform between +-1 / sqrt(inputs)."""
    drawn = []
    for a, b in pairwise(layers.sizes):
        ends = (-(a**-0.5), a**-0.5)
        # Weight and bias have the same range, see ``torch.nn.Linear.reset_parameters``.
        drawn.append((rng.uniform(*ends, (b, a)), rng.uniform(*ends, b)))
    return join_layers(drawn).astype(np.float32)


def mean_gradient(
    layers: Layers, flat: NDArray[np.float32], X: NDArray[np.float32], y: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the gradient of the mean cross-entropy of rows, float32, shape (P,).

    Parameters
    ----------
    layers : Layers
    flat : float32 array, shape (P,)
        Parameters of the network.
    X : float32 array, shape (n, D)
        Encoded rows.
    y : int64 array, shape (n,)
        Classes.
    """
    torch = torch_module()
    parameters = [
        torch.tensor(part, requires_grad=True) for layer in layers.split(flat) for part in layer
    ]
    # Copies, because torch warns about arrays that cannot be written.
    inputs, classes = torch.from_numpy(np.array(X)), torch.from_numpy(np.array(y))
    loss = torch.nn.functional.cross_entropy(_forward(parameters, inputs), classes)
    parts = torch.autograd.grad(loss, parameters)
    return np.concatenate([part.numpy().reshape(-1) for part in parts])


def example_gradients(
    layers: Layers,
    flat: NDArray[np.float32],
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    engine: str = "",
) -> NDArray[np.float32]:
    """Return the gradient of every row's cross-entropy, float32, shape (n, P).

    Parameters
    ----------
    layers, flat, X, y
        As in `mean_gradient`. There may be no rows.
    engine : str
        ``opacus`` computes the gradients by opacus, and an empty string by ``torch.func``.
    """
    torch = torch_module()
    if engine == OPACUS:
        by_row = torch.nn.CrossEntropyLoss(reduction="none")
        return per_sample_gradients(perceptron_module(layers, flat), by_row, X, y)
    parameters = [torch.tensor(part) for layer in layers.split(flat) for part in layer]
    # Poisson sampling can draw an empty batch, which vmap does not support.
    if not len(X):
        return np.zeros((0, layers.parameters), dtype=np.float32)

    def loss(weights: Any, x: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(_forward(weights, x[None]), label[None])

    per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    parts = per_row(parameters, torch.from_numpy(np.array(X)), torch.from_numpy(np.array(y)))
    return np.concatenate([part.reshape(len(X), -1).numpy() for part in parts], axis=1)


def _forward(parameters: Any, A: Any) -> Any:
    torch = torch_module()
    # The parameters alternate between weight and bias.
    for k in range(0, len(parameters), 2):
        A = torch.nn.functional.linear(A, parameters[k], parameters[k + 1])
        A = torch.relu(A) if k < len(parameters) - 2 else A
    return A
