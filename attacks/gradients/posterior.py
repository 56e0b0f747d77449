"""Batches that explain a gradient, drawn from likely rows: for where no search finds the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.pooling import accepted
from fedtrees.core.schema import Table
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, softmax

#: Sweeps over a batch of up to so many rows, fewer of more; the first ones draw whole likely rows
#: alone. And samples that are kept.
_SWEEPS, _WHOLE, _ROWS, _SAMPLES = 28, 8, 128, 20
#: What the other rows may still be wrong by, at the start and in the end: in variances of a row's
#: gradient, a share of the rows.
_HOT, _COLD = 1.0, 0.15
#: Of the mean eigenvalue of a factor, what is added to each at least.
_DAMPING = 0.01
#: How likely a row is beside a likely one that differs in one cell, and up to how many cells more
#: than the least are looked at.
_OTHER, _FAR = 0.01, 3
#: Of the chance of a category, the part that goes by its frequency alone; and values of a number
#: that are tried: of rows alike, and near the last one.
_ANY, _DRAWN, _NEAR = 0.1, 5, 3
#: Likely rows that are looked at.
_MOST = 8000

Parts = list[tuple[Any, Any]]


def explained(
    layers: Layers,
    weights: NDArray[np.float32],
    gradient: NDArray[np.float32],
    encoding: Encoding,
    rows: int,
    noise: float,
    likely: Table,
    rng: np.random.Generator,
) -> tuple[Table, NDArray[np.float64]]:
    """Return what most batches of likely rows agree on that explain a gradient.

    Gibbs sampling: row after row is drawn anew, given what the others leave to explain, among the
    likely rows and those that differ from it in a cell. What the gradient does not tell is as in
    likely rows: of mere noise comes what one guesses who sees nothing.

    `weights, gradient`: float32 array, shape (parameters,).
    `noise`: Standard deviation of the gradient's noise, per coordinate.
    `likely`: Rows that are distributed as those of the batch.

    Returns
    -------
    Table
    confidence : float64 array, shape (rows, d)
        Share of samples that agree.
    """
    if len(likely) > _MOST:
        likely = likely.take(rng.choice(len(likely), _MOST, replace=False))
    X, cold = encoding.encode(likely.X), rows * _COLD
    space = RowGradients.of(layers, weights, gradient, X, likely.y, rows, noise)
    chain = _Chain(space, encoding, likely, rows, rng)
    told = chain.square.mean() > cold  # else cells are as likely as they are
    samples = []
    sweeps = max(_SWEEPS * _ROWS // max(rows, _ROWS), _WHOLE + 2)
    for sweep in range(sweeps):
        heat = cold * (_HOT / _COLD) ** max(1 - sweep / (_WHOLE - 1), 0.0)
        samples.append(chain.sweep(heat, bool(told) and sweep >= _WHOLE))
    width = accepted(encoding)
    found = matched_consensus(samples[-_SAMPLES:], width)
    sure = [_agreeing(found.X, sample.X, width) for sample in samples[-_SAMPLES:]]
    return found, np.mean(sure, axis=0)


@dataclass(frozen=True, eq=False)
class RowGradients:
    """Gradients of single rows, whitened layer by layer: outer products that are never formed.

    Of the covariance of a layer's gradient D A', factors E[A A'] and E[D D'] are taken (Martens and
    Grosse 2015), so that what few rows have counts for as much as what all have. Directions that
    noise drowns are damped. The last layer's gradient says little and is left out.
    """

    network: Sequence[Any]
    factors: Parts  # list of pair of float32 array: what whitens a layer's inputs and derivatives
    # list of float32 array, shape (units, inputs + 1): the sum of rows' gradients that was seen,
    # whitened
    target: list[Any]

    @staticmethod
    def of(
        layers: Layers, weights: Any, gradient: Any, X: Any, y: Any, rows: int, noise: float
    ) -> RowGradients:
        """Whiten by likely rows X, y the mean gradient of so many others."""
        network, target = layers.split(weights), layers.split(gradient)[:-1]
        factors, told = Parts(), []
        for outer, layer in zip(outer_products(network, X, y), target, strict=False):
            squares = [part.T.astype(np.float64) @ part / len(part) for part in outer]
            mean = [max(float(np.trace(S)) / len(S), 1e-30) for S in squares]
            drowned = noise * np.sqrt(rows / (_COLD * mean[0] * mean[1]))
            a, d = (_whitening(S, max(_DAMPING, drowned)) for S in squares)
            factors.append((a, d))
            told.append(np.float32(rows) * (d.T @ np.column_stack(layer) @ a))
        return RowGradients(network, factors, told)

    def __call__(self, X: Any, y: Any) -> tuple[Parts, Any, Any]:
        """Return rows' factors by layer, and each row's <g, target> and |g|^2."""
        outer = zip(outer_products(self.network, X, y), self.factors, strict=False)
        parts = [(A @ a, D @ d) for (A, D), (a, d) in outer]
        inner = sum(((D @ T) * A).sum(axis=1) for (A, D), T in zip(parts, self.target, strict=True))
        square = sum((A**2).sum(axis=1) * (D**2).sum(axis=1) for A, D in parts)
        return parts, np.asarray(inner, np.float64), np.asarray(square, np.float64)


class _Chain:
    """A batch of which row after row is drawn anew, given what the others explain."""

    def __init__(
        self, space: RowGradients, encoding: Encoding, likely: Table, rows: int, rng: Any
    ) -> None:
        self.space, self.encoding, self.likely, self.rng = space, encoding, likely, rng
        self.parts, inner, self.square = space(encoding.encode(likely.X), likely.y)
        at = rng.integers(0, len(likely), rows)
        self.X, self.y = likely.X[at], likely.y[at]
        self.own = [(A[at], D[at]) for A, D in self.parts]
        self.met = np.stack([self._met(i) for i in range(rows)])
        self.left = inner - self.met.sum(axis=0, dtype=np.float64)
        self.cells = _Cells(encoding, likely, rng)

    def _met(self, i: int) -> Any:
        """Return the products of a row's gradient and those of all likely rows."""
        pairs = zip(self.parts, self.own, strict=True)
        return sum((A @ a[i]) * (D @ d[i]) for (A, D), (a, d) in pairs)

    def sweep(self, heat: float, cells: bool) -> Table:
        """Draw every row among likely ones and, if asked, itself but for a cell."""
        for i in self.rng.permutation(len(self.X)):
            left = self.left + self.met[i]
            X, y, parts, log = self.likely.X, self.likely.y, self.parts, np.zeros(0)
            if cells:
                X, y, parts, log = self._changed(i, heat)
            new = _drawn(np.append(log, (left - self.square / 2) / heat), self.rng)
            if new >= len(log):
                new -= len(log)
                X, y, parts = self.likely.X, self.likely.y, self.parts
            self.X[i], self.y[i] = X[new], y[new]
            for (A, D), (a, d) in zip(parts, self.own, strict=True):
                a[i], d[i] = A[new], D[new]
            self.met[i] = self._met(i)
            self.left = left - self.met[i]
        return Table(self.X.copy(), self.y.copy())

    def _changed(self, i: int, heat: float) -> tuple[Any, Any, Parts, Any]:
        """Return a row but for a cell, with labels, factors and the logarithms of weights."""
        X, prior = self.cells.changed(self.X[i], int(self.y[i]))
        y = np.full(len(X), self.y[i])
        parts, inner, square = self.space(self.encoding.encode(X), y)
        pairs = zip(parts, self.own, strict=True)
        met = sum((A @ a.T) * (D @ d.T) for (A, D), (a, d) in pairs)
        left = inner - met.sum(axis=1, dtype=np.float64) + met[:, i]
        return X, y, parts, prior + (left - square / 2) / heat


class _Cells:
    """What a cell may be beside the others of its row: as in likely rows that differ in few."""

    def __init__(self, encoding: Encoding, likely: Table, rng: np.random.Generator) -> None:
        self.likely, self.rng, self.width = likely, rng, accepted(encoding)
        self.step = np.where(self.width > 0, 2 * self.width, 1)
        self.codes = np.ascontiguousarray(self._coded(likely.X).T)
        self.ends = np.fmin.reduce(likely.X), np.fmax.reduce(likely.X)
        self.often: list[Any] = [None] * len(self.step)  # of numbers
        for k in np.flatnonzero(encoding.coded):
            count = np.bincount(self.codes[k] + 1, minlength=1 + int((encoding.feature == k).sum()))
            self.often[k] = (count + (np.arange(len(count)) > 0)) / len(likely)

    def _coded(self, X: Any) -> NDArray[np.int32]:
        """Return categories, and of numbers which interval of the accepted width; -1: missing."""
        return np.where(np.isnan(X), -1, np.floor(np.nan_to_num(X) / self.step)).astype(np.int32)

    def changed(self, x: Any, y: int) -> tuple[Any, Any]:
        """Return a row as it is and with one cell changed, (n, d), and the log of their chances."""
        apart = self.codes != self._coded(x)[:, None]
        off = apart.sum(axis=0) + len(x) * (self.likely.y != y)
        near = np.flatnonzero(off <= off.min() + _FAR)
        apart, off = apart[:, near], off[near]
        where, value, odds = [np.zeros(1, np.intp)], [x[:1]], [np.zeros(1)]
        for k, often in enumerate(self.often):
            beside = off - apart[k]
            weight = _OTHER ** np.asarray(beside - beside.min(), np.float64)
            weight /= weight.sum()
            if often is None:
                new = self._numbers(k, x[k], near, weight)
                chance = np.ones(len(new))
            else:
                share = np.bincount(self.codes[k, near] + 1, weight, len(often))
                share = (1 - _ANY) * share + _ANY * often
                now = 0 if np.isnan(x[k]) else int(x[k]) + 1
                other = np.flatnonzero((share > 0) & (np.arange(len(share)) != now))
                new = np.where(other > 0, other - 1.0, np.nan)
                chance = share[other] / share[now]
            where.append(np.full(len(new), k))
            value.append(new)
            odds.append(np.log(chance))
        at, itself = np.concatenate(where), np.log((_OTHER ** off.astype(np.float64)).sum())
        X = np.repeat(x[None], len(at), axis=0)
        X[np.arange(len(at)), at] = np.concatenate(value)
        return X, itself + np.concatenate(odds)

    def _numbers(self, k: int, x: float, near: Any, weight: Any) -> NDArray[Any]:
        alike = self.likely.X[near[self.rng.choice(len(near), _DRAWN, p=weight)], k]
        moved = x + self.width[k] * self.rng.standard_normal(_NEAR)
        return np.append(alike, np.clip(moved, self.ends[0][k], self.ends[1][k]))


def outer_products(network: Sequence[Any], X: Any, y: Any) -> Parts:
    """Return [inputs, 1] of every layer and the losses' derivatives by its outputs, row by row."""
    A, on = [np.asarray(X, np.float32)], []
    for weight, bias in network[:-1]:
        Z = A[-1] @ weight.T + bias
        on.append(Z > 0)
        A.append(Z * on[-1])
    weight, bias = network[-1]
    D = [softmax(A[-1] @ weight.T + bias)]
    D[0][np.arange(len(y)), y] -= 1
    for k in range(len(network) - 1, 0, -1):
        D.append((D[-1] @ network[k][0]) * on[k - 1])
    ones = np.ones((len(X), 1), np.float32)
    return [(np.append(a, ones, axis=1), d) for a, d in zip(A, reversed(D), strict=True)]


def _whitening(S: NDArray[np.float64], damping: float) -> NDArray[np.float32]:
    value, vector = np.linalg.eigh(S)
    damped = np.maximum(value, 0) + damping * value.mean()
    return np.asarray(vector / np.sqrt(damped), np.float32)


def _drawn(log: Any, rng: np.random.Generator) -> int:
    """Draw a place by the logarithms of weights."""
    total = np.cumsum(np.exp(log - log.max()))
    return min(int(np.searchsorted(total, rng.random() * total[-1], "right")), len(log) - 1)


def _agreeing(
    found: NDArray[np.float32], sample: NDArray[np.float32], width: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which cells agree under the best matching."""
    a, b = found[:, None], sample[None]
    with np.errstate(invalid="ignore"):
        same = (np.abs(a - b) <= width) | (np.isnan(a) & np.isnan(b))
    pair = linear_sum_assignment(-same.sum(axis=2))
    return np.asarray(same[pair])
