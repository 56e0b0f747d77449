"""Compile kernels with numba where it is installed; run them as plain Python where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    import numba

    HAS_NUMBA = True
except ImportError:  # every result stays the same, only slower
    HAS_NUMBA = False

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function over arrays and scalars, and keep the machine code between runs."""
    if not HAS_NUMBA:
        return function
    # error_model="numpy": a division is guarded where it is written, not by a hidden branch.
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
