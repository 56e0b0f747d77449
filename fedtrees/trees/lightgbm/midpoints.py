"""What LightGBM's bins are dealt to, and what cuts midway between values tell of the values."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: LightGBM's bound of what it takes for zero (``kZeroThreshold``).
ZERO = 1e-35
#: How far two values may be apart that are the same but for rounding, relative to the largest.
_ROUNDING = 1e-11


def blocks(columns: int, world: int) -> list[range]:
    """Return the columns whose bins each machine finds."""
    step = -(-columns // world)
    ends = [min(k * step, columns) for k in range(world)] + [columns]
    return [range(a, b) for a, b in pairwise(ends)]


def dealt(bins: Mapping[int, int], world: int) -> list[list[int]]:
    """Deal columns, in their order, each to the machine with the fewest bins so far.

    `bins`: How many bins of each column that is used are sent.
    """
    found: list[list[int]] = [[] for _ in range(world)]
    totals = [0] * world
    for column, count in bins.items():
        machine = totals.index(min(totals))
        found[machine].append(column)
        totals[machine] += count
    return found


def values_between(
    low: float, high: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the value in every bin, if each has one, and of which that is certain.

    Cuts are midway between the greatest value of one bin and the least of the next one: from one
    end, each value follows from the one before. Where that ends at the other end, no bin has two,
    or what several have more cancels out: certain is what no such bins could change.

    `low, high`: The least and the greatest value.
    `cuts`: float64 array, shape (b - 1,). Between the bins.
    `single`: bool array, shape (b,). Whether it is known that all rows in a bin have one value.

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
    last = -_reach(-high, -cuts[::-1], single[::-1])[::-1, ::-1]
    least, most = np.maximum(first[:, 0], last[:, 0]), np.minimum(first[:, 1], last[:, 1])
    return values, single & (most - least <= near)


def values_from(low: float, cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the value in every bin if each has one, from the least on, float64, shape (b,).

    Empty if the cuts are not midway between values.
    """
    values = np.empty(len(cuts) + 1)
    values[0] = low
    for k, cut in enumerate(cuts):
        values[k + 1] = 2 * cut - values[k]
    near = _ROUNDING * np.abs(values).max()
    lows, highs = np.append(-np.inf, cuts), np.append(cuts, np.inf)
    inside = (values > lows - near).all() and (values <= highs + near).all()
    return values if inside else np.zeros(0)


def _reach(low: float, cuts: NDArray[np.float64], single: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return what the least value of each bin is at least and at most, float64, (b, 2)."""
    reach = np.empty((len(cuts) + 1, 2))
    reach[0] = low
    for k, cut in enumerate(cuts):
        least, most = reach[k]
        # the greatest value of the bin: the least one, or up to the cut
        reach[k + 1] = 2 * cut - (most if single[k] else cut), 2 * cut - least
    return reach
