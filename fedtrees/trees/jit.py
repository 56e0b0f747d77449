"""Compile kernels with numba."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedtrees.core.machine_code import compiled

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function over arrays and scalars, and keep the machine code between runs."""
    # error_model="numpy": a division is guarded where it is written, not by a hidden branch. The
    # wrapper for C, which nobody calls, would be a tenth of the time that compiling takes.
    return compiled(function, error_model="numpy", no_cfunc_wrapper=True)


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view: what comes out of a message and what does not compile alike."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@kernel
def place(ascending: NDArray[Any], begin: int, end: int, x: float) -> int:
    """Return where between two places the first of ascending numbers is that is not below x."""
    while begin < end:
        middle = (begin + end) // 2
        if ascending[middle] < x:
            begin = middle + 1
        else:
            end = middle
    return begin


def _add_pair(typing: Any, sums: Any, slot: Any, g: Any, h: Any) -> Any:
    """Emit ``sums[slot] += (g, h)`` for a C-contiguous int64 array of shape (m, 2).

    One 128-bit load, add and store; numba would emit two of each, which costs half of the time of
    a histogram. The pair comes as values, so that it stays in a register for a whole row: read from
    an array, it might be what was just stored, and would be loaded again for every feature.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int64, int32 = ir.IntType(64), ir.IntType(32)
        pair = ir.VectorType(int64, 2)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        start = builder.mul(args[1], ir.Constant(int64, 2))
        into = builder.bitcast(builder.gep(data, [start]), pair.as_pointer())
        what = ir.Constant(pair, ir.Undefined)
        for lane in (0, 1):
            what = builder.insert_element(what, args[2 + lane], ir.Constant(int32, lane))
        builder.store(builder.add(builder.load(into, align=8), what), into, align=8)
        return context.get_dummy_value()

    int64 = numba.types.int64
    return numba.types.void(sums, int64, int64, int64), emit


def _prefetch(typing: Any, array: Any, row: Any) -> Any:
    """Emit a request to bring the start of ``array[row]`` into the cache."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, args[0])
        stride = builder.extract_value(table.strides, 0)
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.bitcast(table.data, byte)
        address = builder.gep(start, [builder.mul(args[1], stride)])
        shape = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        request = builder.module.declare_intrinsic("llvm.prefetch", [byte], shape)
        builder.call(request, [address, int32(0), int32(3), int32(1)])  # read, keep, data
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), emit


add_pair: Any = intrinsic(_add_pair)
prefetch: Any = intrinsic(_prefetch)
