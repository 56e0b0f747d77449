"""Distribution of LightGBM's bins over machines, and the values that midpoints reveal.

LightGBM places cuts midway between neighbouring values. A recipient of the cuts can therefore
compute values of the column.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: LightGBM's bound below which a value counts as zero (``kZeroThreshold``).
ZERO = 1e-35
#: Largest relative difference of two values that differ only by rounding errors.
_ROUNDING = 1e-11


def blocks(columns: int, world: int) -> list[range]:
    """Return the columns whose bins each machine computes."""
    step = -(-columns // world)
    ends = [min(k * step, columns) for k in range(world)] + [columns]
    return [range(a, b) for a, b in pairwise(ends)]


def dealt(bins: Mapping[int, int], world: int) -> list[list[int]]:
    """Assign columns, in their order, to the machine with the fewest bins so far.

    Parameters
    ----------
    bins : mapping of int to int
        Number of bins of each used column.
    world : int
        Number of machines.
    """
    assigned: list[list[int]] = [[] for _ in range(world)]
    totals = [0] * world
    for column, count in bins.items():
        machine = totals.index(min(totals))
        assigned[machine].append(column)
        totals[machine] += count
    return assigned


def values_between(
    low: float, high: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the value in every bin, if each bin has one, and which values are certain.

    Cuts are midway between the largest value of one bin and the smallest value of the next one.
    Starting from one end, each value follows from the one before. If the last value agrees with the
    other end, either no bin has several values, or the effects of several such bins cancel. A value
    is certain if no such bins could change it.

    Parameters
    ----------
    low, high : float
        Smallest and largest value of the column.
    cuts : float64 array, shape (b - 1,)
        Cuts between the bins.
    single : bool array, shape (b,)
        Whether all rows in a bin are known to have the same value.

    Returns
    -------
    values : float64 array, shape (b,)
        Empty if the cuts are not midway between values.
    certain : bool array, shape (b,)
    """
    values = values_from(low, cuts)
    near = _ROUNDING * max(abs(low), abs(high))
    if not len(values) or abs(values[-1] - high) > near:
        return np.zeros(0), np.zeros(0, np.bool_)
    values[-1] = high
    first = _reach(low, cuts, single)
    # The same bounds, computed from the largest value with all signs changed.
    last = -_reach(-high, -cuts[::-1], single[::-1])[::-1, ::-1]
    least, greatest = np.maximum(first[:, 0], last[:, 0]), np.minimum(first[:, 1], last[:, 1])
    return values, single & (greatest - least <= near)


def values_from(low: float, cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value in every bin if each has one, starting from the smallest.

    The result is float64, shape (b,). It is empty if the cuts are not midway between values.
    """
    values = np.empty(len(cuts) + 1)
    values[0] = low
    for k, cut in enumerate(cuts):
        # The cut is the mean of the values on both sides.
        values[k + 1] = 2 * cut - values[k]
    near = _ROUNDING * np.abs(values).max()
    lows, highs = np.append(-np.inf, cuts), np.append(cuts, np.inf)
    inside = (values > lows - near).all() and (values <= highs + near).all()
    return values if inside else np.zeros(0)


def _reach(low: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return bounds on the smallest value of each bin, float64, shape (b, 2)."""
    reach = np.empty((len(cuts) + 1, 2))
    reach[0] = low
    for k, cut in enumerate(cuts):
        least, greatest = reach[k]
        # The largest value of the bin is the smallest one if the bin is single, else at most the
        # cut.
        reach[k + 1] = 2 * cut - (greatest if single[k] else cut), 2 * cut - least
    return reach
