"""Noise mechanisms on integers."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError


def discrete_laplace(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the two-sided geometric distribution (Ghosh et al. 2012).

    ``P(k)`` is proportional to ``exp(-|k| / scale)``: adding it to an integer query of L1
    sensitivity D is exactly (D / scale)-DP, without the floating-point leaks of a rounded
    Laplace variate (Mironov 2012).

    Raises `UsageError` if `scale` is not a positive finite number, or beyond 2^46: a draw reaches
    40 times its scale, and thousands of them must add up in int64.

    `scale`: In units of the integer grid; variance is close to 2 scale^2. At most 2^46.

    Returns: int64 array of the given shape.
    """
    _check_scale(scale)
    p = -np.expm1(-1.0 / scale)
    # The difference of two geometric variates; numpy draws them by inversion for small p.
    return rng.geometric(p, shape) - rng.geometric(p, shape)


def discrete_laplace_share(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator, parties: int
) -> NDArray[np.int64]:
    """Draw one party's share of discrete Laplace noise.

    The shares of all parties add up to `discrete_laplace` of that scale: a geometric variate is a
    sum of Polya variates (Goryczka and Xiong 2017, Sec. 4.1).

    `scale, shape, rng`: As in `discrete_laplace`.
    `parties`: How many add a share.
    """
    _check_scale(scale)
    p, part = -np.expm1(-1.0 / scale), 1.0 / parties
    return rng.negative_binomial(part, p, shape) - rng.negative_binomial(part, p, shape)


def truncated_laplace(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw Laplace noise cut off toward 0, as the code of Gorgé et al. (2025) adds to counts.

    ``P(0) = 1 - e`` and ``P(k) = (1 - e) e^|k| / 2`` with ``e = exp(-1 / scale)``: 0 is twice as
    likely as a two-sided geometric would have it beside 1, so that a count of sensitivity 1 is
    ``1 / scale + ln 2`` and not ``1 / scale`` differentially private.

    `scale, shape, rng`: As in `discrete_laplace`.
    """
    _check_scale(scale)
    size = rng.geometric(-np.expm1(-1.0 / scale), shape) - 1
    return np.where(rng.integers(0, 2, shape) == 0, size, -size)


def permute_and_flip(
    counts: NDArray[np.int64], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Choose the class of the largest count, of each leaf (McKenna and Sheldon 2020).

    A row added raises one count by 1 and lowers none, so that the choice of one leaf is
    epsilon-DP for that neighbour. Drawn as the largest of counts with exponential noise of scale
    ``1 / epsilon``, which is the same distribution (Ding et al. 2021).

    `counts`: int64 array, shape (..., K)
    `epsilon`: In nats; infinite: the first of the largest.

    Returns: int64 array, shape (...).
    """
    noise = rng.exponential(1.0 / epsilon, counts.shape) if epsilon < np.inf else 0.0
    return np.asarray(np.argmax(counts + noise, axis=-1), dtype=np.int64)


def noise_log_pmf(mechanism: str, epsilon: float, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log probability of noise on one count, as an adversary who knows it computes it.

    `mechanism`: {"geometric", "published"}. `discrete_laplace`, or `truncated_laplace`.
    `epsilon`: ``1 / scale``; infinite: there is no noise.
    `values`: int64 array.
    """
    size = np.abs(values).astype(np.float64)
    if epsilon == np.inf:
        return np.where(size == 0, 0.0, -np.inf)
    stays = np.log(-np.expm1(-epsilon))
    if mechanism == "geometric":
        return np.asarray(stays - np.log1p(np.exp(-epsilon)) - epsilon * size)
    return np.asarray(stays - epsilon * size - np.log(2.0) * (size > 0))


def _check_scale(scale: float) -> None:
    if not 0 < scale <= 2.0**46:
        raise UsageError(f"noise scale must be in (0, 2^46] grid steps; got {scale}")
