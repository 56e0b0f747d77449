"""One table out of many samples: the one that is closest to all of them, row matched to row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.variables import Variables
from fedtrees.core.errors import DataError
from fedtrees.guessing.matching import assign, check_pair
from fedtrees.trees.jit import kernel

#: Most rounds of matching and voting.
ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Agreement:
    """What samples agree on.

    Attributes
    ----------
    value : int16 array, shape (n, G + 1)
        Levels and class of each row.
    probability : float64 array, shape (n, G + 1, most levels)
        Share of the samples whose matched row has each level.
    spread : float
        Mean share of columns in which a sample's matched row differs from `value`.
    """

    value: NDArray[np.int16]
    probability: NDArray[np.float64]
    spread: float


def weights(variables: Variables) -> NDArray[np.uint8]:
    """Return in how many columns two levels of each variable differ, the label's 0 at the end."""
    return np.array([min(len(columns), 2) for columns in variables.columns] + [0], dtype=np.uint8)


def consensus(
    samples: NDArray[np.int16], weight: NDArray[np.uint8], sizes: NDArray[np.int64],
    rounds: int = ROUNDS,
) -> Agreement:  # fmt: skip
    """Match samples to a reference and vote, until nothing changes.

    Parameters
    ----------
    samples : int16 array, shape (S, n, G + 1)
    weight : uint8 array, shape (G + 1,)
        What a difference in each variable costs.
    sizes : int64 array, shape (G + 1,)
        Number of levels.
    rounds : int

    Raises
    ------
    DataError
        If weights add up to more than 255, or there are too many rows to match.
    """
    S, n, width = samples.shape
    check_pair((n, 1), (n, 1))
    if int(weight.sum(dtype=np.int64)) > 255:
        raise DataError(f"differences may cost {int(weight.sum())}; at most 255 fit a byte")
    reference = samples[-1].copy()
    votes = np.zeros((n, width, int(sizes.max())), dtype=np.int32)
    distance = 0
    for _ in range(rounds):
        votes[:] = 0
        distance = 0
        for sample in samples:
            cost = _differences(reference, np.ascontiguousarray(sample.T), weight)
            pair = assign(cost)
            distance += int(cost[np.arange(n), pair].sum(dtype=np.int64))
            _vote(votes, sample, pair)
        before, reference = reference, votes.argmax(axis=2).astype(np.int16)
        if (before == reference).all():
            break
    return Agreement(reference, votes / S, distance / (S * n * max(int(weight.sum()), 1)))


@kernel
def _differences(reference, other, weight):  # type: ignore[no-untyped-def]
    n, width = reference.shape
    cost = np.zeros((n, other.shape[1]), dtype=np.uint8)
    for i in range(n):
        for f in range(width):
            w, value = weight[f], reference[i, f]
            if w:
                for j in range(other.shape[1]):
                    cost[i, j] += w if other[f, j] != value else np.uint8(0)
    return cost


@kernel
def _vote(votes, sample, pair):  # type: ignore[no-untyped-def]
    for i in range(pair.shape[0]):
        for f in range(sample.shape[1]):
            votes[i, f, sample[pair[i], f]] += 1
