"""Random draws inside compiled kernels."""

from __future__ import annotations

import numpy as np

from fedtrees.core.compilation import inner_kernel


@inner_kernel
def next_bits(state):  # type: ignore[no-untyped-def]
    # splitmix64: explicit state, so that a run depends on its seed alone
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(11)


@inner_kernel
def uniform(bits):  # type: ignore[no-untyped-def]
    """Return a draw from [0, 1)."""
    return np.float64(next_bits(bits)) * 2.0**-53


@inner_kernel
def remainder(bits, n):  # type: ignore[no-untyped-def]
    """Return an integer drawn from 0 to n - 1, as the remainder of a draw of 53 bits."""
    return np.int64(next_bits(bits) % np.uint64(n))


@inner_kernel
def below(bits, n):  # type: ignore[no-untyped-def]
    """Return an integer drawn from 0 to n - 1."""
    return np.int64(uniform(bits) * n)
