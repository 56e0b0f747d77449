"""Search for a batch with an observed gradient: gradient descent, then a discrete refinement.

A step of the refinement changes one row, or two rows at once, and reduces the distance of
whitened gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.tree_network_inversion.matching import Matching

Floats = NDArray[np.float32]
#: Number of random rows from which the covariance of gradients is estimated, number of directions,
#: and the smallest variance of a direction and the ridge as shares of the largest variance. Float32
#: has about seven decimal places.
_SAMPLE, _DIRECTIONS, _TINY, _RIDGE = 600, 160, 1e-12, 1e-7
#: Number of moves among which pairs are tried, the relative improvement that a move or pair must
#: bring, and the distance per row that is zero up to the precision of float32.
_PAIRED, _LEAST, _THERE = 900, 1e-3, 1e-2
#: The refinement is discarded unless the distance falls to this share, because the observed
#: gradient then contains noise.
FELL = 0.25


@dataclass(frozen=True, eq=False)
class Whitened:
    """Gradients of rows in coordinates that have equal variance over random rows.

    Units that are active for every row produce large gradients that depend only on sums over the
    batch. Without whitening, they would dominate the directions that distinguish rows.

    Attributes
    ----------
    matching : Matching
        The observed gradient.
    to : float32 array, shape (parameters, directions)
        Projection to the whitened coordinates.
    """

    matching: Matching
    to: Floats

    @classmethod
    def of(cls, matching: Matching, rows: int, rng: np.random.Generator) -> Whitened:
        """Estimate the directions from random rows, centred within each label.

        Directions in which a defense's noise dominates have less weight.

        Parameters
        ----------
        matching : Matching
            The observed gradient.
        rows : int
            Number of rows in the batch.
        rng : numpy.random.Generator
            Draws random rows.
        """
        y, trees = np.arange(_SAMPLE) % 2, matching.trees
        cells = rng.integers(0, trees.widths, (_SAMPLE, trees.d)).astype(np.int32)
        G = _gradients(matching, trees.leaves(cells), y) * matching.scale
        G = G.astype(np.float64)
        # The labels are known, so that only variation within a label distinguishes rows.
        for label in (0, 1):
            G[y == label] -= G[y == label].mean(axis=0)
        # The eigenvectors of the small Gram matrix give those of the covariance.
        size, vectors = np.linalg.eigh(G @ G.T / _SAMPLE)
        size, vectors = size[::-1][:_DIRECTIONS], vectors[:, ::-1][:, :_DIRECTIONS]
        significant = size > max(size[0] * _TINY, 0)
        size, vectors = size[significant], vectors[:, significant]
        directions = (G.T @ vectors) / np.sqrt(_SAMPLE * size)
        noise_variance = (directions.T**2) @ (matching.scale * matching.noise * rows).astype(
            np.float64
        ) ** 2
        length = np.sqrt(size + _RIDGE * size.max(initial=0) + noise_variance)
        to = directions / length * matching.scale[:, None]
        return cls(matching, to.astype(np.float32))

    def of_rows(self, leaves: NDArray[np.int32], y: NDArray[np.int64]) -> Floats:
        """Return the contributions of rows to B times the mean gradient, (n, directions)."""
        projected = _gradients(self.matching, leaves, y) @ self.to
        return np.asarray(projected, dtype=np.float32)


def _gradients(matching: Matching, leaves: NDArray[np.int32], y: NDArray[np.int64]) -> Floats:
    """Return the gradient of each row, float32, shape (n, parameters)."""
    V = matching.trees.outputs(leaves)
    slope = matching.slopes(V, y.astype(np.float32))
    return np.asarray(matching.network.example_gradients(matching.weights, V, slope))


class Refinement:
    """Local search for a batch whose whitened gradient is nearest to the observed one.

    A move changes one value of a row, or replaces the row by a row of the pool. The gradients of
    rows are additive, so that all pairs of moves in two rows can be evaluated at once.

    Parameters
    ----------
    white : Whitened
        Whitened gradients.
    cells : int32 array, shape (B, d)
        Initial batch.
    y : int64 array, shape (B,)
        Labels of the batch.
    pool : int32 array, shape (n, d)
        Final rows of other searches.
    pool_y : int64 array, shape (n,)
        Labels of the pool.
    """

    def __init__(
        self,
        white: Whitened,
        cells: NDArray[np.int32],
        y: NDArray[np.int64],
        pool: NDArray[np.int32],
        pool_y: NDArray[np.int64],
    ) -> None:
        self.white, self.trees, self.y = white, white.matching.trees, y
        leaves = self.trees.leaves(pool)
        _, first = np.unique(np.column_stack([leaves, pool_y]), axis=0, return_index=True)
        self.pool, self.pool_y = pool[first], pool_y[first]
        self.pool_parts = white.of_rows(leaves[first], self.pool_y)
        self.target = white.matching.target @ white.to * np.float32(len(y))
        widths = self.trees.widths
        self.feature = np.repeat(np.arange(len(widths)), widths)
        self.value = np.concatenate([np.arange(w) for w in widths])
        self.begin(cells)

    def begin(self, cells: NDArray[np.int32]) -> None:
        """Set the current batch and compute its moves."""
        self.cells = cells.copy()
        self.parts = self.white.of_rows(self.trees.leaves(cells), self.y)
        self.moves = [self.moves_of(row) for row in range(len(self.y))]

    @property
    def distance(self) -> float:
        """Squared distance between the batch's gradient and the observed one."""
        residual = self.parts.sum(axis=0) - self.target
        return float(residual @ residual)

    @property
    def near(self) -> float:
        """Distance that is zero up to rounding."""
        return _THERE * len(self.y)

    def run(self, kicks: int, rng: np.random.Generator) -> float:
        """Descend from the initial batch, then from batches with one or two redrawn rows.

        Parameters
        ----------
        kicks : int
            Number of restarts with redrawn rows.
        rng : numpy.random.Generator
            Draws these rows.

        Returns
        -------
        distance : float
            Distance of the best batch, which `cells` contains afterwards.
        """
        self.descend()
        best, cells = self.distance, self.cells
        for _ in range(kicks):
            if best < self.near:
                break
            candidate = cells.copy()
            for row in rng.choice(
                len(candidate), min(int(rng.integers(1, 3)), len(candidate)), False
            ):
                candidate[row] = self.pool[rng.choice(np.flatnonzero(self.pool_y == self.y[row]))]
            self.begin(candidate)
            self.descend()
            if self.distance < best:
                best, cells = self.distance, self.cells
        self.cells = cells
        return best

    def descend(self) -> None:
        """Make the best move or pair of moves until the distance no longer falls."""
        before = np.inf
        # The predicted improvement contains rounding errors, so that the distance itself is
        # compared.
        while self.near < self.distance < before:
            before = self.distance
            if not self.step():
                break

    def moves_of(self, row: int) -> tuple[NDArray[np.int32], Floats]:
        """Return the alternatives of a row, (moves, d), and their changes, (moves, directions)."""
        candidates = np.repeat(self.cells[row][None], len(self.feature), axis=0)
        candidates[np.arange(len(candidates)), self.feature] = self.value
        leaves = self.trees.leaves(candidates)
        # Adjacent cells can have the same leaves. Only the first of them is a separate move.
        distinct = (np.diff(leaves, axis=0, prepend=-1) != 0).any(axis=1)
        distinct |= np.diff(self.feature, prepend=-1) != 0
        distinct &= (leaves != self.trees.leaves(self.cells[row][None])).any(axis=1)
        parts = self.white.of_rows(leaves[distinct], np.repeat(self.y[row], int(distinct.sum())))
        same = self.pool_y == self.y[row]
        change = np.concatenate([parts, self.pool_parts[same]]) - self.parts[row]
        return np.concatenate([candidates[distinct], self.pool[same]]), change

    def step(self) -> bool:
        """Make the best move or pair of moves in two rows, and return whether one was made."""
        residual = self.parts.sum(axis=0) - self.target
        threshold = -_LEAST * float(residual @ residual)
        owner = np.repeat(np.arange(len(self.y)), [len(cells) for cells, _ in self.moves])
        place = np.concatenate([np.arange(len(cells)) for cells, _ in self.moves])
        change = np.concatenate([parts for _, parts in self.moves])
        # Change of the squared distance by each move.
        gain = 2 * change @ residual + np.einsum("ij,ij->i", change, change)
        if not len(gain):
            return False
        chosen = [int(np.argmin(gain))]
        # Pairs are evaluated only if no single move brings a large improvement.
        if gain[chosen[0]] > 100 * threshold:
            best_moves = np.argsort(gain, kind="stable")[:_PAIRED]
            both = (
                2 * change[best_moves] @ change[best_moves].T
                + gain[best_moves, None]
                + gain[best_moves]
            )
            both[owner[best_moves, None] == owner[best_moves]] = np.inf
            pair = np.unravel_index(int(np.argmin(both)), both.shape)
            if both[pair] < gain[chosen[0]]:
                chosen = best_moves[list(pair)].tolist()
                gain[chosen[0]] = both[pair]
        if gain[chosen[0]] >= threshold:
            return False
        for k in chosen:
            row = int(owner[k])
            self.cells[row] = self.moves[row][0][place[k]]
        rows = owner[chosen]
        self.parts[rows] = self.white.of_rows(self.trees.leaves(self.cells[rows]), self.y[rows])
        for row in rows.tolist():
            self.moves[row] = self.moves_of(row)
        return True


#: Width of the soft splits at the first and the last step of every stage, in standard deviations.
_STAGES = ((0.5, 0.05), (0.3, 0.05), (0.3, 0.05))
#: Width of the soft signs in every stage, relative to that of the matching. Narrow signs determine
#: the labels, and wide ones the rows.
_WIDTHS = (0.3, 2.0, 2.0)
#: Decay rates of Adam, and its largest step.
_DECAYS, _STEP = (0.5, 0.9), 0.1
#: Number of the best restarts whose rows are recombined, and the noise that is added to them.
_PARENTS, _SHAKE = 5, 0.1
#: Upper limit of the refinement's restarts, in which one or two rows are redrawn. The number of
#: restarts of the search is another limit.
_KICKS = 10


@dataclass(frozen=True, eq=False)
class Batch:
    """A guessed batch.

    Attributes
    ----------
    cells : int32 array, shape (B, d)
        Cell of every value between adjacent thresholds.
    y : int64 array, shape (B,)
        Labels.
    loss : float
        Squared distance from the observed gradient. Each of its four layers is measured in units of
        its norm and has weight one quarter.
    """

    cells: NDArray[np.int32]
    y: NDArray[np.int64]
    loss: float


def search(
    matching: Matching,
    Y: NDArray[np.int64],
    u: Floats,
    steps: int,
    rng: np.random.Generator,
) -> Batch:
    """Return the batch whose gradient is nearest to the observed one.

    Parameters
    ----------
    matching : Matching
        Loss of a batch.
    Y : int64 array, shape (R, B)
        Labels of every restart, ascending.
    u : float32 array, shape (R, B, d)
        Initial coordinates of every restart.
    steps : int
        Steps in each stage.
    rng : numpy.random.Generator
        Recombines restarts.

    Notes
    -----
    Different restarts find different rows of the batch. The rows of the best restarts are therefore
    recombined after each stage, and the refinement may insert rows from all stages.
    """
    (R, B, d), trees = u.shape, matching.trees
    x, stage_of = u, matching
    loss: NDArray[Any] = np.zeros(R)
    ends: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
    for stage, taus in enumerate(_STAGES):
        if stage:
            parents = _match_restarts(x, loss, Y)
            Y = np.repeat(Y[np.argmin(loss)][None], R, axis=0)
            u = parents[rng.integers(0, len(parents), (R, B)), np.arange(B)]
            u = (u + _SHAKE * rng.standard_normal(u.shape)).astype(np.float32)
            u[0] = parents[0]
        if matching.width is not None:
            stage_of = replace(matching, width=matching.width * np.float32(_WIDTHS[stage]))
        x, loss = _soft(stage_of, Y, u, steps, taus)
        ends.append((trees.cells(x).reshape(-1, d), Y.ravel()))
    best = int(np.argmin(loss))
    batch = Batch(trees.cells(x[best]), Y[best], float(loss[best]))
    # Adam steps of rows are not additive, which the refinement requires.
    if matching.width is not None:
        return batch
    pool, labels = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    white = Whitened.of(matching, B, rng)
    refined = Refinement(white, batch.cells, batch.y, pool, labels)
    before = refined.distance
    if refined.run(min(_KICKS, len(Y)), rng) > (1 if matching.noise else FELL) * before:
        return batch
    V = trees.outputs(trees.leaves(refined.cells))[None]
    return Batch(refined.cells, batch.y, float(matching(V, batch.y.astype(np.float32)[None])[0][0]))


def _match_restarts(x: Floats, loss: NDArray[Any], Y: NDArray[np.int64]) -> Floats:
    """Return the best restarts that have the best one's labels, with matched rows, (P, B, d)."""
    order = np.argsort(loss, kind="stable")
    best = x[order[0]]
    parents = [best]
    for r in order[1:]:
        if len(parents) < _PARENTS and np.array_equal(Y[r], Y[order[0]]):
            distance = np.abs(best[:, None] - x[r][None]).sum(axis=2)
            distance += 1e6 * (Y[r][:, None] != Y[r])
            parents.append(x[r][linear_sum_assignment(distance)[1]])
    return np.stack(parents)


def _soft(
    matching: Matching,
    Y: NDArray[np.int64],
    u: Floats,
    steps: int,
    taus: tuple[float, float],
) -> tuple[Floats, Floats]:
    """Optimise all batches by Adam, and return their coordinates and losses.

    Each row has one coordinate vector for all trees. Leaf probabilities are products along the
    path, so that the evidence about a feature from one tree affects all trees.
    """
    (R, B, d), trees = u.shape, matching.trees
    x = u.reshape(R * B, d).copy()
    m, v = np.zeros_like(x), np.zeros_like(x)
    loss = np.zeros(R, dtype=np.float32)
    labels = Y.astype(np.float32)
    for step in range(steps):
        done = step / steps
        tau = taus[0] * (taus[1] / taus[0]) ** done
        V, right = trees.soft(x, tau)
        loss, slope = matching(V.reshape(R, B, *V.shape[1:]), labels)
        G = trees.backpropagate(right, slope.reshape(V.shape), tau)
        m += np.float32(1 - _DECAYS[0]) * (G - m)
        v += np.float32(1 - _DECAYS[1]) * (G * G - v)
        first, second = 1 - _DECAYS[0] ** (step + 1), 1 - _DECAYS[1] ** (step + 1)
        rate = _STEP * 0.5 * (1 + math.cos(math.pi * done))
        x -= np.float32(rate / first) * m / (np.sqrt(v / np.float32(second)) + np.float32(1e-12))
        np.clip(x, -3, 3, out=x)
    return x.reshape(R, B, d), loss
