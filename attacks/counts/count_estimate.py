"""The most probable counts within the range that bounded sums leave possible.

The counts of each bin are weighted over the possible pairs, by the error of its sums. A node's
total is the mean over features, each weighted by the certainty of its bins. Parents and children
are reconciled, up from the leaves and down from the root, as in a Gaussian tree (Willsky 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.count_bounds import CountBounds, N, Row, SumBounds
from fedtrees.attacks.observations.boosting import relatives
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

LEAST = 0.02  # expected rows of a class in a cell
PASSES = 3
NEVER = 1e12  # variance of unobserved cells
FEW = 48  # with no more possible counts of a cell, all are weighted
NOTHING = 1e-18  # relative weight that is neglected
SURE = 1e-6  # variance (rows^2) of a total whose bins are all certain


@kernel
def _within(lo: Longs, hi: Longs, unit: Floats, out: Floats) -> None:
    """Write mean and variance of a cell's N and G (rows) for uniform weights."""
    for k, scale in ((0, 1.0), (1, unit[3])):
        low, high = lo[2 + k] / scale, hi[2 + k] / scale
        out[k], out[2 + k] = (low + high) / 2, (high - low) ** 2 / 12


@inner_kernel
def _near(lo: Longs, hi: Longs, unit: Floats, mid: Floats, var: Floats, out: Floats) -> None:
    """Write mean and variance of a cell's N and G given estimates of them."""
    for k, scale in ((0, 1.0), (1, unit[3])):
        low, high = lo[2 + k] / scale, hi[2 + k] / scale
        spread = (high - low) ** 2 / 12
        out[k] = min(max(mid[k], low), high)
        out[2 + k] = var[k] * spread / (var[k] + spread) if spread > 0.0 else 0.0


@inner_kernel
def _around(lo: int, hi: int, centre: float, var: float) -> tuple[int, int]:
    """Return a range of counts, restricted to the neighbourhood of an estimate if it is wide."""
    if hi - lo <= FEW:
        return lo, hi
    middle = min(max(int(np.rint(centre)), lo), hi)
    width = min(int(5 * np.sqrt(var)) + 3, 2 * FEW)
    return max(lo, middle - width), min(hi, middle + width)


@inner_kernel
def _line(
    low: int, high: int, n: int, unit: Floats, sent: Floats, variance: Floats, decay: Floats,
    out: Floats,
) -> float:  # fmt: skip
    """Return the log weight at the most probable n1 of a range, for bins of many rows.

    The sums of weights, relative to it, times 1, G and G^2 are written to `out`. Weights of a
    Gaussian distribution at integers follow from one another by two products.
    """
    v, tilt = variance[0], decay[0] - decay[1]
    middle = min(max(int(np.rint(n * unit[0] - sent[0] + tilt * v)), low), high)
    off, upper = sent[0] - n * unit[0] + middle, n * unit[0] - middle
    shrink = np.exp(-1 / v)
    total, first, second = 1.0, 0.0, 0.0
    for direction in (-1, 1):
        end = high if direction == 1 else low
        weight, ratio = 1.0, np.exp(direction * tilt - (2 * direction * off + 1) / (2 * v))
        for j in range(1, direction * (end - middle) + 1):
            weight *= ratio
            ratio *= shrink
            if weight < NOTHING:
                break
            total += weight
            first -= weight * direction * j
            second += weight * j * j
    out[0], out[1] = total, upper * total + first
    out[2] = upper * upper * total + 2 * upper * first + second
    here = -(n - middle) * decay[0] - middle * decay[1]
    for k, value in ((0, off), (1, sent[1] - n * unit[2])):
        here -= 0.5 * (value * value / variance[k] + np.log(variance[k]))
    return here


@kernel
def _weigh(
    lo: Longs, hi: Longs, unit: Floats, sent: Floats, error: Floats, variance: Floats,
    step: Floats, prior: tuple[float, float], out: Floats,
) -> None:  # fmt: skip
    """Write mean and variance of a cell's N and G given its sent sums (G, H, in rows).

    ``prior`` contains the expected n0 and n1 of a geometric distribution, the widest with this
    mean.
    """
    last = error.shape[0] - 1
    decay = np.array([np.log1p(1 / prior[0]), np.log1p(1 / prior[1])])
    many = variance[-1, -1] + step**2 / 12
    top, sums, part = -np.inf, np.zeros(5), np.zeros(3)  # of 1, N, G, N^2, G^2
    least, upper = _around(lo[2], hi[2], sent[1] / unit[2], variance[-1, -1, 1] / unit[2] ** 2)
    for n in range(least, upper + 1):
        low, high = max(lo[1], n - hi[0]), min(hi[1], n - lo[0])
        low, high = _around(low, high, n * unit[0] - sent[0], variance[-1, -1, 0])
        a = low
        while a <= high:
            if n - a <= last and a <= last:  # few rows of each class
                b, x = a, (n * unit[0] - a, n * unit[2])
                weight = -(n - a) * decay[0] - a * decay[1]
                for k in range(2):
                    v = variance[n - a, a, k] + step[k] ** 2 / 12
                    off = sent[k] - x[k] - error[n - a, a, k]
                    weight -= 0.5 * (off * off / v + np.log(v))
                part[0], part[1], part[2] = 1.0, x[0], x[0] * x[0]
            else:
                b = n - last - 1 if a < n - last <= min(high, last) else high
                weight = _line(a, b, n, unit, sent, many, decay, part)
            a = b + 1
            if weight > top:
                sums *= np.exp(top - weight)
                top = weight
            w = np.exp(weight - top)
            sums[0] += w * part[0]
            sums[1] += w * part[0] * n
            sums[2] += w * part[1]
            sums[3] += w * part[0] * n * n
            sums[4] += w * part[2]
    if sums[0] == 0.0:
        _within(lo, hi, unit, out)
        return
    for k in range(2):
        out[k] = sums[1 + k] / sums[0]
        out[2 + k] = max(sums[3 + k] / sums[0] - out[k] ** 2, 0.0)


@inner_kernel
def _expected(cell: Floats, unit: Floats, share: float) -> tuple[float, float]:
    """Return a share of the n0 and n1 of a cell, at least `LEAST`."""
    n1 = cell[0] * unit[0] - cell[1]
    return max((cell[0] - n1) * share, LEAST), max(n1 * share, LEAST)


@kernel
def _estimate_cells(
    lo: Longs, hi: Longs, start: Longs, family: Longs, sent: Floats, error: Floats,
    variance: Floats, step: Floats, unit: Floats, nodes: Floats, cells: Floats,
) -> None:  # fmt: skip
    """Write mean and variance of every bin's N and G, given the nodes', float64 (n_nodes, 4)."""
    of_sibling = np.empty(4)
    for i in range(lo.shape[0]):
        p, sibling, built = family[i, 0], family[i, 1], family[i, 2]
        share = nodes[i, 0] / max(nodes[p, 0], 1.0) if p >= 0 else 1.0
        for f in range(start.shape[0] - 1):
            bins = start[f + 1] - start[f] - 1
            for c in range(start[f], start[f + 1]):
                a, b, cell = lo[i, c], hi[i, c], cells[i, c]
                seen = c < start[f + 1] - 1
                if a[0] == b[0] and a[1] == b[1]:
                    _within(a, b, unit, cell)
                elif built >= 0 and seen:
                    prior = _expected(nodes[0], unit, 1 / bins)
                    if p >= 0:
                        prior = _expected(cells[p, c], unit, share)
                    _weigh(a, b, unit, sent[built, c - f], error, variance, step, prior, cell)
                elif p >= 0 and hi[sibling, c, 2] == 0:
                    cell[:] = cells[p, c]
                elif p >= 0 and seen and family[sibling, 2] >= 0:
                    x = sent[family[sibling, 2], c - f]
                    prior = _expected(cells[p, c], unit, 1 - share)
                    _weigh(
                        lo[sibling, c],
                        hi[sibling, c],
                        unit,
                        x,
                        error,
                        variance,
                        step,
                        prior,
                        of_sibling,
                    )
                    _near(
                        a,
                        b,
                        unit,
                        cells[p, c, :2] - of_sibling[:2],
                        cells[p, c, 2:] + of_sibling[2:],
                        cell,
                    )
                else:  # not contained in any message
                    _within(a, b, unit, cell)
                    cell[2:] = NEVER


@kernel
def _total(
    lo: Longs, hi: Longs, start: Longs, root: Floats, error: Floats, variance: Floats,
    step: Floats, unit: Floats, cells: Floats, nodes: Floats,
) -> None:  # fmt: skip
    """Write mean and variance of every node's N and G from its bins, feature by feature."""
    last = lo.shape[1] - 1
    for i in range(lo.shape[0]):
        node = cells[i, last]
        if i == 0 and root.shape[0]:
            wide_prior = (1e9, 1e9)
            _weigh(lo[i, last], hi[i, last], unit, root[0], error, variance, step, wide_prior, node)
        else:
            _within(lo[i, last], hi[i, last], unit, node)
        for k in range(2):
            precision = 1.0 / max(node[2 + k], SURE)
            mean = node[k] * precision
            for f in range(start.shape[0] - 1):
                part, var = 0.0, SURE
                for c in range(start[f], start[f + 1]):
                    part += cells[i, c, k]
                    var += cells[i, c, 2 + k]
                precision += 1.0 / var
                mean += part / var
            nodes[i, k], nodes[i, 2 + k] = mean / precision, 1.0 / precision


@kernel
def _fit_cells(start: Longs, nodes: Floats, cells: Floats) -> None:
    """Scale the bins of every feature so that they add up to their node, in place."""
    for i in range(cells.shape[0]):
        for f in range(start.shape[0] - 1):
            for k in range(2):
                part, var = 0.0, 0.0
                for c in range(start[f], start[f + 1]):
                    part += cells[i, c, k]
                    var += cells[i, c, 2 + k]
                if var <= SURE:
                    continue
                off, left = nodes[i, k] - part, min(nodes[i, 2 + k], var)
                for c in range(start[f], start[f + 1]):
                    v = cells[i, c, 2 + k]
                    cells[i, c, k] += v / var * off
                    cells[i, c, 2 + k] = v - v * v / var + (v / var) ** 2 * left


def likely_counts(bounds: CountBounds, tree: Tree, sums: SumBounds, row: Row) -> Longs:
    """Return the most probable n0 and n1 of every node, int64, shape (n_nodes, 2).

    Parameters
    ----------
    bounds : CountBounds
        Possible counts. The result is within these bounds.
    tree : Tree
        The tree.
    sums : SumBounds
        Sent sums with their errors.
    row : Row
        Contribution of one row.
    """
    unit = np.array([row.g0 / row.one, 1.0, row.h / row.one, float(row.one)])
    contiguous = np.ascontiguousarray  # one memory layout, so that kernels are compiled once
    error, variance = contiguous(sums.error / row.one), contiguous(sums.variance / row.one**2)
    scaled = error, variance, sums.step / row.one
    family, ranges = _family(tree, sums), (bounds.lo, bounds.hi, bounds.start)
    cells = np.zeros((*bounds.lo.shape[:2], 4))
    mean, spread = np.zeros((len(tree), 2)), np.ones((len(tree), 2))
    for i in range(len(tree)):  # initial estimate: middle of the range
        moments = np.empty(4)
        _within(bounds.lo[i, -1], bounds.hi[i, -1], unit, moments)
        mean[i], spread[i] = moments[:2], moments[2:]
    for _ in range(PASSES):
        nodes = np.hstack([mean, spread])
        _estimate_cells(*ranges, family, sums.sent / row.one, *scaled, unit, nodes, cells)
        _total(*ranges, sums.root / row.one, *scaled, unit, cells, nodes)
        mean, spread = _reconcile(tree, nodes[:, :2], nodes[:, 2:])
        _fit_cells(bounds.start, np.hstack([mean, spread]), cells)
    return _nearest(bounds, mean, spread, unit)


def _family(tree: Tree, sums: SumBounds) -> Longs:
    """Return parent, sibling and histogram number of each node, -1 if there is none."""
    number = np.full((len(tree), 1), -1, dtype=np.int64)
    number[sums.nodes, 0] = np.arange(len(sums.nodes))
    return np.hstack([relatives(tree), number])


def _reconcile(tree: Tree, mean: Floats, var: Floats) -> tuple[Floats, Floats]:
    """Return estimates of all nodes in which children add up to their parents."""
    mean, var = mean.copy(), np.maximum(var, SURE)
    inner = np.flatnonzero(tree.feature >= 0)
    for node in inner[::-1]:
        pair = [tree.left[node], tree.right[node]]
        below = var[pair].sum(axis=0)
        gain = var[node] / (var[node] + below)
        # combine both estimates of a node, weighted by their precision
        mean[node] += gain * (mean[pair].sum(axis=0) - mean[node])
        var[node] *= 1 - gain
    for node in inner:
        pair = [tree.left[node], tree.right[node]]
        before = var[pair].sum(axis=0)
        gain = var[pair] / before
        off = mean[node] - mean[pair].sum(axis=0)
        # distribute the difference in proportion to the variances
        mean[pair] += gain * off
        var[pair] = var[pair] - gain * var[pair] + gain**2 * np.minimum(var[node], before)
    return mean, var


def _nearest(counted: CountBounds, mean: Floats, var: Floats, unit: Floats) -> Longs:
    """Return the possible integer counts closest to the estimates, int64 (n_nodes, 2)."""
    lo, hi = counted.lo[:, -1], counted.hi[:, -1]
    out = np.empty((len(lo), 2), dtype=np.int64)
    for i, (low, high) in enumerate(zip(lo, hi, strict=True)):
        width = int(np.ceil(4 * np.sqrt(var[i, 0]))) + 2
        centre = int(np.clip(np.rint(mean[i, 0]), low[N], high[N]))
        n = np.arange(max(low[N], centre - width), min(high[N], centre + width) + 1)
        least, upper = np.maximum(low[1], n - high[0]), np.minimum(high[1], n - low[0])
        n, least, upper = (part[least <= upper] for part in (n, least, upper))
        n1 = np.clip(np.rint(n * unit[0] - mean[i, 1]), least, upper)
        off = (n - mean[i, 0]) ** 2 / var[i, 0] + (n * unit[0] - n1 - mean[i, 1]) ** 2 / var[i, 1]
        best = int(np.argmin(off))
        out[i] = n[best] - n1[best], n1[best]
    return out
