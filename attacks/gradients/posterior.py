"""Sample batches of likely rows that explain a gradient, for batches that no search recovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.observed import BatchGradient, accepted_errors
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.matching import match_cells
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import softmax

#: Number of sweeps, fewer with more than `_ROWS` rows. The first `_WHOLE` sweeps only draw complete
#: likely rows. `_SAMPLES` is the number of samples that are used.
_SWEEPS, _WHOLE, _ROWS, _SAMPLES = 28, 8, 128, 20
#: Remaining error of the other rows at the start and in the end, as a share of the rows times the
#: variance of a row's gradient.
_HOT, _COLD = 1.0, 0.15
#: Smallest damping of a factor's eigenvalues, relative to their mean.
_DAMPING = 0.01
#: Relative probability of a row that differs from a likely one in one cell, and largest number of
#: differing cells beyond the smallest.
_OTHER, _FAR = 0.01, 3
#: Weight of a category's overall frequency, and numbers of values of a numeric column that are
#: tried from similar rows and close to the present one.
_ANY, _DRAWN, _NEAR = 0.1, 5, 3
#: Largest number of likely rows.
_MOST = 8000

Parts = list[tuple[Any, Any]]


def explain_gradient(
    batch: BatchGradient, likely: Table, rng: np.random.Generator
) -> tuple[Table, NDArray[np.float64]]:
    """Return the consensus of batches of likely rows that explain a gradient.

    Gibbs sampling draws each row anew given the remaining gradient, among the likely rows and rows
    that differ from the present one in one cell. Cells that the gradient does not determine are
    distributed as in the likely rows. With pure noise the result is a blind guess.

    Parameters
    ----------
    batch : BatchGradient
        The observed gradient.
    likely : Table
        Rows with the distribution of the batch.
    rng : numpy.random.Generator
        Randomness of the samples.

    Returns
    -------
    table : Table
        The consensus.
    confidence : float64 array, shape (rows, d)
        Share of samples that agree.
    """
    if len(likely) > _MOST:
        likely = likely.take(rng.choice(len(likely), _MOST, replace=False))
    rows, cold = batch.rows, batch.rows * _COLD
    space = RowGradients.of(batch, likely)
    chain = _Chain(space, batch.encoding, likely, rows, rng)
    is_informative = chain.square.mean() > cold  # otherwise single cells are not determined
    samples = []
    sweeps = max(_SWEEPS * _ROWS // max(rows, _ROWS), _WHOLE + 2)
    for sweep in range(sweeps):
        heat = cold * (_HOT / _COLD) ** max(1 - sweep / (_WHOLE - 1), 0.0)
        samples.append(chain.sweep(heat, bool(is_informative) and sweep >= _WHOLE))
    width = accepted_errors(batch.encoding)
    agreed = matched_consensus(samples[-_SAMPLES:], width)
    sure = [match_cells(sample.X, agreed.X, width)[0] for sample in samples[-_SAMPLES:]]
    return agreed, np.mean(sure, axis=0)


@dataclass(frozen=True, eq=False)
class RowGradients:
    """Gradients of single rows, whitened layer by layer, as outer products that are not formed.

    The covariance of a layer's gradient D A' is approximated by the factors E[A A'] and E[D D']
    (Martens and Grosse 2015), so that rare properties of rows have the same weight as common ones.
    Directions that are dominated by noise are damped. The last layer's gradient contains little
    information and is left out.

    Attributes
    ----------
    network : sequence
        Weights and biases of the layers.
    factors : list of pair of float32 array
        Whitening of a layer's inputs and derivatives.
    target : list of float32 array, shape (units, inputs + 1)
        Observed sum of the rows' gradients, whitened.
    """

    network: Sequence[Any]
    factors: Parts
    # one array per layer except the last
    target: list[Any]

    @staticmethod
    def of(batch: BatchGradient, likely: Table) -> RowGradients:
        """Whiten an observed gradient, with factors from likely rows."""
        network, target, rows, noise = (
            batch.network,
            batch.target[:-1],
            batch.rows,
            batch.added_noise,
        )
        X, y = batch.encoding.encode(likely.X), likely.y
        factors, whitened = Parts(), []
        for outer, layer in zip(outer_products(network, X, y), target, strict=False):
            squares = [part.T.astype(np.float64) @ part / len(part) for part in outer]
            mean = [max(float(np.trace(S)) / len(S), 1e-30) for S in squares]
            drowned = noise * np.sqrt(rows / (_COLD * mean[0] * mean[1]))
            # directions below the noise level are damped at least as much as the noise
            a, d = (_whitening(S, max(_DAMPING, drowned)) for S in squares)
            factors.append((a, d))
            whitened.append(np.float32(rows) * (d.T @ np.column_stack(layer) @ a))
        return RowGradients(network, factors, whitened)

    def __call__(self, X: Any, y: Any) -> tuple[Parts, Any, Any]:
        """Return rows' factors by layer, and each row's <g, target> and |g|^2."""
        outer = zip(outer_products(self.network, X, y), self.factors, strict=False)
        parts = [(A @ a, D @ d) for (A, D), (a, d) in outer]
        inner = sum(((D @ T) * A).sum(axis=1) for (A, D), T in zip(parts, self.target, strict=True))
        square = sum((A**2).sum(axis=1) * (D**2).sum(axis=1) for A, D in parts)
        return parts, np.asarray(inner, np.float64), np.asarray(square, np.float64)


class _Chain:
    """A batch whose rows are drawn anew one by one, given the remaining gradient."""

    def __init__(
        self, space: RowGradients, encoding: Encoding, likely: Table, rows: int, rng: Any
    ) -> None:
        self.space, self.encoding, self.likely, self.rng = space, encoding, likely, rng
        self.parts, inner, self.square = space(encoding.encode(likely.X), likely.y)
        at = rng.integers(0, len(likely), rows)
        self.X, self.y = likely.X[at], likely.y[at]
        self.parts_of_row = [(A[at], D[at]) for A, D in self.parts]
        self.met = np.stack([self._met(i) for i in range(rows)])
        self.left = inner - self.met.sum(axis=0, dtype=np.float64)
        self.cells = _Cells(encoding, likely, rng)

    def _met(self, i: int) -> Any:
        """Return the inner products of a row's gradient with those of all likely rows."""
        pairs = zip(self.parts, self.parts_of_row, strict=True)
        return sum((A @ a[i]) * (D @ d[i]) for (A, D), (a, d) in pairs)

    def sweep(self, heat: float, cells: bool) -> Table:
        """Draw every row anew, among likely rows and optionally rows with one changed cell."""
        for i in self.rng.permutation(len(self.X)):
            left = self.left + self.met[i]
            X, y, parts, log = self.likely.X, self.likely.y, self.parts, np.zeros(0)
            if cells:
                X, y, parts, log = self._propose_cells(i, heat)
            new = _draw_index(np.append(log, (left - self.square / 2) / heat), self.rng)
            # the second part of the weights belongs to the likely rows
            if new >= len(log):
                new -= len(log)
                X, y, parts = self.likely.X, self.likely.y, self.parts
            self.X[i], self.y[i] = X[new], y[new]
            for (A, D), (a, d) in zip(parts, self.parts_of_row, strict=True):
                a[i], d[i] = A[new], D[new]
            self.met[i] = self._met(i)
            self.left = left - self.met[i]
        return Table(self.X.copy(), self.y.copy())

    def _propose_cells(self, i: int, heat: float) -> tuple[Any, Any, Parts, Any]:
        """Return variants of a row with one changed cell, with labels, factors and log weights."""
        X, prior = self.cells.change_cell(self.X[i], int(self.y[i]))
        y = np.full(len(X), self.y[i])
        parts, inner, square = self.space(self.encoding.encode(X), y)
        pairs = zip(parts, self.parts_of_row, strict=True)
        met = sum((A @ a.T) * (D @ d.T) for (A, D), (a, d) in pairs)
        left = inner - met.sum(axis=1, dtype=np.float64) + met[:, i]
        return X, y, parts, prior + (left - square / 2) / heat


class _Cells:
    """Distribution of a cell given the other cells of its row, from similar likely rows."""

    def __init__(self, encoding: Encoding, likely: Table, rng: np.random.Generator) -> None:
        self.likely, self.rng, self.width = likely, rng, accepted_errors(encoding)
        self.step = np.where(self.width > 0, 2 * self.width, 1)
        self.codes = np.ascontiguousarray(self._encode(likely.X).T)
        self.ends = np.fmin.reduce(likely.X), np.fmax.reduce(likely.X)
        self.often: list[Any] = [None] * len(self.step)  # of numbers
        for k in np.flatnonzero(encoding.coded):
            count = np.bincount(self.codes[k] + 1, minlength=1 + int((encoding.feature == k).sum()))
            self.often[k] = (count + (np.arange(len(count)) > 0)) / len(likely)

    def _encode(self, X: Any) -> NDArray[np.int32]:
        """Return categories, and intervals of the accepted width for numbers, -1 if missing."""
        return np.where(np.isnan(X), -1, np.floor(np.nan_to_num(X) / self.step)).astype(np.int32)

    def change_cell(self, x: Any, y: int) -> tuple[Any, Any]:
        """Return a row and its variants with one changed cell, (n, d), and log probabilities."""
        apart = self.codes != self._encode(x)[:, None]
        off = apart.sum(axis=0) + len(x) * (self.likely.y != y)
        near = np.flatnonzero(off <= off.min() + _FAR)
        apart, off = apart[:, near], off[near]
        where, value, odds = [np.zeros(1, np.intp)], [x[:1]], [np.zeros(1)]
        for k, often in enumerate(self.often):
            other_cells = off - apart[k]
            weight = _OTHER ** np.asarray(other_cells - other_cells.min(), np.float64)
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
        from_similar = self.likely.X[near[self.rng.choice(len(near), _DRAWN, p=weight)], k]
        moved = x + self.width[k] * self.rng.standard_normal(_NEAR)
        return np.append(from_similar, np.clip(moved, self.ends[0][k], self.ends[1][k]))


def outer_products(network: Sequence[Any], X: Any, y: Any) -> Parts:
    """Return [inputs, 1] of every layer and the losses' derivatives by its outputs, per row.

    Parameters
    ----------
    network : sequence
        Weights and biases of the layers.
    X : float array, shape (n, D)
        Inputs.
    y : int64 array, shape (n,)
        Classes.
    """
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


def _draw_index(log: Any, rng: np.random.Generator) -> int:
    """Draw an index with the given log weights."""
    total = np.cumsum(np.exp(log - log.max()))
    return min(int(np.searchsorted(total, rng.random() * total[-1], "right")), len(log) - 1)
