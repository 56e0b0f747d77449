"""Many quantiles of one column by the exponential mechanism."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def private_quantiles(
    values: NDArray[np.int64],
    count: int,
    low: int,
    high: int,
    epsilon: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose the quantiles ``1/(count + 1), ..., count/(count + 1)`` of whole numbers.

    Kaplan, Schnapp and Stemmer (2022), Algorithm 1: the middle quantile first, then those on
    either side among the values there. A value takes part once per level of the recursion, so that
    each choice may cost ``epsilon / levels``. Neighbours differ in one added or removed value, and
    not, as theirs, in a replaced one: the distance in rank from quantile q then changes by at most
    ``max(q, 1 - q)``.

    Parameters
    ----------
    values : int64 array, shape (n,)
        In any order; those outside of [low, high] count as the nearest end.
    count : int
        How many quantiles.
    low, high : int
        Ends, both included, of what may be chosen; public.
    epsilon : float
        In nats, of all quantiles together.
    rng : numpy.random.Generator

    Returns
    -------
    int64 array, shape (count,), not decreasing
    """
    found = np.empty(count, dtype=np.int64)
    each = epsilon / count.bit_length()
    open_ranges = [(np.sort(np.clip(values, low, high)), 0, count, low, high)]
    while open_ranges:
        inside, first, last, a, b = open_ranges.pop()
        if first == last:
            continue
        middle = (first + last) // 2
        q = (middle + 1 - first) / (last + 1 - first)
        chosen = _choose(inside, q, a, b, each, rng)
        found[middle] = chosen
        at = int(np.searchsorted(inside, chosen))
        open_ranges += [
            (inside[:at], first, middle, a, chosen),
            (inside[at:], middle + 1, last, chosen, b),
        ]
    return found


def rank_error(count: int, epsilon: float) -> float:
    """Return how far the ranks of `private_quantiles` are off, about: standard deviation, in rows.

    The scale of the exponential mechanism at the middle quantile of every level is half of it.
    Measured on 500 rows, in ranges and among all float32 numbers: 0.8 to 1.3 times as much as long
    as that is below a tenth of the rows; no more is told than the range where it is above them.
    """
    return 2.0 * count.bit_length() / epsilon


def _choose(
    ascending: NDArray[np.int64],
    q: float,
    low: int,
    high: int,
    epsilon: float,
    rng: np.random.Generator,
) -> int:
    """Choose a number of [low, high] by how far its rank is from quantile q."""
    n = len(ascending)
    ends = np.concatenate([[low - 1], ascending, [high]])
    width = np.diff(ends)  # numbers with 0, 1, ..., n values below them
    distance = np.abs(np.arange(n + 1) - q * n)
    with np.errstate(divide="ignore"):
        score = np.log(width) - epsilon * distance / (2.0 * max(q, 1.0 - q))
    k = int(np.argmax(score + rng.gumbel(size=n + 1)))
    return int(ends[k] + rng.integers(1, width[k] + 1))
