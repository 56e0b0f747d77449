"""The likeliest counts within what bounded sums leave possible.

Each bin's counts are weighed over the pairs that are possible, by the error of its sums; a node's
total is the mean over features, each weighted by how sure its bins are, and parents and children
are reconciled as in a Gaussian tree (Willsky 2002, Sec. IV): up from the leaves, down from the root.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.readback.forms import Counted, N, Row, SumBounds
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

FEW = 48  # N and n1 of a cell are weighed pair by pair where their ranges are no wider
SURE = 1e-6  # variance (rows^2) of a total whose bins are all certain


@kernel
def _weigh_cell(lo: Longs, hi: Longs, mid: Floats, var: Floats, row: Floats, out: Floats) -> None:
    """Write mean and variance of a cell's N and G (rows) given (G, H) of known error."""
    g0, one, h = row[0], row[1], row[2]
    best, best_n, best_g = -1.0, 0.0, 0.0
    total, mean_n, mean_g, square_n, square_g = 0.0, 0.0, 0.0, 0.0, 0.0
    if hi[2] - lo[2] <= FEW and hi[1] - lo[1] <= FEW:
        for trial in range(2):  # the second where nothing possible is near: all alike
            for n in range(lo[2], hi[2] + 1):
                for n1 in range(max(lo[1], n - hi[0]), min(hi[1], n - lo[0]) + 1):
                    g = n * g0 - n1 * one
                    off = 0.0
                    if trial == 0:
                        off = (g - mid[0]) ** 2 / var[0] + (n * h - mid[1]) ** 2 / var[1]
                    w = np.exp(-0.5 * off)
                    total += w
                    if w > best:
                        best, best_n, best_g = w, float(n), g
                    mean_n += w * n
                    mean_g += w * g
                    square_n += w * n * n
                    square_g += w * g * g
            if total > 1e-200:
                break
            total, mean_n, mean_g, square_n, square_g = 0.0, 0.0, 0.0, 0.0, 0.0
    if total > 0.0:
        out[0], out[1] = mean_n / total, mean_g / total
        out[2], out[3] = square_n / total - out[0] ** 2, square_g / total - out[1] ** 2
        out[0], out[1] = best_n, best_g
        return
    low, high = float(lo[2]), float(hi[2])
    spread = (high - low) ** 2 / 12.0
    v = var[1] / (h * h)
    out[0] = (low + high) / 2 if v > 1e12 else min(max(mid[1] / h, low), high)
    out[2] = v * spread / (v + spread) if spread > 0.0 else 0.0
    low, high = lo[3] * (one / row[3]), hi[3] * (one / row[3])
    spread = (high - low) ** 2 / 12.0
    out[1] = (low + high) / 2 if var[0] > 1e12 else min(max(mid[0], low), high)
    out[3] = var[0] * spread / (var[0] + spread) if spread > 0.0 else 0.0


@kernel
def _weigh(
    lo: Longs, hi: Longs, start: Longs, mid: Floats, var: Floats, row: Floats, out: Floats
) -> None:
    """Write mean and variance of every node's N and G, float64 (n_nodes, 4)."""
    cell = np.empty(4)
    last = lo.shape[1] - 1
    for i in range(lo.shape[0]):
        _weigh_cell(lo[i, last], hi[i, last], mid[i, last], var[i, last], row, cell)
        precision = np.array([1.0 / max(cell[2], SURE), 1.0 / max(cell[3], SURE)])
        mean = np.array([cell[0] * precision[0], cell[1] * precision[1]])
        for f in range(start.shape[0] - 1):
            whole = np.zeros(4)
            for c in range(start[f], start[f + 1]):
                _weigh_cell(lo[i, c], hi[i, c], mid[i, c], var[i, c], row, cell)
                whole += cell
            for k in range(2):
                weight = 1.0 / max(whole[2 + k], SURE)
                precision[k] += weight
                mean[k] += weight * whole[k]
        for k in range(2):
            out[i, k], out[i, 2 + k] = mean[k] / precision[k], 1.0 / precision[k]


def likely_counts(found: Counted, tree: Tree, sums: SumBounds, row: Row) -> Longs:
    """Return the likeliest n0 and n1 of every node, int64, shape (n_nodes, 2).

    Parameters
    ----------
    found : Counted
        What is possible: counts stay within it, and are as it says where it is certain.
    tree : Tree
    sums : SumBounds
        With the error of each sum.
    row : Row
    """
    mid, var = _of_cells(found, tree, sums)
    unit = np.array([row.g0 / row.one, 1.0, row.h / row.one, float(row.one)])
    nodes = np.empty((len(tree), 4))
    _weigh(found.lo, found.hi, found.start, mid / row.one, var / row.one**2, unit, nodes)
    mean, spread = _reconciled(tree, nodes[:, :2], nodes[:, 2:])
    return _nearest(found, mean, spread, unit)


def _of_cells(found: Counted, tree: Tree, sums: SumBounds) -> tuple[Floats, Floats]:
    """Return the estimated (G, H) of every cell and its variance, (n_nodes, columns + 1, 2)."""
    shape = (*found.lo.shape[:2], 2)
    mid, var, bins = np.zeros(shape), np.full(shape, np.inf), found.bins
    rows = sums.nodes[:, None]
    mid[rows, bins], var[rows, bins] = sums.mid, sums.var
    mid[:, -1], var[:, -1] = sums.node_mid, sums.node_var
    empty = found.hi[..., N] == 0
    mid[empty], var[empty] = 0.0, 0.0
    for node in np.flatnonzero(tree.feature >= 0):
        pair = tree.left[node], tree.right[node]
        for child, other in (pair, pair[::-1]):
            follows = np.isinf(var[child]) & np.isfinite(var[other] + var[node])
            mid[child] = np.where(follows, mid[node] - mid[other], mid[child])
            var[child] = np.where(follows, var[node] + var[other], var[child])
    return np.where(np.isfinite(var), mid, 0.0), np.where(
        np.isfinite(var), np.maximum(var, 1.0), 1e60
    )


def _reconciled(tree: Tree, mean: Floats, var: Floats) -> tuple[Floats, Floats]:
    """Return estimates of all nodes such that children add up to their parents."""
    mean, var = mean.copy(), np.maximum(var, SURE)
    inner = np.flatnonzero(tree.feature >= 0)
    for node in inner[::-1]:
        pair = [tree.left[node], tree.right[node]]
        below = var[pair].sum(axis=0)
        gain = var[node] / (var[node] + below)
        mean[node] += gain * (mean[pair].sum(axis=0) - mean[node])
        var[node] *= 1 - gain
    for node in inner:
        pair = [tree.left[node], tree.right[node]]
        gain = var[pair] / var[pair].sum(axis=0)
        off = mean[node] - mean[pair].sum(axis=0)
        before = var[pair].sum(axis=0)
        mean[pair] += gain * off
        var[pair] = var[pair] - gain * var[pair] + gain**2 * np.minimum(var[node], before)
    return mean, var


def _nearest(found: Counted, mean: Floats, var: Floats, unit: Floats) -> Longs:
    """Return the possible whole counts nearest to the estimates, int64 (n_nodes, 2)."""
    lo, hi = found.lo[:, -1], found.hi[:, -1]
    out = np.empty((len(lo), 2), dtype=np.int64)
    for i, (low, high) in enumerate(zip(lo, hi, strict=True)):
        width = int(np.ceil(4 * np.sqrt(var[i, 0]))) + 2
        centre = int(np.clip(np.rint(mean[i, 0]), low[2], high[2]))
        n = np.arange(max(low[2], centre - width), min(high[2], centre + width) + 1)
        least, most = np.maximum(low[1], n - high[0]), np.minimum(high[1], n - low[0])
        n, least, most = (part[least <= most] for part in (n, least, most))
        n1 = np.clip(np.rint(n * unit[0] - mean[i, 1]), least, most)
        off = (n - mean[i, 0]) ** 2 / var[i, 0] + (n * unit[0] - n1 - mean[i, 1]) ** 2 / var[i, 1]
        best = int(np.argmin(off))
        out[i] = n[best] - n1[best], n1[best]
    return out
