"""The module torch, and the networks of the protocols as modules of torch.

Torch is loaded when it is requested for the first time.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import INSTALL, UsageError
from fedtrees.neural.perceptron import Layers, RatesNetwork


@cache
def torch_module() -> Any:
    """Return the module torch, set to one thread. Raise `UsageError` if it is not installed."""
    try:
        import torch
    except ImportError as err:
        raise UsageError(
            f"networks need torch, which is not installed ({err}): {INSTALL['torch']}"
        ) from err
    torch.set_num_threads(1)
    return torch


def perceptron_module(layers: Layers, flat: NDArray[np.float32]) -> Any:
    """Return a perceptron as a ``torch.nn.Sequential`` with the given parameters, shape (P,)."""
    nn, parts = torch_module().nn, list[Any]()
    for weight, bias in layers.split(flat):
        outputs, inputs = weight.shape
        parts += [_filled(nn.Linear, (inputs, outputs), (weight, bias)), nn.ReLU()]
    return nn.Sequential(*parts[:-1])  # no ReLU after the last layer


def rates_module(network: RatesNetwork, flat: NDArray[np.float32]) -> Any:
    """Return the network of FedXGBllr as a ``torch.nn.Sequential`` with the given parameters.

    It maps tree outputs of shape (n, 1, K M) to outputs of shape (n,).
    """
    nn, parts = torch_module().nn, network.split(flat)
    c, m, k = network.channels, network.trees, network.models
    conv = _filled(nn.Conv1d, (1, c, m, m), (parts.rates[:, None], parts.shift))
    linear = _filled(nn.Linear, (c * k, 1), (parts.weight.reshape(1, c * k), parts.bias))
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear, nn.Flatten(0))


def _filled(layer: Any, sizes: Sequence[int], values: Sequence[NDArray[np.float32]]) -> Any:
    """Return a layer with the given weight and bias.

    The usual constructors draw initial weights from the global generator of torch.
    """
    torch = torch_module()
    module = torch.nn.utils.skip_init(layer, *sizes)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(torch.from_numpy(np.array(value)))
    return module
