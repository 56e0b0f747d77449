"""Batches whose gradient is one that was seen: free logits, all restarts at once."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.matching import Matching
from fedtrees.core.compilation import kernel
from fedtrees.neural.encoding import Encoding

#: Adam's decays (Kingma and Ba 2015), and the largest steps for logits and standardised numbers.
_DECAYS, _STEPS = (0.9, 0.92), (0.3, 0.2)
#: Weight of the span term, and up to which singular value a direction is none of the rows'.
_SPAN, _ZERO = 0.003, 1e-6
#: Likewise of the squares of inputs of categories and of numbers, where there is no span: rows are
#: as the average row unless the gradient says otherwise. Where there is one they cost accuracy.
_SHARES, _NUMBERS = 9e-5, 3e-4


@dataclass(frozen=True, eq=False)
class Found:
    """Where the restarts ended."""

    # shape (R, B, D): shares of every category, 0 in columns of continuous features
    weights: NDArray[np.float32]
    numbers: NDArray[np.float32]  # shape (R, B, continuous features): standardised
    # shape (R,): 1 - cos at the last step, of shares that need not be 0 or 1
    loss: NDArray[np.float64]
    probability: NDArray[np.float32]  # shape (R, B, K): what the network predicts for the rows


def null_space(weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[np.float32]:
    """Return the span term: what no row [x, 1] of the batch has a part in, shape (D + 1, D + 1).

    `weight, bias`: float array, shape (units, D) and (units,). Gradient of the first layer: sums
    over the rows of a derivative times [x, 1]. So rows lie in its row space while it has as many
    dimensions as there are rows.
    """
    both = np.column_stack([weight, bias]).astype(np.float64)
    _, size, right = np.linalg.svd(both)
    rank = int((size > _ZERO).sum())
    return np.asarray(_SPAN * (right[rank:].T @ right[rank:]), dtype=np.float32)


def average_pull(encoding: Encoding) -> NDArray[np.float32]:
    """Return the weights of squared inputs, on the diagonal, shape (D + 1, D + 1)."""
    weight = np.where(encoding.category < 0, _NUMBERS, _SHARES)
    return np.diag(np.append(weight, 0)).astype(np.float32)


def search(
    matching: Matching,
    encoding: Encoding,
    labels: NDArray[np.int64],
    *,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    restarts: int,
    steps: int,
    rng: np.random.Generator,
    pull: NDArray[np.float32],
) -> Found:
    """Move guessed batches until their gradient is the one that was seen.

    `labels`: int64 array, shape (B,).
    `bounds`: pair of float32 array, shape (continuous features,). Smallest and largest value of
    every number, standardised.
    `pull`: float32 array, shape (D + 1, D + 1). Symmetric: its quadratic form of [x, 1], mean of
    the rows, is added to the loss. From `null_space` or `average_pull`.

    Notes
    -----
    A category's logits are free (not scaled by the column's standard deviation, which all but fixes
    those of rare ones), numbers are moved themselves and clipped; plain Adam, step sizes that fall
    to 0 along a cosine.
    """
    B, D = len(labels), len(encoding)
    classes = matching.layers[-1][0].shape[0]
    Y = np.broadcast_to(np.eye(classes, dtype=np.float32)[labels], (restarts, B, classes))
    z = rng.uniform(-1, 1, (restarts * B, D)).astype(np.float32)
    low, high = np.full(D, -np.inf, np.float32), np.full(D, np.inf, np.float32)
    low[encoding.continuous], high[encoding.continuous] = bounds
    starts, sizes = _groups(encoding)
    X, p = np.zeros_like(z), np.zeros_like(z)
    m, v = np.zeros_like(z), np.zeros_like(z)
    where = (starts, sizes, encoding.mean, encoding.std, low, high)
    _place(z, X, p, *where)
    loss = np.zeros(restarts)
    P = np.zeros((restarts, B, classes), np.float32)
    for step in range(steps + 1):
        loss, slope, P = matching(X.reshape(restarts, B, D), Y)
        if step == steps:
            break
        G = slope.reshape(restarts * B, D)
        off = X @ pull[:D, :D]
        off += pull[D, :D]
        off *= np.float32(2 / B)
        G += off
        share = np.float32(0.5 * (1 + math.cos(math.pi * step / steps)))
        first, second = 1 - _DECAYS[0] ** (step + 1), 1 - _DECAYS[1] ** (step + 1)
        _move(z, X, p, m, v, G, share, np.float32(first), np.float32(second), *where)
    numbers = X[:, encoding.continuous].reshape(restarts, B, -1)
    return Found(p.reshape(restarts, B, D), numbers, loss.astype(np.float64), P)


def _groups(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where features start among the columns, and how many columns they have; 0: one."""
    starts = np.flatnonzero(np.diff(encoding.feature, prepend=-1))
    sizes = np.diff(np.append(starts, len(encoding)))
    return starts, np.where(encoding.category[starts] < 0, 0, sizes)


@kernel
def _place(z, X, p, starts, sizes, mean, std, low, high) -> Any:  # type: ignore[no-untyped-def]
    """Turn logits into shares and inputs, and keep numbers to their bounds."""
    for r in range(z.shape[0]):
        for k in range(len(starts)):
            a = starts[k]
            if sizes[k] == 0:
                x = min(max(z[r, a], low[a]), high[a])
                z[r, a] = x
                X[r, a] = x
                continue
            most = z[r, a]
            for j in range(a, a + sizes[k]):
                most = max(most, z[r, j])
            total = np.float32(0)
            for j in range(a, a + sizes[k]):
                p[r, j] = np.exp(z[r, j] - most)
                total += p[r, j]
            for j in range(a, a + sizes[k]):
                p[r, j] /= total
                X[r, j] = (p[r, j] - mean[j]) / std[j]


@kernel
def _move(z, X, p, m, v, G, share, first, second, starts, sizes, mean, std, low, high) -> Any:  # type: ignore[no-untyped-def]
    """Take one step of Adam."""
    for r in range(z.shape[0]):
        for k in range(len(starts)):
            a = starts[k]
            n = max(sizes[k], 1)
            along = np.float32(0)
            if sizes[k]:
                for j in range(a, a + n):
                    G[r, j] /= std[j]
                    along += p[r, j] * G[r, j]
            rate = share * np.float32(_STEPS[0] if sizes[k] else _STEPS[1])
            for j in range(a, a + n):
                g = G[r, j]
                if sizes[k]:
                    g = p[r, j] * (g - along)
                m[r, j] += np.float32(1 - _DECAYS[0]) * (g - m[r, j])
                v[r, j] += np.float32(1 - _DECAYS[1]) * (g * g - v[r, j])
                z[r, j] -= rate * (m[r, j] / first) / (np.sqrt(v[r, j] / second) + np.float32(1e-8))
    _place(z, X, p, starts, sizes, mean, std, low, high)
