"""Many quantiles of one column by the exponential mechanism."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: What chooses one quantile: its place among all, values in order, its share q, and the ends.
Choice = Callable[[int, NDArray[np.int64], float, int, int], int]


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

    `values`: int64 array, shape (n,). In any order; those outside of [low, high] count as the
    nearest end.
    `count`: How many quantiles.
    `low, high`: Ends, both included, of what may be chosen; public.
    `epsilon`: In nats, of all quantiles together.

    Returns: int64 array, shape (count,), not decreasing.
    """
    each = epsilon / count.bit_length()

    def drawn(_: int, inside: NDArray[np.int64], q: float, a: int, b: int) -> int:
        ends, score = _scores(inside, q, a, b, each)
        k = int(np.argmax(score + rng.gumbel(size=len(score))))
        return int(rng.integers(ends[k] + 1, ends[k + 1] + 1))

    return _chosen(values, count, low, high, drawn)


def log_chance(
    found: NDArray[np.int64], values: NDArray[np.int64], low: int, high: int, epsilon: float
) -> float:
    """Return the log probability that `private_quantiles` chooses these numbers, in nats."""
    each, told = epsilon / len(found).bit_length(), []

    def given(middle: int, inside: NDArray[np.int64], q: float, a: int, b: int) -> int:
        ends, score = _scores(inside, q, a, b, each)
        k = int(np.searchsorted(inside, found[middle]))
        told.append(score[k] - np.logaddexp.reduce(score) - np.log(ends[k + 1] - ends[k]))
        return int(found[middle])

    _chosen(values, len(found), low, high, given)
    return float(sum(told))


def _chosen(
    values: NDArray[np.int64], count: int, low: int, high: int, choose: Choice
) -> NDArray[np.int64]:
    """Choose the middle quantile, then those on either side of it."""
    found = np.empty(count, dtype=np.int64)
    open_ranges = [(np.sort(np.clip(values, low, high)), 0, count, low, high)]
    while open_ranges:
        inside, first, last, a, b = open_ranges.pop()
        if first == last:
            continue
        middle = (first + last) // 2
        chosen = choose(middle, inside, (middle + 1 - first) / (last + 1 - first), a, b)
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


def _scores(
    ascending: NDArray[np.int64], q: float, low: int, high: int, epsilon: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return where numbers with 0, 1, ..., n values below them end, and the log weight of each."""
    n = len(ascending)
    ends = np.concatenate([[low - 1], ascending, [high]])
    distance = np.abs(np.arange(n + 1) - q * n)  # of the rank from quantile q
    with np.errstate(divide="ignore"):
        score = np.log(np.diff(ends)) - epsilon * distance / (2.0 * max(q, 1.0 - q))
    return ends, score
