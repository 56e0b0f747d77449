"""Helpers for kernels that numba compiles."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array.

    Arrays from messages are read-only. With a read-only type for all arrays, a kernel is compiled
    only once.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@kernel
def place(ascending: NDArray[Any], begin: int, end: int, x: float) -> int:
    """Return the position of the first of some ascending numbers that is not below x.

    Parameters
    ----------
    ascending : array
        Numbers in ascending order.
    begin, end : int
        Range of positions to search. The result is `end` if all of its numbers are below x.
    x : float
        The number.
    """
    while begin < end:
        middle = (begin + end) // 2
        if ascending[middle] < x:
            begin = middle + 1
        else:
            end = middle
    return begin


def _add_pair(typing: Any, sums: Any, slot: Any, g: Any, h: Any) -> Any:
    """Emit ``sums[slot] += (g, h)`` for a C-contiguous int64 array of shape (m, 2).

    The code uses one 128-bit load, add and store. numba would emit two of each, which takes half of
    the time of a histogram. The pair is passed as two values, so that it stays in a register for
    all features of a row. If it were read from an array, the compiler could not exclude that the
    store changed it, and would load it again for every feature.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int64, int32 = ir.IntType(64), ir.IntType(32)
        pair = ir.VectorType(int64, 2)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        start = builder.mul(args[1], ir.Constant(int64, 2))
        into = builder.bitcast(builder.gep(data, [start]), pair.as_pointer())
        value = ir.Constant(pair, ir.Undefined)
        for lane in (0, 1):
            value = builder.insert_element(value, args[2 + lane], ir.Constant(int32, lane))
        builder.store(builder.add(builder.load(into, align=8), value), into, align=8)
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
