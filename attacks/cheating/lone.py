"""Estimate single rows that are isolated in a node from sums with noise.

`halved-rows` uses this module if noise prevents exact class counts. Each column yields the most
probable bin of the row.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from fedtrees.attacks.cheating.nodes import Grown
from fedtrees.messages.horizontal import BaseScore

Doubles = NDArray[np.float64]

#: Hypotheses about the class counts of a node, which its sums over all bins must distinguish.
FEW = np.array([(a, b) for a in range(4) for b in range(4)])
#: Minimum posterior probability of a row, over its class counts and all its bins.
SURE = 0.999
#: Two estimates that agree in at least this share of bins are attributed to the same row.
SAME = 0.7


def lone_rows(
    trees: Sequence[Grown],
    start: BaseScore,
    offsets: NDArray[np.int32],
    noise: Doubles,
    complete: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], Doubles]:
    """Estimate the rows of nodes that contain exactly one row.

    The class counts of a node follow from the sums over all columns without missing values, because
    each of these columns contains every row of the node once.

    Parameters
    ----------
    trees : sequence of Grown
        Sums of the nodes, as fixed-point numbers.
    start : BaseScore
        Initial log-odds and the fixed-point units.
    offsets : int32 array, shape (d + 1,)
        The bins of column ``f`` are ``offsets[f]`` to ``offsets[f + 1] - 1``.
    noise : float64 array, shape (2,)
        Variance of the noise on a gradient and a hessian sum.
    complete : bool array, shape (d,)
        Columns without missing values.

    Returns
    -------
    rows : int64 array, shape (m, d + 1)
        Bin of every column, -1 for a missing value, and the label.
    probability : float64 array, shape (m,)
        Posterior probability of each row.
    """
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    contribution = np.array([[p, p * (1 - p)], [p - 1, p * (1 - p)]])
    widths, units = np.diff(offsets), np.ldexp(1.0, (start.g_bits, start.h_bits))
    # The sum over a column's bins has noise in proportion to their number. Weights of one over this
    # number give the estimate with the least variance.
    weight = np.repeat(np.where(complete, 1 / np.maximum(widths, 1), 0.0), widths)
    readings = []
    for n_summands, sums in ((m, s / units) for tree in trees for s, m in tree.sums.values()):
        if not weight.any():
            break
        share = (complete / np.maximum(widths, 1)).sum()
        average, variance = weight @ sums / share, n_summands * noise / share
        chances = softmax(-((average - FEW @ contribution) ** 2 / variance).sum(axis=1) / 2)
        hypothesis = int(chances.argmax())
        if FEW[hypothesis].sum() != 1 or chances[hypothesis] < SURE:
            continue
        label, probability = int(FEW[hypothesis, 1]), float(chances[hypothesis])
        # Log-likelihood ratio of "the row is in this bin" to "the bin is empty" under Gaussian
        # noise.
        likely = (
            (sums * contribution[label] - contribution[label] ** 2 / 2) / (n_summands * noise)
        ).sum(axis=1)
        row = []
        for (low, end), is_complete in zip(pairwise(offsets.tolist()), complete, strict=True):
            bin_chances = softmax(np.append(likely[low:end], -np.inf if is_complete else 0.0))
            row.append(int(bin_chances.argmax()) if bin_chances.argmax() < end - low else -1)
            probability *= float(bin_chances.max())
        if probability >= SURE:
            readings.append(([*row, label], probability))
    return _different(readings, len(offsets))


def _different(
    readings: list[tuple[list[int], float]], width: int
) -> tuple[NDArray[np.int64], Doubles]:
    """Return the most probable estimate of each distinct row."""
    distinct: list[tuple[list[int], float]] = []
    for row, probability in sorted(readings, key=lambda item: -item[1]):
        if all(np.mean(np.array(row) == accepted) < SAME for accepted, _ in distinct):
            distinct.append((row, probability))
    rows = np.array([row for row, _ in distinct], dtype=np.int64).reshape(-1, width)
    return rows, np.array([probability for _, probability in distinct])
