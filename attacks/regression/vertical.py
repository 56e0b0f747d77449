"""Others' columns, up to a rotation, from the residuals and scores of a few rounds."""

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
from fedtrees.attacks.regression.reals import Reals, basis_of, cholesky, factor, least_squares
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import Integers, decoded, unpacked
from fedtrees.messages.regression import moments, standardised


@dataclass(frozen=True, eq=False)
class Rotated:
    """Standardised columns of others but for a rotation, ``X = L R``."""

    L: Reals  # array, shape (m, r)
    # array, shape (r,), or None: ``R W``, where weights W of the others are known
    direction: Reals | None
    weights: Reals | None  # array, shape (n,), or None: w, of the columns that vary
    exact: bool  # whether residuals were solved for exactly


def reals(values: Integers, bits: int, precise: bool) -> Reals:
    """Return whole numbers with binary places as reals of the precision in use, or float64."""
    if not precise:
        return decoded(values, bits)
    flat = [gmpy2.mul_2exp(gmpy2.mpfr(int(v)), 0) / (gmpy2.mpz(1) << bits) for v in values.ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(values.shape)


def number(value: Any, precise: bool) -> Any:
    """Return a fraction or float as a real."""
    exact = Fraction(value)
    if not precise:
        return float(exact)
    return gmpy2.mpfr(exact.numerator) / exact.denominator


def rotated(view: View, read: ColumnsView, precise: bool, weights: Reals | None) -> Rotated:
    """Return what the rounds say of the others' columns.

    `precise`: Whether residuals are solved for in whole numbers, and what follows has the precision
    of the current context of gmpy2; else all is float64.
    `weights`: array or None. Of the others' columns that vary, at the end.
    """
    b = int(view.parameters["bits"])
    found = exact_residuals(view, read) if precise else None
    if found is not None:
        target = unpacked(read.active.target)
        D = [reals(d, residual_bits(view), True) for d in found]
        known = zip(read.batches, found, known_scores(view, read), strict=True)
        Z = [reals(scores_of(d, view, target[rows]) - own, 2 * b, True) for rows, d, own in known]
    else:
        D, Z = _approximate(view, read, precise)
    m, lr = len(D[0]), number(str(view.parameters["lr"]), precise)
    shrunk = 1 - lr * number(str(view.parameters["alpha"]), precise)
    if len(D) == 1:
        E = (shrunk * Z[0][:, :-1] - Z[0][:, 1:]) * m / lr
        L = factor(D[0][:, :-1], E, Z[0], min(read.hidden, m))
    else:
        L = _factor_of_batches(D, Z, shrunk, lr, read.hidden)
    if weights is None or not L.shape[1]:
        return Rotated(L, None, None, found is not None)
    k = (read.rounds - 1) % len(D)
    part = L[read.batches[k]]
    step = (lr / len(part)) * (part.T @ D[k][:, -1])
    direction = shrunk * least_squares(part, Z[k][:, -1]) - step
    return Rotated(L, direction, weights, found is not None)


def _factor_of_batches(D: list[Reals], Z: list[Reals], shrunk: Any, lr: Any, n: int) -> Reals:
    """Return L, shape (m, n), of batches that are met in turn.

    ``X_b = Q_b R_b`` with a basis Q_b of its scores. From one batch to the next, weights change by
    one step: ``Q_c' z_c = R_c W' = T (s Q_b' z_b - lr S Q_b' d_b / m_b)``, with ``T R_b = R_c`` and
    ``S = R_b R_b'``. T and T S are linear in what is known, so that 2 n visits tell them; S of the
    first batch begins the chain.
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
        found = least_squares(before[: len(after)], after)
        T, TS = found[:n].T, found[n:].T
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
    """Return residuals and scores, by batch, of gradients that were rounded: least squares."""
    g, places = read.opened()
    values, parts = read.values, []
    for k, rows in enumerate(read.batches):
        A = reals(values[rows], int(view.parameters["bits"]), precise)
        D = least_squares(A.T, reals(g[:, k :: len(read.batches)], places, precise))
        parts.append((D, _scores(D, view, read, rows, precise)))
    own = known_scores(view, read)
    b = 2 * int(view.parameters["bits"])
    found = zip(parts, own, strict=True)
    return [D for D, _ in parts], [z - reals(known, b, precise) for (_, z), known in found]


def _scores(D: Reals, view: View, read: ColumnsView, rows: slice, precise: bool) -> Reals:
    """Return everybody's scores together of a batch's residuals."""
    b, link = int(view.parameters["bits"]), link_of(view)
    answer = D + reals(unpacked(read.active.target)[rows], b, precise)[:, None]
    c = [number(v, precise) for v in link]
    z = (answer - c[0]) / c[1]
    for _ in range(60 if len(c) > 2 else 0):  # Newton; beyond the turning point there is no answer
        slope = c[1] + 3 * c[3] * z * z
        z = z - (c[0] + c[1] * z + c[3] * z**3 - answer) / np.where(slope < c[1] / 8, c[1], slope)
    return z


def asked_weights(view: View, read: ColumnsView, precise: bool) -> Reals | None:
    """Return the others' weights by questions to the endpoint, one for each column and one more.

    Li et al. (2022, Sec. 4.1). Columns that do not vary are left out; None where the endpoint
    answers something else than scores, or not so many.
    """
    oracle, b = view.oracle, int(view.parameters["bits"])
    hidden = [(s, k) for s in read.others for k in np.flatnonzero(s.scale > 0)]
    if (
        oracle is None
        or oracle.answers != "score"
        or oracle.records != "chosen"
        or oracle.left < len(hidden) + 1
        or len(view.own) > 1
    ):
        return None
    logistic = len(view.schema.classes) > 0 and link_of(view)[0] != 0
    rows = np.zeros((len(hidden) + 1, len(view.schema.features)), dtype=np.float32)
    mean, _ = moments(view.own[0].X)
    rows[:, view.own[0].columns] = mean
    for s in read.others:
        rows[:, s.columns] = s.mean
    # A number is answered in full: steps as long as float64 allows leave the most places of W.
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
        both = standardised(
            rows[[0, place]][:, s.columns[column]], s.mean[column], s.scale[column], b
        )
        apart = decoded(both[1, 0] - both[0], b)[0]
        weights.append((z[place] - z[0]) / apart)
    if b <= ON_THE_GRID:
        weights = [round(w * 2.0**b) / 2.0**b for w in weights]
    if not precise:
        return np.array(weights)
    return np.array([*(gmpy2.mpfr(w) for w in weights), None], dtype=object)[:-1]


#: Up to so many binary places a weight is told exactly by float64 scores.
ON_THE_GRID = 44


def _cut(answers: Any) -> bool:
    """Tell whether an answer was cut at 0 or 1."""
    return bool(((answers <= 0) | (answers >= 1)).any())
