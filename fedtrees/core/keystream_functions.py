"""Compiled functions through which numpy reads the buffer of a `fedtrees.core.streams.Keystream`.

The buffer is an array of 64-bit words. Its header contains six words: the position of the next
word, the number of words, an unused 32-bit half, whether there is such a half, the address of the
function that refills the buffer, and the address of the buffer itself.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, cfunc, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from fedtrees.core.compilation import kernel

HEADER, LARGEST = 6, 1 << 13
_WORDS = HEADER + LARGEST
_POINTER = types.CPointer(types.uint64)  # type: ignore[no-untyped-call]


@intrinsic
def _call(typing: Any, function: Any, argument: Any) -> Any:
    """Call a C function that takes an address, given the address of the function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@kernel
def _word(state: Any) -> Any:
    """Return the next word of the buffer, and refill the buffer if it is used up."""
    if state[0] == state[1]:
        _call(state[4], state[5])  # type: ignore[call-arg]
    at = state[0]
    state[0] = at + np.uint64(1)
    return state[np.uint64(HEADER) + at]


@cfunc(types.uint64(_POINTER), cache=True)
def next_uint64(raw: Any) -> Any:
    """Return the next 64 bits."""
    return _word(carray(raw, _WORDS))


@cfunc(types.uint32(_POINTER), cache=True)
def next_uint32(raw: Any) -> Any:
    """Return the next 32 bits: the lower half of a word, then its upper half."""
    state = carray(raw, _WORDS)
    if state[3]:
        state[3] = 0
        return np.uint32(state[2])
    both = _word(state)
    state[2], state[3] = both >> np.uint64(32), 1
    return np.uint32(both & np.uint64(0xFFFFFFFF))


@cfunc(types.float64(_POINTER), cache=True)
def next_double(raw: Any) -> Any:
    """Return a multiple of 2^-53 in [0, 1)."""
    return (_word(carray(raw, _WORDS)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
