"""Batches whose gradient is one that was seen: soft routes first, then cell by cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.routing import SoftTrees

Floats = NDArray[np.float32]
#: Widths of a split at the first and last step of every stage, in units of a standard normal.
_STAGES = ((0.5, 0.05), (0.3, 0.05), (0.3, 0.05))
#: Adam's decays and its largest step.
_DECAYS, _STEP = (0.5, 0.9), 0.1
#: So many of the best restarts are recombined, row by row, and moved by so much noise.
_PARENTS, _SHAKE = 5, 0.1
#: Sweeps of the refinement, and the loss below which its batch replaces that of the soft search:
#: above it fits what is wrong elsewhere, and costs a point of leaf accuracy.
_SWEEPS, _NEAR = 20, 1e-3


@dataclass(frozen=True, eq=False)
class Batch:
    """A guessed batch.

    Attributes
    ----------
    cells : int32 array, shape (B, d)
    y : int64 array, shape (B,)
    loss : float
        Squared distance from the gradient that was seen, each of its four parts in units of its
        own norm and a quarter of the whole.
    """

    cells: NDArray[np.int32]
    y: NDArray[np.int64]
    loss: float


def search(
    matching: Matching,
    trees: SoftTrees,
    Y: NDArray[np.int64],
    u: Floats,
    steps: int,
    rng: np.random.Generator,
) -> Batch:
    """Return the batch whose gradient comes nearest.

    Parameters
    ----------
    matching : Matching
    trees : SoftTrees
    Y : int64 array, shape (R, B)
        Labels of every restart, ascending.
    u : float32 array, shape (R, B, d)
        Where restarts begin.
    steps : int
        Of each stage.
    rng : numpy Generator

    Notes
    -----
    A batch is right row by row: after each stage rows of the best restarts are recombined.
    """
    R, B, _ = u.shape
    x, loss = u, np.zeros(R)
    for stage, taus in enumerate(_STAGES):
        if stage:
            parents = _matched(x, loss, Y)
            Y = np.repeat(Y[np.argmin(loss)][None], R, axis=0)
            u = parents[rng.integers(0, len(parents), (R, B)), np.arange(B)]
            u = (u + _SHAKE * rng.standard_normal(u.shape)).astype(np.float32)
            u[0] = parents[0]
        x, loss = _soft(matching, trees, Y, u, steps, taus)
    best = int(np.argmin(loss))
    found = Batch(trees.cells(x[best]), Y[best], float(loss[best]))
    refined = Refinement(matching, trees, found).run(_SWEEPS)
    return refined if refined.loss < _NEAR else found


def _matched(x: Floats, loss: NDArray[Any], Y: NDArray[np.int64]) -> Floats:
    """Return the best restarts with the best one's labels, rows in its order, (P, B, d)."""
    order = np.argsort(loss, kind="stable")
    best = x[order[0]]
    found = [best]
    for r in order[1:]:
        if len(found) < _PARENTS and np.array_equal(Y[r], Y[order[0]]):
            apart = np.abs(best[:, None] - x[r][None]).sum(axis=2)
            apart += 1e6 * (Y[r][:, None] != Y[r])
            found.append(x[r][linear_sum_assignment(apart)[1]])
    return np.stack(found)


def _soft(
    matching: Matching,
    trees: SoftTrees,
    Y: NDArray[np.int64],
    u: Floats,
    steps: int,
    taus: tuple[float, float],
) -> tuple[Floats, Floats]:
    """Move guessed batches, all at once, and return where they end and their losses.

    One vector of features per row, sent softly through all trees: leaf probabilities are products
    along the path, so that what one tree's output says of a feature holds in all others.
    """
    R, B, d = u.shape
    x = u.reshape(R * B, d).copy()
    m, v = np.zeros_like(x), np.zeros_like(x)
    loss = np.zeros(R, dtype=np.float32)
    labels = Y.astype(np.float32)
    for step in range(steps):
        done = step / steps
        tau = taus[0] * (taus[1] / taus[0]) ** done
        V, right = trees.soft(x, tau)
        loss, slope = matching(V.reshape(R, B, *V.shape[1:]), labels)
        G = trees.pulled(right, slope.reshape(V.shape), tau)
        m += np.float32(1 - _DECAYS[0]) * (G - m)
        v += np.float32(1 - _DECAYS[1]) * (G * G - v)
        first, second = 1 - _DECAYS[0] ** (step + 1), 1 - _DECAYS[1] ** (step + 1)
        rate = _STEP * 0.5 * (1 + math.cos(math.pi * done))
        x -= np.float32(rate / first) * m / (np.sqrt(v / np.float32(second)) + np.float32(1e-12))
        np.clip(x, -3, 3, out=x)
    return x.reshape(R, B, d), loss


class Refinement:
    """Changes a batch cell by cell while its gradient gets nearer.

    Parameters
    ----------
    matching : Matching
    trees : SoftTrees
    start : Batch
        Its loss does not matter.
    """

    def __init__(self, matching: Matching, trees: SoftTrees, start: Batch) -> None:
        self.matching, self.trees = matching, trees
        self.cells, self.y = start.cells.copy(), start.y.copy()
        self.leaves = trees.leaves(self.cells)
        self.scale = matching.scale / np.float32(len(self.y))
        self.parts = self.gradients(self.leaves, self.y)
        self.target = matching.target * matching.scale

    def gradients(self, leaves: NDArray[np.int32], y: NDArray[np.int64]) -> Floats:
        """Return every row's part of the scaled gradient, float32, shape (n, parameters)."""
        V = self.trees.outputs(leaves)
        slope = self.matching.slopes(V, y.astype(np.float32))
        found = self.matching.network.example_gradients(self.matching.weights, V, slope)
        return np.asarray(found * self.scale, dtype=np.float32)

    @property
    def loss(self) -> float:
        """Of the batch as it is."""
        off = self.parts.sum(axis=0) - self.target
        return float(off @ off)

    def batch(self) -> Batch:
        """Return the batch as it is."""
        return Batch(self.cells, self.y, self.loss)

    def run(self, sweeps: int, enough: float = 1e-9) -> Batch:
        """Go through all cells so many times, or until nothing gets better."""
        for _ in range(sweeps):
            before = self.loss
            for row in range(len(self.y)):
                for f in range(self.trees.d):
                    self.best_of(row, f)
            if self.loss < enough or self.loss > before * 0.999:
                break
        return self.batch()

    def best_of(self, row: int, f: int) -> None:
        """Put one value where the gradient is nearest."""
        width = int(self.trees.widths[f])
        if width == 1:
            return
        tried = np.repeat(self.cells[row][None], width, axis=0)
        tried[:, f] = np.arange(width)
        leaves = self.trees.leaves(tried)
        new = np.flatnonzero((np.diff(leaves, axis=0) != 0).any(axis=1)) + 1
        new = np.concatenate([[0], new])  # the first cell of each run with the same leaves
        here = int(np.searchsorted(new, self.cells[row, f], side="right")) - 1
        if len(new) == 1:
            return
        rest = self.parts.sum(axis=0) - self.parts[row] - self.target
        parts = self.gradients(leaves[new], np.repeat(self.y[row], len(new)))
        off = parts + rest
        loss = np.einsum("ij,ij->i", off, off)
        best = int(np.argmin(loss))
        if loss[best] < loss[here] * (1 - 1e-6):
            self.cells[row] = tried[new[best]]
            self.leaves[row], self.parts[row] = leaves[new[best]], parts[best]
