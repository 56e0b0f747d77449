"""Search for a batch with an observed gradient: gradient descent first, then a discrete search."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.refinement import FELL, Refinement, Whitened

Floats = NDArray[np.float32]
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
    x, loss, stage_of = u, np.zeros(R), matching
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
