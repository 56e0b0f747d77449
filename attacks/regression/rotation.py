"""From a product of a matrix with itself to the matrix: which rotation, by a few known entries.

``X = L R`` with a known L, shape (m, n), and an orthogonal R. Each column of R has length 1, stands
at right angles with those before, and may meet linear equations: one for each known entry of its
column of X, one from ``X W = Z``. A column with n - 1 of them has two solutions, mirror images of
each other; with n it has one. So (n - 1)(n - 2) / 2 known entries, dealt out n - 2, n - 3, ..., 0,
leave finitely many X, and of n = 2 exactly two (Li et al. 2022, Thm. 2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrees.attacks.regression.reals import Reals, beside, least_squares, norm, root, shortest

#: Partial solutions that are kept while columns are settled one after the other.
BEAM = 16
#: What a column costs whose length the equations say is not 1, for each unit of its square.
IMPOSSIBLE = 1e3
#: An equation whose row stands out of the others by less, of 1, tells a sign alone.
HARDLY = 1e-3


@dataclass(frozen=True, eq=False)
class Column:
    """What is known of one column of X."""

    rows: Sequence[int] = ()  # whose entries are known
    values: Sequence[Any] = ()  # the entries
    along: Any = None  # what the column has along the common direction: its weight


@dataclass(frozen=True, eq=False)
class Solution:
    """Columns of R that fit, by place, and how unlikely they are."""

    columns: dict[int, Reals]
    cost: float = 0.0


def solutions(
    L: Reals,
    known: Sequence[Column],
    direction: Reals | None,
    cost: Callable[[int, Reals], float],
    tiny: Any,
    square: bool = True,
) -> list[Solution]:
    """Return the R that fit, the likeliest first; at most `BEAM`.

    `L`: array, shape (m, n).
    `known`: Of every column of X.
    `direction`: array, shape (n,), or None. ``R W``: of every column of R its scalar product with
    it is ``along``.
    `cost`: From the place of a column and its m values to how unlikely they are: breaks ties.
    `tiny`: number. What counts as 0, of 1.
    `square`: Whether R has as many columns as rows; else only linear equations are used.
    """
    n = L.shape[1]
    order = sorted(range(len(known)), key=lambda j: -len(known[j].rows))
    beam = [Solution({})]
    for j in order:
        grown = [
            Solution({**s.columns, j: r}, s.cost + cost(j, L @ r) + IMPOSSIBLE * beyond)
            for s in beam
            for r, beyond in _candidates(L, known[j], s.columns, direction, tiny, square, n)
        ]
        beam = sorted(grown, key=lambda s: s.cost)[:BEAM]
    return beam


def _candidates(
    L: Reals,
    known: Column,
    settled: dict[int, Reals],
    direction: Reals | None,
    tiny: Any,
    square: bool,
    n: int,
) -> list[tuple[Reals, float]]:
    """Return the columns of R that meet all equations, one or two; else the shortest.

    Beside each, how far the square of its length is from one that is possible.
    """
    rows = [L[i] for i in known.rows]
    values = list(known.values)
    if square:
        rows += settled.values()
        values += [0 * r[0] for r in settled.values()]
        if direction is not None and known.along is not None:
            rows.append(direction)
            values.append(known.along)
    if not rows:
        return [(L[0] * 0, 0.0)]
    A, b = np.stack(rows), np.array([0 * L[0, 0] + v for v in values], dtype=L.dtype)
    x, basis = shortest(A, b, tiny)
    if len(basis) == n and len(A) > n:
        x = least_squares(A, b)
    if not square or len(basis) < n - 1:
        return [(x, 0.0)]
    beyond = float(x @ x) - 1
    if len(basis) == n:
        return [(_of_length_one(x, A[-1], basis[-1]) if len(A) == n else x, abs(beyond))]
    away = root(1 - x @ x) * beside(basis, n)
    if norm(away) <= tiny:
        return [(x, max(beyond, 0.0))]
    return [(x + away, 0.0), (x - away, 0.0)]


def _of_length_one(x: Reals, row: Reals, last: Reals) -> Reals:
    """Return x, of n equations, the last part by its length where the last row hardly tells it.

    A small weight does so: its error is divided by how far its row stands out of the others.
    """
    part = x @ last
    if abs(row @ last) >= HARDLY:
        return x
    rest = x - part * last
    left = root(1 - rest @ rest)
    return rest + (left if part > 0 else -left) * last
