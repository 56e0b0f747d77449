"""Batches made better row by row, by how far whitened gradients are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.routing import SoftTrees

Floats = NDArray[np.float32]
#: Random rows that show how gradients vary, the directions that are kept, and the least variance
#: of one, as shares of the largest: float32 leaves seven places.
_SAMPLE, _DIRECTIONS, _TINY, _RIDGE = 600, 160, 1e-12, 1e-7
#: Moves among which pairs are tried; by what share a move or pair has to bring the batch nearer,
#: and how near, for each row, is as near as float32 tells.
_PAIRED, _LEAST, _THERE = 900, 1e-3, 1e-2
#: A batch is left alone whose distance does not fall to this share: what was seen has noise in it.
FELL = 0.25


@dataclass(frozen=True, eq=False)
class Whitened:
    """Gradients of rows in coordinates that vary alike over random rows.

    Directions in which all rows' gradients are large (units that are on for every row: they tell
    sums over the batch) would hide those that tell which row has what.
    """

    matching: Matching
    trees: SoftTrees
    to: Floats  # float32 array, shape (parameters, directions)

    @classmethod
    def of(
        cls, matching: Matching, trees: SoftTrees, rows: int, rng: np.random.Generator
    ) -> Whitened:
        """Take directions from rows whose cells are drawn evenly, within either label.

        Those that a defense's noise drowns count for as much less.
        """
        y = np.arange(_SAMPLE) % 2
        cells = rng.integers(0, trees.widths, (_SAMPLE, trees.d)).astype(np.int32)
        G = _gradients(matching, trees, trees.leaves(cells), y) * matching.scale
        G = G.astype(np.float64)
        for label in (0, 1):
            G[y == label] -= G[y == label].mean(axis=0)
        size, vectors = np.linalg.eigh(G @ G.T / _SAMPLE)
        size, vectors = size[::-1][:_DIRECTIONS], vectors[:, ::-1][:, :_DIRECTIONS]
        there = size > max(size[0] * _TINY, 0)
        size, vectors = size[there], vectors[:, there]
        along = (G.T @ vectors) / np.sqrt(_SAMPLE * size)
        drowned = (along.T**2) @ (matching.scale * matching.noise * rows).astype(np.float64) ** 2
        length = np.sqrt(size + _RIDGE * size.max(initial=0) + drowned)
        to = along / length * matching.scale[:, None]
        return cls(matching, trees, to.astype(np.float32))

    def of_rows(self, leaves: NDArray[np.int32], y: NDArray[np.int64]) -> Floats:
        """Return what rows bring to B times the mean gradient, float32, (n, directions)."""
        found = _gradients(self.matching, self.trees, leaves, y) @ self.to
        return np.asarray(found, dtype=np.float32)


def _gradients(
    matching: Matching, trees: SoftTrees, leaves: NDArray[np.int32], y: NDArray[np.int64]
) -> Floats:
    V = trees.outputs(leaves)
    slope = matching.slopes(V, y.astype(np.float32))
    return np.asarray(matching.network.example_gradients(matching.weights, V, slope))


class Refinement:
    """Moves a batch while its whitened gradient gets nearer.

    A move changes a value of a row, or puts a row of the pool in its place. As rows' gradients add
    up, all pairs of moves in two rows are tried at once.

    `cells`: int32 array, shape (B, d). Where it begins.
    `y`: int64 array, shape (B,).
    `pool`: int32 array, shape (n, d). Rows that other searches ended with.
    `pool_y`: int64 array, shape (n,).
    """

    def __init__(
        self,
        white: Whitened,
        cells: NDArray[np.int32],
        y: NDArray[np.int64],
        pool: NDArray[np.int32],
        pool_y: NDArray[np.int64],
    ) -> None:
        self.white, self.trees, self.y = white, white.trees, y
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
        """Take a batch."""
        self.cells = cells.copy()
        self.parts = self.white.of_rows(self.trees.leaves(cells), self.y)
        self.moves = [self.moves_of(row) for row in range(len(self.y))]

    @property
    def distance(self) -> float:
        """Square of how far the batch's gradient is from the one that was seen."""
        off = self.parts.sum(axis=0) - self.target
        return float(off @ off)

    @property
    def near(self) -> float:
        """The distance that is as good as none."""
        return _THERE * len(self.y)

    def run(self, kicks: int, rng: np.random.Generator) -> float:
        """Move until nothing gets nearer; then so often from a batch with one or two rows drawn.

        Returns the distance of the nearest batch, which `cells` then hold.
        """
        self.descend()
        best, cells = self.distance, self.cells
        for _ in range(kicks):
            if best < self.near:
                break
            tried = cells.copy()
            for row in rng.choice(len(tried), min(int(rng.integers(1, 3)), len(tried)), False):
                tried[row] = self.pool[rng.choice(np.flatnonzero(self.pool_y == self.y[row]))]
            self.begin(tried)
            self.descend()
            if self.distance < best:
                best, cells = self.distance, self.cells
        self.cells = cells
        return best

    def descend(self) -> None:
        """Take the best move or pair while it brings the batch nearer."""
        before = np.inf
        while self.near < self.distance < before:  # sums that are rounded may promise more
            before = self.distance
            if not self.step():
                break

    def moves_of(self, row: int) -> tuple[NDArray[np.int32], Floats]:
        """Return what a row may become, (moves, d), and what that changes, (moves, directions)."""
        tried = np.repeat(self.cells[row][None], len(self.feature), axis=0)
        tried[np.arange(len(tried)), self.feature] = self.value
        leaves = self.trees.leaves(tried)
        new = (np.diff(leaves, axis=0, prepend=-1) != 0).any(axis=1)  # others are the cell's before
        new |= np.diff(self.feature, prepend=-1) != 0
        new &= (leaves != self.trees.leaves(self.cells[row][None])).any(axis=1)
        parts = self.white.of_rows(leaves[new], np.repeat(self.y[row], int(new.sum())))
        same = self.pool_y == self.y[row]
        change = np.concatenate([parts, self.pool_parts[same]]) - self.parts[row]
        return np.concatenate([tried[new], self.pool[same]]), change

    def step(self) -> bool:
        """Take the best move, or pair of moves in two rows; False where none is near enough."""
        off = self.parts.sum(axis=0) - self.target
        least = -_LEAST * float(off @ off)
        owner = np.repeat(np.arange(len(self.y)), [len(cells) for cells, _ in self.moves])
        place = np.concatenate([np.arange(len(cells)) for cells, _ in self.moves])
        change = np.concatenate([parts for _, parts in self.moves])
        gain = 2 * change @ off + np.einsum("ij,ij->i", change, change)
        if not len(gain):
            return False
        chosen = [int(np.argmin(gain))]
        if gain[chosen[0]] > 100 * least:  # no great step by one row
            few = np.argsort(gain, kind="stable")[:_PAIRED]
            both = 2 * change[few] @ change[few].T + gain[few, None] + gain[few]
            both[owner[few, None] == owner[few]] = np.inf
            pair = np.unravel_index(int(np.argmin(both)), both.shape)
            if both[pair] < gain[chosen[0]]:
                chosen = few[list(pair)].tolist()
                gain[chosen[0]] = both[pair]
        if gain[chosen[0]] >= least:
            return False
        for k in chosen:
            row = int(owner[k])
            self.cells[row] = self.moves[row][0][place[k]]
        rows = owner[chosen]
        self.parts[rows] = self.white.of_rows(self.trees.leaves(self.cells[rows]), self.y[rows])
        for row in rows.tolist():
            self.moves[row] = self.moves_of(row)
        return True
