"""Noise mechanisms on integers."""

from __future__ import annotations

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

    Parameters
    ----------
    scale : float
        In units of the integer grid; variance is close to 2 scale^2. At most 2^46.
    shape : int or tuple of int
    rng : numpy.random.Generator

    Returns
    -------
    int64 array of the given shape

    Raises
    ------
    UsageError
        If `scale` is not a positive finite number, or beyond 2^46: a draw reaches
        40 times its scale, and thousands of them must add up in int64.
    """
    if not 0 < scale <= 2.0**46:
        raise UsageError(f"noise scale must be in (0, 2^46] grid steps; got {scale}")
    p = -np.expm1(-1.0 / scale)
    # The difference of two geometric variates; numpy draws them by inversion for small p.
    return rng.geometric(p, shape) - rng.geometric(p, shape)


def discrete_laplace_share(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator, parties: int
) -> NDArray[np.int64]:
    """Draw one party's share of discrete Laplace noise.

    The shares of all parties add up to `discrete_laplace` of that scale: a geometric variate is a
    sum of Polya variates (Goryczka and Xiong 2017, Sec. 4.1).

    Parameters
    ----------
    scale, shape, rng
        As in `discrete_laplace`.
    parties : int
        How many add a share.
    """
    if not 0 < scale <= 2.0**46:
        raise UsageError(f"noise scale must be in (0, 2^46] grid steps; got {scale}")
    p, part = -np.expm1(-1.0 / scale), 1.0 / parties
    return rng.negative_binomial(part, p, shape) - rng.negative_binomial(part, p, shape)
