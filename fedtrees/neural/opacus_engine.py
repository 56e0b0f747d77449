"""DP-SGD by opacus (Yousefpour et al. 2021): per-sample gradients, clipping, noise and sampling.

The clients of a federation use these functions with ``dp-sgd[engine=opacus]``. They work for any
``torch.nn.Module``, so that training code outside of this package can use them too. Accountants are
in `fedtrees.privacy.gaussian_dp`.

Opacus draws noise and batches with generators of torch, whose seeds have 63 bits. The default
engine of `dp-sgd` draws them from a keystream with a key of 256 bits.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import INSTALL, UsageError
from fedtrees.neural.torch_module import torch_module

#: Name of the engine of gradients in `Requirements.gradient_engine`.
OPACUS = "opacus"
_SEEDS = 1 << 63  # torch takes seeds below this number


def opacus_module() -> Any:
    """Return the module opacus. Raise `UsageError` if it is not installed."""
    torch_module()
    try:
        import opacus
        import opacus.optimizers
        import opacus.utils.uniform_sampler
    except ImportError as err:
        raise UsageError(
            f"engine=opacus needs opacus, which is not installed ({err}): {INSTALL['opacus']}"
        ) from err
    return opacus


def per_sample_gradients(
    module: Any, loss: Callable[[Any, Any], Any], inputs: NDArray[Any], targets: NDArray[Any]
) -> NDArray[np.float32]:
    """Return the gradient of every row's loss, computed by opacus' ``GradSampleModule``.

    Parameters
    ----------
    module : torch.nn.Module
        Network. It is copied, and the copy is set to training mode.
    loss : callable
        Function of the outputs of the network and the targets that returns the loss of every row,
        a tensor of shape (n,). For example, ``torch.nn.CrossEntropyLoss(reduction="none")``.
    inputs : array, shape (n, ...)
        There may be no rows.
    targets : array, shape (n, ...)

    Returns
    -------
    gradients : float32 array, shape (n, P)
        P is the number of trainable parameters, in the order of ``module.parameters()``.

    Raises
    ------
    UsageError
        If torch or opacus is not installed, or if the module has a layer whose output for a row
        depends on the remaining rows, such as batch normalisation.

    Examples
    --------
    The gradient of a linear model is its input times the derivative of the loss.

    >>> import torch  # doctest: +SKIP
    >>> model = torch.nn.Linear(2, 1, bias=False)  # doctest: +SKIP
    >>> X, y = np.eye(2, dtype=np.float32), np.zeros((2, 1), np.float32)  # doctest: +SKIP
    >>> per_sample_gradients(model, torch.nn.MSELoss(reduction="none"), X, y)  # doctest: +SKIP
    """
    torch, opacus = torch_module(), opacus_module()
    size = sum(p.numel() for p in module.parameters() if p.requires_grad)
    if not len(inputs):
        return np.zeros((0, size), dtype=np.float32)
    try:
        wrapped = opacus.GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    except NotImplementedError as err:
        raise UsageError(
            f"opacus computes no per-sample gradients of this module ({err}); use layers that "
            "treat every row separately, for example GroupNorm instead of BatchNorm"
        ) from err
    wrapped.train()
    # Copies, because torch warns about arrays that cannot be written.
    rows, labels = torch.from_numpy(np.array(inputs)), torch.from_numpy(np.array(targets))
    with warnings.catch_warnings():
        # The inputs are data and need no gradient, which torch reports for every hook.
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        loss(wrapped(rows), labels).sum().backward()
    parts = [
        p.grad_sample.reshape(len(inputs), -1) for p in wrapped.parameters() if p.requires_grad
    ]
    return np.asarray(torch.cat(parts, dim=1).numpy(), dtype=np.float32)


def noisy_sum(
    gradients: NDArray[np.float32], clip: float, scale: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Clip gradients and add noise to their sum, by opacus' ``DPOptimizer``.

    Parameters
    ----------
    gradients : float32 array, shape (n, P)
        Per-sample gradients. There may be no rows.
    clip : float
        Bound on the Euclidean norm of a row.
    scale : float
        Standard deviation of the noise of each parameter. 0 adds no noise.
    rng : numpy.random.Generator
        It draws the seed of torch's generator.

    Returns
    -------
    total : float32 array, shape (P,)
        A row with a value that is not finite counts as 0. Opacus would return a sum that is not
        finite, which reveals that such a row took part.
    """
    torch, opacus = torch_module(), opacus_module()
    finite = np.isfinite(gradients).all(axis=1, keepdims=True)
    weight = torch.nn.Parameter(torch.zeros(gradients.shape[1]))
    weight.grad_sample = torch.from_numpy(np.where(finite, gradients, np.float32(0)))
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        noise_multiplier=scale / clip,
        max_grad_norm=clip,
        expected_batch_size=None,
        loss_reduction="sum",
        generator=_generator(rng),
    )
    optimizer.pre_step()
    return np.asarray(weight.grad.numpy(), dtype=np.float32)


def poisson_batch(n: int, rate: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw each of n rows independently, by opacus' ``UniformWithReplacementSampler``.

    It is the sampler that opacus' ``DPDataLoader`` uses.

    Parameters
    ----------
    n : int
        Number of rows.
    rate : float
        Probability of each row. Torch compares it with a multiple of 2^-24.
    rng : numpy.random.Generator
        It draws the seed of torch's generator.

    Returns
    -------
    rows : intp array, shape (m,)
        Numbers of the drawn rows, in increasing order.
    """
    sampler = opacus_module().utils.uniform_sampler.UniformWithReplacementSampler
    if not n:
        return np.zeros(0, dtype=np.intp)
    (rows,) = sampler(num_samples=n, sample_rate=rate, generator=_generator(rng), steps=1)
    return np.array(rows, dtype=np.intp)


def _generator(rng: np.random.Generator) -> Any:
    return torch_module().Generator().manual_seed(int(rng.integers(_SEEDS, dtype=np.uint64)))
