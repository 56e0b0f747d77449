"""Histograms: sums of gradients and hessians per node and bin, in exact integers.

Gradients are converted to fixed-point integers before they are summed. Sums of integers do not
depend on their order, and therefore not on the distribution of rows over parties. Masking modulo
2^64 and Paillier encryption require integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Bins
from fedtrees.trees.jit import add_pair, prefetch

# One unit is 2^-30. A float32 has 24 significant bits, so that the last bit of a number of absolute
# value 2^-7 or more is worth at least 2^(-7 - 23) = 2^-30, and the number is represented exactly.
# The error of a smaller number is at most half a unit, 2^-31. With |g| <= 1, the sum of fewer than
# 2^33 rows fits an int64.
FIXED_POINT_BITS = 30

# Binary places of a gradient with weight 1, so that residuals up to 2^12 fit an int64.
_FINEST_BITS = 50

_BLOCK = 65536  # number of rows that are converted at a time, to limit the temporary memory

LOSS_BITS = 20  # losses of validation rows are summed in units of 2^-20

Bits = tuple[int, int]  # binary places of the gradient and of the hessian
UNIT_BITS: Bits = (FIXED_POINT_BITS, FIXED_POINT_BITS)


def to_fixed(values: NDArray[Any], bits: int | Bits = FIXED_POINT_BITS) -> NDArray[np.int64]:
    """Return the nearest integer number of units, int64, same shape.

    Parameters
    ----------
    values : float array, shape (...) or, with two `bits`, (..., 2)
        Numbers.
    bits : int or pair of int
        One unit is ``2^-bits``. A pair gives gradients and hessians separate units.

    Raises
    ------
    DataError
        If a value is not finite or does not fit an int64.
    """
    values = np.asarray(values)
    units = np.empty(values.shape, dtype=np.int64)
    rows, into = ((a.reshape(-1, 2) if isinstance(bits, tuple) else a.reshape(-1))
                  for a in (values, units))  # fmt: skip
    for begin in range(0, len(rows), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        into[part] = _round_to_units(rows[part], bits)
    return units


def clip_to_fixed(
    gh: NDArray[Any], bounds: tuple[float, float], bits: Bits = UNIT_BITS
) -> NDArray[np.int64]:
    """Clip gradients and hessians, and return them in fixed-point units, int64, same shape.

    A claim of epsilon assumes that no row exceeds the bounds. A bound that is no multiple of the
    unit would be exceeded by rounding to the nearest unit, and by its float32 representation.
    Therefore the units are clipped again, to the largest whole number of units below the bound.

    Parameters
    ----------
    gh : float array, shape (..., 2)
        Gradients and hessians of rows. It is clipped in place.
    bounds : pair of float
        Bounds on ``|g|`` and on h, finite.
    bits : pair of int
        Binary places of the gradients and of the hessians.
    """
    gh[..., 0] = np.clip(gh[..., 0], -bounds[0], bounds[0])
    gh[..., 1] = np.minimum(gh[..., 1], bounds[1])
    units = to_fixed(gh, bits)
    largest = np.floor(np.ldexp(bounds, bits)).astype(np.int64)
    return np.clip(units, -largest, largest, out=units)


# `clip_to_int64` permits up to 2^60 units, so that a sum of seven such numbers fits an int64.
_LARGEST_BITS = 60


def clip_to_int64(values: NDArray[Any], bits: Bits) -> NDArray[np.float64]:
    """Clip gradients and hessians to the range that `to_fixed` accepts, shape (..., 2).

    Predictions that follow from the messages of another party may be so large that a gradient does
    not fit an int64. An error would reveal to this party that there is such a row. A gradient that
    is not a number becomes 0.
    """
    limits = np.ldexp(1.0, _LARGEST_BITS - np.array(bits))
    return np.asarray(np.clip(np.nan_to_num(values.astype(np.float64)), -limits, limits))


def _round_to_units(values: NDArray[Any], bits: int | Bits) -> NDArray[np.float64]:
    """Return the nearest integer number of units, as floats."""
    scaled = values.astype(np.float64)
    # One column at a time, because numpy is slow on rows of two numbers.
    if isinstance(bits, tuple):
        for part, places in enumerate(bits):
            scaled[:, part] *= np.ldexp(1.0, places)
    else:
        scaled *= np.ldexp(1.0, bits)
    np.rint(scaled, out=scaled)
    if not np.abs(scaled).max(initial=0.0) < 2.0**63:  # the comparison is also False for NaN
        raise DataError(
            f"a gradient is not finite, or too large for fixed point with {bits} binary places"
        )
    return scaled


def from_fixed(
    units: NDArray[np.int64], bits: int | Bits = FIXED_POINT_BITS
) -> NDArray[np.float64]:
    """Return units as float64, same shape. The result is exact up to 2^53 units."""
    return np.asarray(units, dtype=np.float64) * np.ldexp(1.0, np.negative(bits))


def weighted(
    gradients: NDArray[np.float32], weight: NDArray[Any] | None, bits: Bits
) -> NDArray[Any]:
    """Return gradients times sample weights, shape (K, n, 2).

    A row of weight 3 equals three rows.

    The gradients are rounded to units before the multiplication, so that this equality is exact.
    XGBoost multiplies in float32, which causes one rounding error.

    Parameters
    ----------
    gradients : float32 array, shape (K, n, 2)
        Gradients and hessians.
    weight : float array, shape (n,), or None
        Sample weights. None: the gradients are returned unchanged.
    bits : Bits
        Binary places of the sums.
    """
    if weight is None:
        return gradients
    fine = tuple(min(max(b, FIXED_POINT_BITS), _FINEST_BITS) for b in bits)
    units = from_fixed(to_fixed(gradients, fine), fine)  # type: ignore[arg-type]
    return units * np.asarray(weight, np.float64)[:, None]


def bits_for(size: float, rows: float) -> int:
    """Return the number of binary places for sums of numbers of about the same size.

    It is 30 for a size of 1 or more, as long as the sum fits an int64, and larger for a smaller
    size.

    Parameters
    ----------
    size : float
        Upper bound of the mean absolute value.
    rows : float
        Number of summands.
    """
    if not 0 < size < math.inf:
        return FIXED_POINT_BITS
    fine = FIXED_POINT_BITS - min(0, math.ceil(math.log2(size)))
    # A sum of at most 2^61 units leaves bits of an int64 in reserve.
    return min(fine, 61 - math.ceil(math.log2(size * rows)))


# Number of rows by which data is prefetched, because the rows of a deep node are scattered in
# memory.
_AHEAD = 16


@inner_kernel
def _accumulate(
    codes: NDArray[Any],
    gh: NDArray[np.int64],
    rows: NDArray[np.int32],
    stride: int,
    sums: NDArray[np.int64],
) -> None:
    """Add the gradients of rows to the sums of their bins."""
    last = rows.shape[0] - 1
    for i in range(rows.shape[0]):
        row = np.uint32(rows[i])  # an unsigned index needs no check for negative values
        later = np.uint32(rows[min(i + _AHEAD, last)])
        prefetch(codes, later)
        prefetch(gh, later)
        g = gh[row, 0]
        h = gh[row, 1]
        for f in range(codes.shape[1]):
            add_pair(sums, f * stride + codes[row, f], g, h)


@kernel
def _build(
    codes: NDArray[Any],
    gh: NDArray[np.int64],
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    offsets: NDArray[np.int32],
    stride: int,
    out: NDArray[np.int64],
) -> None:
    """Compute the histogram of every node."""
    # Every feature has one slot per code, including that of missing values, so that no branch per
    # value is needed.
    sums = np.zeros((codes.shape[1] * stride, 2), dtype=np.int64)
    for node in range(ranges.shape[0]):
        _accumulate(codes, gh, rows[ranges[node, 0] : ranges[node, 1]], stride, sums)
        for f in range(codes.shape[1]):
            for b in range(offsets[f + 1] - offsets[f]):
                for part in range(2):
                    out[node, offsets[f] + b, part] = sums[f * stride + b, part]
                    sums[f * stride + b, part] = 0  # reset for the next node


@kernel
def _sum_nodes(
    gh: NDArray[np.int64],
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Compute the sums of every node."""
    for node in range(ranges.shape[0]):
        g = np.int64(0)
        h = np.int64(0)
        for i in range(ranges[node, 0], ranges[node, 1]):
            g += gh[np.uint32(rows[i]), 0]
            h += gh[np.uint32(rows[i]), 1]
        out[node, 0] = g
        out[node, 1] = h


def build_histogram(
    bins: Bins, gh: NDArray[np.int64], rows: NDArray[np.int32], ranges: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sum gradients and hessians over the rows of each node, per bin.

    Parameters
    ----------
    bins : Bins
        n binned rows with d features.
    gh : int64 array, shape (n, 2)
        Gradient and hessian of every row (`fedtrees.trees.boosted.histogram.to_fixed`).
    rows : int32 array, shape (m,)
        Row numbers, grouped by node.
    ranges : int64 array, shape (n_nodes, 2)
        The rows of node ``k`` are ``rows[ranges[k, 0]:ranges[k, 1]]``.

    Returns
    -------
    hist : int64 array, shape (n_nodes, total_bins, 2)
        Missing values are in no bin. Their sums are the difference between the sums of the node and
        those of a feature's bins.
    """
    out = np.empty((len(ranges), bins.total_bins, 2), dtype=np.int64)
    gh = np.ascontiguousarray(gh, dtype=np.int64)
    # The number of codes, including that of missing values, is the stride of a feature.
    _build(bins.codes, gh, rows, ranges, bins.offsets, bins.missing + 1, out)
    return out


def node_sums(
    gh: NDArray[np.int64], rows: NDArray[np.int32], ranges: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the sums of gradients and hessians of each node, int64, shape (n_nodes, 2).

    Parameters
    ----------
    gh : int64 array, shape (n, 2)
        Gradient and hessian of every row.
    rows : int32 array, shape (m,)
        Row numbers, grouped by node.
    ranges : int64 array, shape (n_nodes, 2)
        The rows of node ``k`` are ``rows[ranges[k, 0]:ranges[k, 1]]``.
    """
    out = np.zeros((len(ranges), 2), dtype=np.int64)
    _sum_nodes(gh, rows, ranges, out)
    return out
