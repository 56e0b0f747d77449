"""Rows that are alone in a node, off sums with noise: the likeliest bin of every column."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedtrees.attacks.cheating.nodes import Grown
from fedtrees.messages.horizontal import BaseScore

Doubles = NDArray[np.float64]

#: Class counts of a node that are told apart by its sums over all bins.
FEW = np.array([(a, b) for a in range(4) for b in range(4)])
#: How sure the reading of a row is to be.
SURE = 0.999
#: Share of bins that two readings have in common from which they are taken for one row's.
SAME = 0.7


def lone_rows(
    trees: Sequence[Grown],
    start: BaseScore,
    offsets: NDArray[np.int32],
    noise: Doubles,
    complete: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], Doubles]:
    """Return rows as bins, -1 for none, and label, int64 (m, d + 1), with the chance of each.

    How many rows a node has is told by the sums over all columns in which no row lacks a value.

    `noise`: float64 array, shape (2,). Variance of the noise on a gradient and a hessian sum.
    `complete`: bool array, shape (d,).
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    brought = np.array([[p, p * (1 - p)], [p - 1, p * (1 - p)]])
    widths, units = np.diff(offsets), np.ldexp(1.0, (start.g_bits, start.h_bits))
    weight = np.repeat(np.where(complete, 1 / np.maximum(widths, 1), 0.0), widths)
    readings = []
    for n_summands, sums in ((m, s / units) for tree in trees for s, m in tree.sums.values()):
        if not weight.any():
            break
        share = (complete / np.maximum(widths, 1)).sum()
        average, off = weight @ sums / share, n_summands * noise / share
        chances = softmax(-((average - FEW @ brought) ** 2 / off).sum(axis=1) / 2)
        best = int(chances.argmax())
        if FEW[best].sum() != 1 or chances[best] < SURE:
            continue
        label, sure = int(FEW[best, 1]), float(chances[best])
        likely = ((sums * brought[label] - brought[label] ** 2 / 2) / (n_summands * noise)).sum(
            axis=1
        )
        row = []
        for (low, end), whole_column in zip(pairwise(offsets.tolist()), complete, strict=True):
            bin_chances = softmax(np.append(likely[low:end], -np.inf if whole_column else 0.0))
            row.append(int(bin_chances.argmax()) if bin_chances.argmax() < end - low else -1)
            sure *= float(bin_chances.max())
        if sure >= SURE:
            readings.append(([*row, label], sure))
    return _different(readings, len(offsets))


def _different(
    readings: list[tuple[list[int], float]], width: int
) -> tuple[NDArray[np.int64], Doubles]:
    """Return one reading, the surest, of each row."""
    distinct: list[tuple[list[int], float]] = []
    for row, sure in sorted(readings, key=lambda item: -item[1]):
        if all(np.mean(np.array(row) == other) < SAME for other, _ in distinct):
            distinct.append((row, sure))
    rows = np.array([row for row, _ in distinct], dtype=np.int64).reshape(-1, width)
    return rows, np.array([sure for _, sure in distinct])
