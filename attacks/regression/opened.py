"""Recover labels and columns if the arbiter colludes: labels directly, columns linearly."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fedtrees.attacks.regression.columns import (
    SCORE_BITS,
    Design,
    claim_table,
    entries_of_column,
    link_of,
    residual_bits,
    scores_of,
)
from fedtrees.attacks.regression.exact_algebra import rank, solve_integers
from fedtrees.core.claims import Claim, Labels
from fedtrees.core.local_data import LocalData
from fedtrees.core.view import View
from fedtrees.linear import (
    SIGMOID_BITS,
    Integers,
    clip_scores,
    from_fixed_point,
    shorten_rows,
    standardise_rows,
    to_python_integers,
    unpack_integers,
)
from fedtrees.messages.regression import ColumnScales, Gradient, OpenedVector

Floats = NDArray[np.float64]

#: Weight of equal factors, relative to the condition that columns add up to 0.
_EASE = 1e-2


def colluding(view: View) -> bool:
    """Return whether the adversary has an arbiter that decrypts residuals of all rows."""
    full_batches = not view.parameters.get("batch")
    return full_batches and next(view.messages(OpenedVector), None) is not None


def opened_claims(view: View) -> list[Claim]:
    """Return labels, if no party of the adversary has them, and the columns that weights reveal.

    Scores are linear in the columns, ``z = X W``. The arbiter decrypts all gradients, which
    determine the weights, with or without noise. One round more than a party has columns suffices,
    because weights are zero in the first. No known values are needed, and all numbers are integers.
    """
    vectors = {
        (m.party, m.round): unpack_integers(m.values) for _, m in view.messages(OpenedVector)
    }
    residuals = [vectors["", k] for k in range(1 + max(r for p, r in vectors if not p))]
    ids, claims = view.local_data[0].ids, list[Claim]()
    active = any(local_data.y is not None for local_data in view.local_data)
    if not active:
        target = _target(residuals[0], view)
        if view.schema.classes:
            # labels are fixed-point numbers 0 or 1
            y = np.array([int(v) >> int(view.parameters["bits"]) for v in target])
            claims.append(Labels(ids, y, np.eye(2)[y]))
    other_parties = [n for n, r in view.roles.items() if r in ("active", "passive")]
    other_parties = [n for n in other_parties if n not in view.principals]
    weights = {n: _weights(view, n, len(ids), len(residuals)) for n in other_parties}
    if active:
        for name in other_parties:
            z = np.stack([vectors[name, k] for k in range(len(residuals))], axis=1)
            claims += _columns(view, name, weights[name], z)
    elif other_parties:
        z = scores_of(np.stack(residuals, axis=1), view, target) - _own_scores(view, len(residuals))
        # with several parties, only the sum of their scores is known
        if len(other_parties) == 1:
            claims += _columns(view, other_parties[0], weights[other_parties[0]], z)
    return claims


def _target(first: Integers, view: View) -> Integers:
    """Return the targets from the residuals at zero weights."""
    b, bits = int(view.parameters["bits"]), residual_bits(view)
    link = int(link_of(view)[0] * (1 << SIGMOID_BITS)) << (bits - SIGMOID_BITS)
    target: Integers = (link - first) >> (bits - b)
    return target


def _weights(view: View, name: str, rows: int, rounds: int) -> Integers:
    """Return a party's weights at the start of every round, shape (c, rounds)."""
    gradients = tuple(m for _, m in view.messages(Gradient) if m.party == name)[:rounds]
    blank = to_python_integers(np.zeros((rows, len(gradients[0].values)), dtype=np.int64))
    return np.stack(Design(name, blank, gradients).weights(view)[:rounds], axis=1)


def _own_scores(view: View, rounds: int) -> Any:
    """Return the contribution of the adversary's columns to the scores, shape (m, rounds)."""
    total: Any = 0
    b, bounds = int(view.parameters["bits"]), view.defense.requirements.row_bounds
    scales = [m for _, m in view.messages(ColumnScales)]
    for local_data in view.local_data:
        scales_of_party = next(s for s in scales if np.array_equal(s.columns, local_data.columns))
        design = shorten_rows(
            standardise_rows(local_data.X, scales_of_party.mean, scales_of_party.scale, b),
            b,
            bounds,
        )
        scores = design @ _weights(view, scales_of_party.party, len(design), rounds)
        total = total + clip_scores(scores, 2 * b, bounds)
    return total


def _columns(view: View, name: str, W: Integers, Z: Integers) -> list[Claim]:
    """Return a claim about a party's columns, or none if no round reveals them."""
    ids = view.local_data[0].ids
    party_scales = next((m for _, m in view.messages(ColumnScales) if m.party == name), None)
    is_varying = np.any(W != 0, axis=1)  # constant columns have zero weights, except for noise
    if party_scales is not None:
        is_varying &= party_scales.scale > 0
    if not is_varying.any():
        return []
    X = np.zeros((len(ids), len(W)))
    X[:, is_varying] = _rows(view, W[is_varying], Z, party_scales)
    if party_scales is not None:
        return [
            claim_table(name, ids, party_scales.columns, party_scales.mean + party_scales.scale * X)
        ]
    local_columns = np.concatenate([local_data.columns for local_data in view.local_data])
    columns = np.setdiff1d(np.arange(len(view.schema.features)), local_columns)
    unscaled = [
        _raw(view, int(c), x, view.local_data[0]) for c, x in zip(columns, X.T, strict=False)
    ]
    ready = [k for k, x in enumerate(unscaled) if x is not None]
    if not ready:
        return []
    values = np.stack([x for x in unscaled if x is not None], axis=1)
    return [claim_table(name, ids, columns[ready], values)]


def _rows(view: View, W: Integers, Z: Integers, party_scales: ColumnScales | None) -> Floats:
    """Return rows of standardised columns from their scores in all rounds, float64, (m, c).

    A score at the bound of a defense is ignored. Rows with fewer rounds than columns are the
    shortest solutions. Rows that a defense shortened are rescaled.
    """
    b, bounds = int(view.parameters["bits"]), view.defense.requirements.row_bounds
    inside = np.ones(Z.shape, dtype=bool)
    if bounds is not None:
        inside = abs(Z) < clip_scores(np.array([1 << 200], dtype=object), 2 * b, bounds)
    # rounds with zero weights contain no information
    inside &= np.any(W != 0, axis=0)
    X, determined_rows = np.zeros((len(Z), len(W))), 0
    rounds, of = np.unique(inside, axis=0, return_inverse=True)
    for k, these in enumerate(rounds):
        A, rows = W[:, these].T, np.flatnonzero(of.ravel() == k)
        B = Z[np.ix_(rows, np.flatnonzero(these))].T
        solution = solve_integers(A, B, b + SCORE_BITS) if rank(A) == len(W) else None
        if solution is not None:
            X[rows] = from_fixed_point(solution.T, b)
            determined_rows += len(rows)
        elif these.any():
            X[rows] = np.linalg.lstsq(
                from_fixed_point(A, b), from_fixed_point(B, 2 * b), rcond=None
            )[0].T
    if bounds is None:
        return X
    is_standardised = party_scales is not None and not party_scales.declared
    return X * _stretch(X, bounds[0], is_standardised, float(2 * determined_rows > len(X)))[:, None]


def _stretch(X: Floats, norm: float, standardised: bool, squares: float) -> Floats:
    """Return the factor, at least 1, by which each row was shortened to a norm, shape (m,).

    If the columns are ``standardised`` on the party's data, they add up to 0, and their squares to
    the number of rows. These conditions are met in the least-squares sense, starting from equal
    factors. ``squares`` is the weight of the second condition.
    """
    m, c = X.shape
    short, factor = np.linalg.norm(X, axis=1) >= norm * (1 - 1e-9), np.ones(len(X))
    if not short.any():
        return factor
    length = (X**2).sum(axis=1)
    equal_factor = np.sqrt(max(m * c - length[~short].sum(), 0.0) / length[short].sum())
    factor[short] = near = np.full(int(short.sum()), max(equal_factor, 1.0))
    A, rest, left = X[short].T, X[~short].sum(axis=0), m - (X[~short] ** 2).sum(axis=0)

    def off(f: Floats) -> Floats:
        ends = A @ f + rest, squares / 2 * (A**2 @ f**2 - left)
        return np.concatenate([*ends, _EASE * (f - near)])

    def slopes(f: Floats) -> Floats:
        return np.vstack([A, squares * A**2 * f, _EASE * np.eye(len(f))])

    if standardised:
        factor[short] = least_squares(off, near, slopes, bounds=(1 - 1e-9, np.inf)).x
    return factor


def _raw(view: View, column: int, x: NDArray[np.float64], local_data: LocalData) -> Any:
    """Return the values of a standardised column, using known values or the declared range."""
    row_of = {i: k for k, i in enumerate(local_data.ids.tolist())}
    rows, values = entries_of_column(view, column, row_of)
    at, value = x[rows], values.astype(np.float64)
    if len(rows) > 1 and np.ptp(at) > 0:
        slope = (at - at.mean()) @ (value - value.mean()) / ((at - at.mean()) ** 2).sum()
        return value.mean() + slope * (x - at.mean())
    ends = view.schema.features[column].declared_range
    if ends is None or not np.ptp(x) > 0:
        return None
    return ends[0] + (x - x.min()) / np.ptp(x) * (ends[1] - ends[0])
