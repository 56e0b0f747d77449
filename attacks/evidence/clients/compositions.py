"""List the numbers of rows and positives (N, N1) that make up a leaf's sums.

A leaf holds n_c rows of each of C kinds, which have probability p_c and hessian h_c. Then
``sum h_c n_c = H``, and ``sum p_c n_c - G`` is N1, a whole number. The search lists both halves of
all compositions, pairs halves that add up to H, and keeps their totals N and N1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.evidence.clients.cells import Cells
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_HALVES = 2**20  # compositions per half: what two float32 sums can tell apart
MOST_LIKELY = 2**18  # the same where only likely ones are listed
MOST_MEETINGS = 2**24  # pairs of halves that are looked at
MOST_SCORES = 2**22  # cells times rows of a cell that are weighed: 32 MB per array
MOST_TOTALS = 256  # pairs (N, N1) told apart
ROWS_BEFORE = 0.3  # pseudo-rows of every cell before own rows are counted
# Standard deviations searched around what own rows suggest; fewer where the search is too long.
SPREADS = (np.inf, 4.0, 3.0, 2.0)


@dataclass(frozen=True, eq=False)
class LeafEquations:
    """The two equations of one leaf."""

    # Hessian sum and its error
    h: float
    h_error: float
    slope: float  # ``v / eta``: the gradient sum is ``-slope (H + lambda)``
    slope_error: float  # Relative error of the slope
    reg_lambda: float


@dataclass(frozen=True, eq=False)
class Totals:
    """Rows and positives that a leaf may hold."""

    # int64 (k,): the likeliest first
    n: Ints
    n1: Ints
    weight: Floats  # float64 (k,): log weight, from the own rows in each cell
    complete: bool  # Whether no other pair is possible


def totals_of(leaf: LeafEquations, cells: Cells) -> Totals:
    """Return the totals of all compositions, or of the likely ones where there are too many."""
    for spread in SPREADS:
        ranges = _likely(leaf, cells, spread)
        found = None if ranges is None else _totals(leaf, cells, ranges)
        if found is not None and (len(found.n) or found.complete):
            return found
    return Totals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), complete=False)


@dataclass(frozen=True, eq=False)
class _Ranges:
    """Numbers of rows that are tried per cell, and their log weights."""

    # int64 (C,): tried are ``low`` to ``low + width`` rows
    low: Ints
    width: Ints
    # float64 (C, largest width + 1): log weight of ``low + k`` rows less that of ``low``
    score: Floats
    complete: bool  # Whether all possible numbers are in the ranges


def _likely(leaf: LeafEquations, cells: Cells, spread: float) -> _Ranges | None:
    """Return ranges of so many standard deviations around what own rows suggest.

    None where there is more to weigh than `MOST_SCORES`.
    """
    most = int((leaf.h + leaf.h_error) / cells.h.min()) + 1
    r = cells.own + ROWS_BEFORE
    scale = max(leaf.h / float(r @ cells.h), 1e-3)  # the client's rows to own ones
    low, high = np.zeros(len(r), dtype=np.int64), np.full(len(r), most)
    if np.isfinite(spread):
        sd = np.sqrt(r * scale * (1 + scale))
        low = np.maximum(np.floor(r * scale - spread * sd), 0).astype(np.int64)
        high = np.minimum(np.ceil(r * scale + spread * sd), most).astype(np.int64)
        low = np.minimum(low, high)
    widest = int((high - low).max()) + 1
    if len(r) * widest > MOST_SCORES:
        return None
    n = low[:, None] + np.arange(widest)
    weight = gammaln(n + r[:, None]) - gammaln(n + 1.0) + n * np.log(scale / (1 + scale))
    return _Ranges(low, high - low, weight - weight[:, :1], not np.isfinite(spread))


def _totals(leaf: LeafEquations, cells: Cells, ranges: _Ranges) -> Totals | None:
    """Return the totals of all compositions in the ranges, None where there are too many."""
    total = leaf.h + leaf.h_error - float(ranges.low @ cells.h)
    if total < 0:
        return Totals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), complete=False)
    order = _alternating(cells.h)
    h, p, width, score = (x[order] for x in (cells.h, cells.p, ranges.width, ranges.score))
    halves = _halves(h, width, total, MOST_HALVES if ranges.complete else MOST_LIKELY)
    if halves is None:
        return None
    (a_cells, a_limit), (b_cells, b_limit), middle = halves
    first = _list(h[a_cells], p[a_cells], width[a_cells], score[a_cells], a_limit, a_cells.start)
    second = _list(h[b_cells], p[b_cells], width[b_cells], score[b_cells], b_limit, b_cells.start)
    rank = np.argsort(second[0], kind="stable")
    second = tuple(part[rank] for part in second)
    low = total - 2 * leaf.h_error - first[0]
    begin = np.searchsorted(second[0], low, side="left")
    end = np.searchsorted(second[0], low + 2 * leaf.h_error, side="right")
    if (end - begin).sum() > MOST_MEETINGS:
        return None
    step_error = float(np.abs(cells.step - 1).max())
    found = np.zeros((MOST_TOTALS, 2), dtype=np.int64)
    weight = np.full(MOST_TOTALS, -np.inf)
    fixed = ranges.low @ np.stack([cells.h, cells.p], axis=1)
    many = _meet(
        *first, *second, begin, end, np.append(h, np.inf), middle,
        (leaf.slope, leaf.slope_error, leaf.reg_lambda, step_error),
        (float(fixed[0]), float(fixed[1]), int(ranges.low.sum())), found, weight,
    )  # fmt: skip
    k = min(many, MOST_TOTALS)
    best = np.argsort(-weight[:k], kind="stable")
    complete = ranges.complete and many <= MOST_TOTALS
    return Totals(found[best, 0], found[best, 1], weight[best], complete)


def _alternating(h: Floats) -> NDArray[np.intp]:
    """Order the cells so that both halves have heavy and light ones."""
    heavy = np.argsort(-h, kind="stable")
    return np.concatenate([heavy[::2], heavy[1::2]])


def _halves(
    h: Floats, width: Ints, total: float, most: int
) -> tuple[tuple[slice, float], tuple[slice, float], float] | None:
    """Return how to halve compositions: cells and largest sum per half, and where to cut sums.

    Either each half has half of the cells, or all cells and half of the sum; the latter is shorter
    where many cells have few rows each. None where both lists are too long.
    """
    c, k = len(h), (len(h) + 1) // 2
    by_cells = ((slice(0, k), total), (slice(k, c), total), -np.inf)
    by_sum = ((slice(0, c), total / 2), (slice(0, c), total / 2 + float(h.max())), total / 2)
    sizes = []
    for halves in (by_cells, by_sum):
        counts = [_count(h[cells], width[cells], limit, most) for cells, limit in halves[:2]]
        sizes.append(max(counts))
    best = (by_cells, by_sum)[int(np.argmin(sizes))]
    return best if min(sizes) < most else None


def _list(
    h: Floats, p: Floats, width: Ints, score: Floats, limit: float, start: int
) -> tuple[NDArray[Any], ...]:
    """List compositions: their sums of h, p and score; rows, lowest and highest cell."""
    m = _count(h, width, limit, MOST_HALVES)
    sums, cells = np.zeros((m, 3)), np.zeros((m, 3), dtype=np.int64)
    _fill(h, p, width, score, limit, start, sums, cells)
    return tuple(np.ascontiguousarray(column) for column in (*sums.T, *cells.T))


@kernel
def _count(h: Floats, width: Ints, limit: float, most: int) -> int:
    """Return how many compositions have a sum of at most `limit`; stop at `most`."""
    c = h.shape[0]
    n = np.zeros(c, dtype=np.int64)
    above = np.zeros(c + 1)  # sum over this cell and those after
    found = 1
    j = 0
    while j < c and found < most:
        total = above[j + 1] + (n[j] + 1) * h[j]
        if n[j] < width[j] and total <= limit:
            n[j] += 1
            for i in range(j + 1):
                above[i] = total
            found += 1
            j = 0
        else:
            n[j] = 0
            j += 1
    return found


@kernel
def _fill(
    h: Floats,
    p: Floats,
    width: Ints,
    score: Floats,
    limit: float,
    start: int,
    sums: Floats,
    cells: Ints,
) -> None:
    """Fill in the compositions that `_count` counts; columns as of `_list`."""
    c = h.shape[0]
    n = np.zeros(c, dtype=np.int64)
    above = np.zeros((c + 1, 3))
    rows = np.zeros(c + 1, dtype=np.int64)
    last = np.full(c + 1, -1, dtype=np.int64)
    cells[0, 1], cells[0, 2] = start + c, -1
    at = 1
    j = 0
    while j < c and at < sums.shape[0]:
        total = above[j + 1, 0] + (n[j] + 1) * h[j]
        if n[j] == width[j] or total > limit:
            n[j] = 0
            j += 1
            continue
        n[j] += 1
        mean = above[j + 1, 1] + n[j] * p[j]
        weight = above[j + 1, 2] + score[j, n[j]]
        held = rows[j + 1] + n[j]
        end = last[j + 1] if last[j + 1] >= 0 else start + j
        for i in range(j + 1):
            above[i, 0], above[i, 1], above[i, 2] = total, mean, weight
            rows[i], last[i] = held, end
        sums[at, 0], sums[at, 1], sums[at, 2] = total, mean, weight
        cells[at, 0], cells[at, 1], cells[at, 2] = held, start + j, end
        at += 1
        j = 0


@kernel
def _meet(
    a_h: Floats, a_p: Floats, a_score: Floats, a_n: Ints, a_first: Ints, a_last: Ints,
    b_h: Floats, b_p: Floats, b_score: Floats, b_n: Ints, b_first: Ints, b_last: Ints,
    begin: Ints, end: Ints, h: Floats, middle: float,
    known: tuple[float, float, float, float], fixed: tuple[float, float, int],
    found: Ints, weight: Floats,
) -> int:  # fmt: skip
    """Collect the totals of all pairs that add up, and return how many there are.

    That is one more than fit where they do not fit. The two conditions on cells and ``middle`` let
    every composition occur in one pair only.
    """
    slope, slope_error, reg_lambda, step_error = known
    many = 0
    for i in range(a_h.shape[0]):
        for k in range(begin[i], end[i]):
            if a_last[i] > b_first[k] or a_h[i] + h[b_first[k]] <= middle:
                continue
            pull = slope * (fixed[0] + a_h[i] + b_h[k] + reg_lambda)
            n = fixed[2] + a_n[i] + b_n[k]
            exact = fixed[1] + a_p[i] + b_p[k] + pull
            n1 = np.int64(np.rint(exact))
            off = slope_error * abs(pull) + (step_error + 1e-9) * n + 1e-9
            if abs(exact - n1) > off or n1 < 0 or n1 > n:
                continue
            score = a_score[i] + b_score[k]
            at = 0
            while at < many and (found[at, 0] != n or found[at, 1] != n1):
                at += 1
            if at == found.shape[0]:
                return at + 1
            if at == many:
                found[at, 0], found[at, 1], weight[at] = n, n1, score
                many += 1
            else:
                top = max(weight[at], score)
                weight[at] = top + np.log(np.exp(weight[at] - top) + np.exp(score - top))
    return many
