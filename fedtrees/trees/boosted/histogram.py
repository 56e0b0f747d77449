"""Histograms: sums of gradients and hessians per node and bin, in exact integers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Bins
from fedtrees.trees.jit import add_pair, prefetch

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
        Gradient and hessian of every row (`fedtrees.trees.boosted.fixed_point.to_fixed`).
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
