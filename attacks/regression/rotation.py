"""Recover rows or columns of other parties up to a rotation, and determine the rotation.

Residuals and scores of a few rounds reveal the columns of a vertical regression up to a rotation,
and averaged weights reveal the Gram matrix of the rows of a horizontal one. ``X = L R`` with a
known L, shape (m, n), and an orthogonal R. Each column of R has length 1, is orthogonal to the
columns before it, and may satisfy linear equations: one for each known entry of its column of X,
and one from ``X W = Z``. A column with n - 1 equations has two solutions, mirror images of each
other. With n equations it has one. Therefore (n - 1)(n - 2) / 2 known entries, distributed as
n - 2, n - 3, ..., 0, leave finitely many X, and exactly two for n = 2 (Li et al. 2022, Thm. 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import gmpy2
import numpy as np

from fedtrees.attacks.regression.columns import (
    ColumnsView,
    exact_residuals,
    known_scores,
    link_of,
    residual_bits,
    scores_of,
)
from fedtrees.attacks.regression.exact_algebra import (
    Reals,
    basis_of,
    cholesky,
    factor,
    least_squares,
    norm,
    orthogonal_vector,
    root,
    shortest,
)
from fedtrees.core.view import View
from fedtrees.linear import (
    SIGMOID_BITS,
    SIGMOIDS,
    Integers,
    build_design,
    column_moments,
    compute_gradient,
    drop_places,
    from_fixed_point,
    standardise_rows,
    take_step,
    to_python_integers,
    unpack_integers,
)
from fedtrees.messages.regression import AverageWeights, CommonScales


@dataclass(frozen=True, eq=False)
class Rotated:
    """Standardised columns of other parties up to a rotation, ``X = L R``.

    Attributes
    ----------
    L : array, shape (m, r)
        Factor of ``X X'``.
    direction : array, shape (r,), or None
        ``R W``, if the weights W of the other parties are known.
    weights : array, shape (n,), or None
        Weights of the columns that are not constant.
    exact : bool
        Whether residuals were solved for exactly.
    """

    L: Reals
    # both are None if the endpoint does not reveal the weights
    direction: Reals | None
    weights: Reals | None
    exact: bool


def reals(values: Integers, bits: int, precise: bool) -> Reals:
    """Return fixed-point integers as reals of the precision in use, or as float64.

    Parameters
    ----------
    values : object array
        Integers.
    bits : int
        Number of binary places.
    precise : bool
        Whether to use the precision of the context of gmpy2.
    """
    if not precise:
        return from_fixed_point(values, bits)
    flat = [gmpy2.mul_2exp(gmpy2.mpfr(int(v)), 0) / (gmpy2.mpz(1) << bits) for v in values.ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(values.shape)


def number(value: Any, precise: bool) -> Any:
    """Return a fraction or float as a real."""
    exact = Fraction(value)
    if not precise:
        return float(exact)
    return gmpy2.mpfr(exact.numerator) / exact.denominator


def recover_rotated(view: View, read: ColumnsView, precise: bool, weights: Reals | None) -> Rotated:
    """Return the other parties' columns up to a rotation, from the rounds of a regression.

    Parameters
    ----------
    view : View
        Parameters of the protocol.
    read : ColumnsView
        The adversary's gradients and columns.
    precise : bool
        Whether residuals are solved for in integers, followed by computations with the precision of
        the context of gmpy2. Otherwise all computations use float64.
    weights : array or None
        Final weights of the other parties' columns that are not constant.
    """
    b = int(view.parameters["bits"])
    residuals = exact_residuals(view, read) if precise else None
    if residuals is not None:
        target = unpack_integers(read.active.target)
        D = [reals(d, residual_bits(view), True) for d in residuals]
        batches = zip(read.batches, residuals, known_scores(view, read), strict=True)
        Z = [
            reals(scores_of(d, view, target[rows]) - local_scores, 2 * b, True)
            for rows, d, local_scores in batches
        ]
    else:
        D, Z = _approximate(view, read, precise)
    m, lr = len(D[0]), number(str(view.parameters["lr"]), precise)
    # weight decay of one step
    shrunk = 1 - lr * number(str(view.parameters["alpha"]), precise)
    if len(D) == 1:
        # the change of the scores by a step is X X' times the residuals
        E = (shrunk * Z[0][:, :-1] - Z[0][:, 1:]) * m / lr
        L = factor(D[0][:, :-1], E, Z[0], min(read.hidden, m))
    else:
        L = _factor_of_batches(D, Z, shrunk, lr, read.hidden)
    if weights is None or not L.shape[1]:
        return Rotated(L, None, None, residuals is not None)
    k = (read.rounds - 1) % len(D)
    part = L[read.batches[k]]
    step = (lr / len(part)) * (part.T @ D[k][:, -1])
    direction = shrunk * least_squares(part, Z[k][:, -1]) - step
    return Rotated(L, direction, weights, residuals is not None)


def _factor_of_batches(D: list[Reals], Z: list[Reals], shrunk: Any, lr: Any, n: int) -> Reals:
    """Return L, shape (m, n), for batches that are used in turn.

    ``X_b = Q_b R_b`` with a basis Q_b of its scores. From one batch to the next, weights change by
    one step: ``Q_c' z_c = R_c W' = T (s Q_b' z_b - lr S Q_b' d_b / m_b)``, with ``T R_b = R_c`` and
    ``S = R_b R_b'``. T and T S enter linearly, so that 2 n visits determine them. S of the first
    batch starts the chain.
    """
    Q = [basis_of(z, n) for z in Z]
    nothing = np.zeros((sum(map(len, D)), 0), dtype=D[0].dtype)
    if min(q.shape[1] for q in Q) < n:
        return nothing
    parts: list[Reals] = []
    for k in range(len(D) - 1):
        after = (Q[k + 1].T @ Z[k + 1]).T
        scores, gradients = Q[k].T @ Z[k], Q[k].T @ D[k]
        before = np.concatenate([shrunk * scores, -lr / len(D[k]) * gradients]).T
        solution = least_squares(before[: len(after)], after)
        T, TS = solution[:n].T, solution[n:].T
        if not parts:
            S = least_squares(T, TS)
            R = cholesky((S + S.T) / 2)
            if R.shape[1] < n:
                return nothing
            parts.append(Q[0] @ R)
        R = T @ R
        parts.append(Q[k + 1] @ R)
    return np.concatenate(parts)


def _approximate(view: View, read: ColumnsView, precise: bool) -> tuple[list[Reals], list[Reals]]:
    """Return residuals and scores by batch for rounded gradients, by least squares."""
    g, places = read.open_gradients()
    values, parts = read.values, []
    for k, rows in enumerate(read.batches):
        A = reals(values[rows], int(view.parameters["bits"]), precise)
        D = least_squares(A.T, reals(g[:, k :: len(read.batches)], places, precise))
        parts.append((D, _scores(D, view, read, rows, precise)))
    local_scores = known_scores(view, read)
    b = 2 * int(view.parameters["bits"])
    pairs = zip(parts, local_scores, strict=True)
    return [D for D, _ in parts], [
        z - reals(local_part, b, precise) for (_, z), local_part in pairs
    ]


def _scores(D: Reals, view: View, read: ColumnsView, rows: slice, precise: bool) -> Reals:
    """Return the total scores of a batch from its residuals."""
    b, link = int(view.parameters["bits"]), link_of(view)
    answer = D + reals(unpack_integers(read.active.target)[rows], b, precise)[:, None]
    c = [number(v, precise) for v in link]
    z = (answer - c[0]) / c[1]
    # Newton's method. There is no solution beyond the turning point.
    for _ in range(60 if len(c) > 2 else 0):
        slope = c[1] + 3 * c[3] * z * z
        z = z - (c[0] + c[1] * z + c[3] * z**3 - answer) / np.where(slope < c[1] / 8, c[1], slope)
    return z


def asked_weights(view: View, read: ColumnsView, precise: bool) -> Reals | None:
    """Return the other parties' weights, from one query per column and one more (Li et al. 2022).

    Sec. 4.1 of the paper. Constant columns are left out.

    Parameters
    ----------
    view : View
        Contains the prediction endpoint.
    read : ColumnsView
        Scales of the other parties' columns.
    precise : bool
        Whether to return multiple-precision numbers.

    Returns
    -------
    array, shape (n,), or None
        None if the endpoint does not return scores or does not answer enough queries.
    """
    oracle, b = view.oracle, int(view.parameters["bits"])
    hidden = [(s, k) for s in read.other_scales for k in np.flatnonzero(s.scale > 0)]
    if (
        oracle is None
        or oracle.answers != "score"
        or oracle.records != "chosen"
        or oracle.left < len(hidden) + 1
        or len(view.local_data) > 1
    ):
        return None
    logistic = len(view.schema.classes) > 0 and link_of(view)[0] != 0
    rows = np.zeros((len(hidden) + 1, len(view.schema.features)), dtype=np.float32)
    mean, _ = column_moments(view.local_data[0].X)
    # local columns at their mean contribute nothing to the score
    rows[:, view.local_data[0].columns] = mean
    for s in read.other_scales:
        rows[:, s.columns] = s.mean
    # Numeric predictions are not clipped, and the largest steps give the most digits of W.
    step = 1.0 if view.schema.classes else 2.0**20
    for place, (s, k) in enumerate(hidden, 1):
        rows[place, s.columns[k]] += np.float32(step * s.scale[k])
    answers = np.asarray(oracle.query(rows), dtype=np.float64)
    if logistic:
        with np.errstate(divide="ignore"):
            z = np.log(answers) - np.log1p(-answers)
    else:
        z = (answers - read.active.center) / read.active.spread
    if not np.isfinite(z).all() or (not logistic and view.schema.classes and _cut(answers)):
        return None
    weights = []
    for place, (s, k) in enumerate(hidden, 1):
        column = slice(k, k + 1)
        both = standardise_rows(
            rows[[0, place]][:, s.columns[column]], s.mean[column], s.scale[column], b
        )
        apart = from_fixed_point(both[1, 0] - both[0], b)[0]
        weights.append((z[place] - z[0]) / apart)
    if b <= ON_THE_GRID:
        # weights are fixed-point numbers, so that rounding removes the error of the answers
        weights = [round(w * 2.0**b) / 2.0**b for w in weights]
    if not precise:
        return np.array(weights)
    return np.array([*(gmpy2.mpfr(w) for w in weights), None], dtype=object)[:-1]


#: Largest number of binary places of a weight that float64 scores determine exactly.
ON_THE_GRID = 44


def _cut(answers: Any) -> bool:
    """Return whether an answer was clipped at 0 or 1."""
    return bool(((answers <= 0) | (answers >= 1)).any())


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
    for local_data in view.local_data:
        values = np.column_stack(
            [local_data.X.astype(np.float64), np.asarray(local_data.y, dtype=np.float64)]
        )
        local_designs.append(build_design(values, scales.mean, scales.scale, b, p["intercept"]))
    current: Integers = to_python_integers(np.zeros(local_designs[0][0].shape[1], dtype=np.int64))
    starts, gradients = [], []
    lr, alpha = (number(str(p[name]), precise) for name in ("lr", "alpha"))
    for message in sent_averages:
        local_steps = []
        for X, y in local_designs:
            g = compute_gradient(X, y, current, b, logistic)
            local_steps.append(
                take_step(current, g, 2 * b + SIGMOID_BITS, len(X), p["lr"], p["alpha"])
            )
        # weights after the other client's step, in units of the average's last place
        # the adversary controls all clients except one
        total = to_python_integers(message.weights) * (len(local_designs) + 1)
        other_step = total - (
            sum(local_steps[1:], local_steps[0]) << (message.bits - b) if message.bits >= b else 0
        )
        if message.bits < b:
            other_step = (total << (b - message.bits)) - sum(local_steps[1:], local_steps[0])
        places = max(b, message.bits)
        start, end = reals(current, b, precise), reals(other_step, places, precise)
        starts.append(start)
        gradients.append(((1 - lr * alpha) * start - end) * rows / lr)
        current = drop_places(to_python_integers(message.weights), message.bits - b)
    # a logistic regression has the factor of the linear Taylor term
    slope = number(SIGMOIDS[1][1], precise) if logistic else 1
    W, G = np.stack(starts, axis=1), np.stack(gradients, axis=1)
    # differences of rounds remove the constant term of the gradients
    D, E = W[:, 1:] - W[:, :-1], (G[:, 1:] - G[:, :-1]) / slope
    return factor(D, E, E, min(rows, len(W)))
