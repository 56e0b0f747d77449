"""Batches whose gradient is one that was seen: soft routes first, then move by move."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.refinement import FELL, Refinement, Whitened
from fedtrees.attacks.second_phase.routing import SoftTrees

Floats = NDArray[np.float32]
#: Widths of a split at the first and last step of every stage, in units of a standard normal.
_STAGES = ((0.5, 0.05), (0.3, 0.05), (0.3, 0.05))
#: Widths of soft signs, as shares of the matching's, at every stage: narrow ones find the labels,
#: wide ones the rows.
_WIDTHS = (0.3, 2.0, 2.0)
#: Adam's decays and its largest step.
_DECAYS, _STEP = (0.5, 0.9), 0.1
#: So many of the best restarts are recombined, row by row, and moved by so much noise.
_PARENTS, _SHAKE = 5, 0.1
#: How often, at most and no more than there are restarts, the refinement begins again from a batch
#: of which a row or two are drawn.
_KICKS = 10


@dataclass(frozen=True, eq=False)
class Batch:
    """A guessed batch."""

    cells: NDArray[np.int32]  # shape (B, d)
    y: NDArray[np.int64]  # shape (B,)
    # squared distance from the gradient that was seen, each of its four parts in units of its own
    # norm and a quarter of the whole
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

    `Y`: int64 array, shape (R, B). Labels of every restart, ascending.
    `u`: float32 array, shape (R, B, d). Where restarts begin.
    `steps`: Of each stage.

    Notes
    -----
    A batch is right row by row: after each stage rows of the best restarts are recombined, and
    rows of all stages are what the refinement may put in.
    """
    R, B, d = u.shape
    x, loss, stage_of = u, np.zeros(R), matching
    ends: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
    for stage, taus in enumerate(_STAGES):
        if stage:
            parents = _matched(x, loss, Y)
            Y = np.repeat(Y[np.argmin(loss)][None], R, axis=0)
            u = parents[rng.integers(0, len(parents), (R, B)), np.arange(B)]
            u = (u + _SHAKE * rng.standard_normal(u.shape)).astype(np.float32)
            u[0] = parents[0]
        if matching.width is not None:
            stage_of = replace(matching, width=matching.width * np.float32(_WIDTHS[stage]))
        x, loss = _soft(stage_of, trees, Y, u, steps, taus)
        ends.append((trees.cells(x).reshape(-1, d), Y.ravel()))
    best = int(np.argmin(loss))
    found = Batch(trees.cells(x[best]), Y[best], float(loss[best]))
    if matching.width is not None:  # rows' steps do not add up
        return found
    pool, labels = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    white = Whitened.of(matching, trees, B, rng)
    refined = Refinement(white, found.cells, found.y, pool, labels)
    before = refined.distance
    if refined.run(min(_KICKS, len(Y)), rng) > (1 if matching.noise else FELL) * before:
        return found
    V = trees.outputs(trees.leaves(refined.cells))[None]
    return Batch(refined.cells, found.y, float(matching(V, found.y.astype(np.float32)[None])[0][0]))


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
