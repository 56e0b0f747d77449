"""Determine a matrix from its Gram matrix: the rotation follows from a few known entries.

``X = L R`` with a known L, shape (m, n), and an orthogonal R. Each column of R has length 1, is
orthogonal to the columns before it, and may satisfy linear equations: one for each known entry of
its column of X, and one from ``X W = Z``. A column with n - 1 equations has two solutions, mirror
images of each other. With n equations it has one. Therefore (n - 1)(n - 2) / 2 known entries,
distributed as n - 2, n - 3, ..., 0, leave finitely many X, and exactly two for n = 2 (Li et al.
2022, Thm. 2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrees.attacks.regression.reals import Reals, beside, least_squares, norm, root, shortest

#: Number of partial solutions that the beam search stores.
BEAM = 16
#: Cost of a column whose squared length is not 1, per unit of the difference.
IMPOSSIBLE = 1e3
#: If the row of an equation has a smaller new component, the equation only determines a sign.
HARDLY = 1e-3


@dataclass(frozen=True, eq=False)
class Column:
    """Knowledge about one column of X.

    Attributes
    ----------
    rows : sequence of int
        Rows whose entries are known.
    values : sequence
        These entries.
    along : number or None
        Scalar product of the column of R with the common direction: its weight.
    """

    rows: Sequence[int] = ()
    values: Sequence[Any] = ()
    along: Any = None


@dataclass(frozen=True, eq=False)
class Solution:
    """Possible columns of R by index, and the cost of this choice."""

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
    """Return at most `BEAM` possible R, with the lowest cost first.

    Parameters
    ----------
    L : array, shape (m, n)
        Factor of the Gram matrix.
    known : sequence of Column
        Knowledge about every column of X.
    direction : array, shape (n,), or None
        ``R W``. Its scalar product with every column of R is ``along``.
    cost : callable
        ``cost(index, values)`` returns the implausibility of m values of a column. It breaks ties.
    tiny : number
        Relative size that counts as 0.
    square : bool, default True
        Whether R has as many columns as rows. If not, only linear equations are used.
    """
    n = L.shape[1]
    # columns with many known entries have few solutions, so that the beam stays small
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
    column: Column,
    chosen: dict[int, Reals],
    direction: Reals | None,
    tiny: Any,
    square: bool,
    n: int,
) -> list[tuple[Reals, float]]:
    """Return the columns of R that satisfy all equations, one or two, or else the shortest.

    Each comes with the difference between its squared length and the nearest possible one.
    """
    rows = [L[i] for i in column.rows]
    values = list(column.values)
    if square:
        rows += chosen.values()
        values += [0 * r[0] for r in chosen.values()]
        if direction is not None and column.along is not None:
            rows.append(direction)
            values.append(column.along)
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
    # two solutions on both sides of the hyperplane of the equations, each of length 1
    away = root(1 - x @ x) * beside(basis, n)
    if norm(away) <= tiny:
        return [(x, max(beyond, 0.0))]
    return [(x + away, 0.0), (x - away, 0.0)]


def _of_length_one(x: Reals, row: Reals, last: Reals) -> Reals:
    """Return the solution of n equations, using its length if the last row hardly determines it.

    This is the case for a small weight, whose error is divided by the new component of its row.
    """
    part = x @ last
    if abs(row @ last) >= HARDLY:
        return x
    rest = x - part * last
    left = root(1 - rest @ rest)
    return rest + (left if part > 0 else -left) * last
