"""Recover another client's rows up to a rotation, and determine the rotation from known entries.

Averaged weights reveal the Gram matrix of the rows. ``X = L R`` with a known L, shape (m, n), and
an orthogonal R. Each column of R has length 1, is orthogonal to the columns before it, and may
satisfy linear equations: one for each known entry of its column of X, and one from ``X W = Z``. A
column with n - 1 equations has two solutions, mirror images of each other. With n equations it has
one. Therefore (n - 1)(n - 2) / 2 known entries, distributed as n - 2, n - 3, ..., 0, leave finitely
many X, and exactly two for n = 2 (Li et al. 2022, Thm. 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrees.attacks.regression.exact_algebra import (
    Reals,
    factor,
    least_squares,
    norm,
    orthogonal_vector,
    root,
    shortest,
)
from fedtrees.attacks.regression.vertical import number, reals
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import Integers, integers, rounded
from fedtrees.messages.regression import (
    SIGMOID_BITS,
    SIGMOIDS,
    AverageWeights,
    CommonScales,
    design_of,
    gradient_of,
    stepped,
)

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
    known_columns: Sequence[Column],
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
    known_columns : sequence of Column
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
    order = sorted(range(len(known_columns)), key=lambda j: -len(known_columns[j].rows))
    beam = [Solution({})]
    for j in order:
        grown = [
            Solution({**s.columns, j: r}, s.cost + cost(j, L @ r) + IMPOSSIBLE * beyond)
            for s in beam
            for r, beyond in _candidates(L, known_columns[j], s.columns, direction, tiny, square, n)
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
    away = root(1 - x @ x) * orthogonal_vector(basis, n)
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


def common_scales(view: View) -> CommonScales | None:
    """Return the announced standardisation of the columns, None if there is none."""
    return next((m for _, m in view.messages(CommonScales)), None)


def averages(view: View) -> list[AverageWeights]:
    """Return the broadcast averages, one per round."""
    return [m for _, m in view.messages(AverageWeights)]


def rotated_rows(view: View, rows: int, precise: bool) -> Reals:
    """Return L, shape (c, r), with ``X' = L Q`` for the other client's standardised rows X.

    ``g_{k+1} - g_k = X' X (W_{k+1} - W_k)`` (Li et al. 2022, Eq. 7). The gradient of the other
    client is the remaining part of the average. The intercept is the last column.

    Parameters
    ----------
    view : View
        View of all clients except one.
    rows : int
        Number of rows of the other client.
    precise : bool
        Whether to use multiple-precision numbers.
    """
    p, scales, sent_averages = view.parameters, common_scales(view), averages(view)
    assert scales is not None
    b, logistic = int(p["bits"]), (p["kind"] or "logistic") == "logistic"
    logistic = logistic and bool(view.schema.classes)
    local_designs = []
    for local_data in view.own:
        values = np.column_stack(
            [local_data.X.astype(np.float64), np.asarray(local_data.y, dtype=np.float64)]
        )
        local_designs.append(design_of(values, scales, b, p["intercept"]))
    current: Integers = integers(np.zeros(local_designs[0][0].shape[1], dtype=np.int64))
    starts, gradients = [], []
    lr, alpha = (number(str(p[name]), precise) for name in ("lr", "alpha"))
    for message in sent_averages:
        local_steps = []
        for X, y in local_designs:
            g = gradient_of(X, y, current, b, logistic)
            local_steps.append(
                stepped(current, g, 2 * b + SIGMOID_BITS, len(X), p["lr"], p["alpha"])
            )
        # weights after the other client's step, in units of the average's last place
        # the adversary controls all clients except one
        total = integers(message.weights) * (len(local_designs) + 1)
        other_step = total - (
            sum(local_steps[1:], local_steps[0]) << (message.bits - b) if message.bits >= b else 0
        )
        if message.bits < b:
            other_step = (total << (b - message.bits)) - sum(local_steps[1:], local_steps[0])
        places = max(b, message.bits)
        start, end = reals(current, b, precise), reals(other_step, places, precise)
        starts.append(start)
        gradients.append(((1 - lr * alpha) * start - end) * rows / lr)
        current = rounded(integers(message.weights), message.bits - b)
    # a logistic regression has the factor of the linear Taylor term
    slope = number(SIGMOIDS[1][1], precise) if logistic else 1
    W, G = np.stack(starts, axis=1), np.stack(gradients, axis=1)
    # differences of rounds remove the constant term of the gradients
    D, E = W[:, 1:] - W[:, :-1], (G[:, 1:] - G[:, :-1]) / slope
    return factor(D, E, E, min(rows, len(W)))
