"""What an arbiter and one it tells open together: labels at once, columns by linear algebra."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fedtrees.attacks.regression.columns import (
    SCORE_BITS,
    Design,
    link_of,
    residual_bits,
    scores_of,
)
from fedtrees.attacks.regression.modular import rank, solved
from fedtrees.core.guess import Claim, Entries, Labels
from fedtrees.core.local_data import LocalData
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import Integers, decoded, integers, unpacked
from fedtrees.messages.regression import (
    SIGMOID_BITS,
    ColumnScales,
    Gradient,
    OpenedVector,
    limited,
    shortened,
    standardised,
)

Floats = NDArray[np.float64]

#: How much less equal factors count than that columns add up to 0.
_EASE = 1e-2


def colluding(view: View) -> bool:
    """Tell whether an arbiter opens residuals of all rows for another principal."""
    whole = not view.parameters.get("batch")
    return whole and next(view.messages(OpenedVector), None) is not None


def opened_claims(view: View) -> list[Claim]:
    """Return labels, where nobody here has them, and the columns that weights tell.

    Scores are linear in the columns, ``z = X W``; the arbiter told everybody's gradients, which
    give weights, with noise or without. As many rounds as a party has columns, and the first, at
    which weights are zero, are enough: no value has to be known, and numbers are whole.
    """
    vectors = {(m.party, m.round): unpacked(m.values) for _, m in view.messages(OpenedVector)}
    residuals = [vectors["", k] for k in range(1 + max(r for p, r in vectors if not p))]
    ids, claims = view.own[0].ids, list[Claim]()
    active = any(held.y is not None for held in view.own)
    if not active:
        target = _target(residuals[0], view)
        if view.schema.classes:
            y = np.array([int(v) >> int(view.parameters["bits"]) for v in target])
            claims.append(Labels(ids, y, np.eye(2)[y]))
    others = [n for n, r in view.roles.items() if r in ("active", "passive")]
    others = [n for n in others if n not in view.principals]
    weights = {n: _weights(view, n, len(ids), len(residuals)) for n in others}
    if active:
        for name in others:
            z = np.stack([vectors[name, k] for k in range(len(residuals))], axis=1)
            claims += _columns(view, name, weights[name], z)
    elif others:
        z = scores_of(np.stack(residuals, axis=1), view, target) - _own_scores(view, len(residuals))
        if len(others) == 1:
            claims += _columns(view, others[0], weights[others[0]], z)
    return claims


def _target(first: Integers, view: View) -> Integers:
    """Return what residuals say at weights of zero."""
    b, bits = int(view.parameters["bits"]), residual_bits(view)
    link = int(link_of(view)[0] * (1 << SIGMOID_BITS)) << (bits - SIGMOID_BITS)
    found: Integers = (link - first) >> (bits - b)
    return found


def _weights(view: View, name: str, rows: int, rounds: int) -> Integers:
    """Return a party's weights at the start of every round, shape (c, rounds)."""
    told = tuple(m for _, m in view.messages(Gradient) if m.party == name)[:rounds]
    blank = integers(np.zeros((rows, len(told[0].values)), dtype=np.int64))
    return np.stack(Design(name, blank, told).weights(view)[:rounds], axis=1)


def _own_scores(view: View, rounds: int) -> Any:
    """Return what the principals' columns bring to the scores, shape (m, rounds)."""
    total: Any = 0
    b, bounds = int(view.parameters["bits"]), view.defense.row_bounds
    scales = [m for _, m in view.messages(ColumnScales)]
    for held in view.own:
        told = next(s for s in scales if np.array_equal(s.columns, held.columns))
        design = shortened(standardised(held.X, told.mean, told.scale, b), b, bounds)
        scores = design @ _weights(view, told.party, len(design), rounds)
        total = total + limited(scores, 2 * b, bounds)
    return total


def _columns(view: View, name: str, W: Integers, Z: Integers) -> list[Claim]:
    """Claim a party's columns, none where no round tells of them."""
    ids = view.own[0].ids
    told = next((m for _, m in view.messages(ColumnScales) if m.party == name), None)
    there = np.any(W != 0, axis=1)  # of constant columns weights stay zero, but for noise
    if told is not None:
        there &= told.scale > 0
    if not there.any():
        return []
    X = np.zeros((len(ids), len(W)))
    X[:, there] = _rows(view, W[there], Z, told)
    if told is not None:
        return [_claim(name, ids, told.columns, told.mean + told.scale * X)]
    mine = np.concatenate([held.columns for held in view.own])
    columns = np.setdiff1d(np.arange(len(view.schema.features)), mine)
    kept = [_raw(view, int(c), x, view.own[0]) for c, x in zip(columns, X.T, strict=False)]
    ready = [k for k, x in enumerate(kept) if x is not None]
    if not ready:
        return []
    values = np.stack([x for x in kept if x is not None], axis=1)
    return [_claim(name, ids, columns[ready], values)]


def _rows(view: View, W: Integers, Z: Integers, told: ColumnScales | None) -> Floats:
    """Return rows of standardised columns by their scores in all rounds, float64, shape (m, c).

    A score at the bound of a defense is left out. Rows of which fewer rounds tell than there are
    columns are the shortest that fit; those that a defense shortened are stretched.
    """
    b, bounds = int(view.parameters["bits"]), view.defense.row_bounds
    inside = np.ones(Z.shape, dtype=bool)
    if bounds is not None:
        inside = abs(Z) < limited(np.array([1 << 200], dtype=object), 2 * b, bounds)
    inside &= np.any(W != 0, axis=0)
    X, told_in_full = np.zeros((len(Z), len(W))), 0
    rounds, of = np.unique(inside, axis=0, return_inverse=True)
    for k, these in enumerate(rounds):
        A, rows = W[:, these].T, np.flatnonzero(of.ravel() == k)
        B = Z[np.ix_(rows, np.flatnonzero(these))].T
        found = solved(A, B, b + SCORE_BITS) if rank(A) == len(W) else None
        if found is not None:
            X[rows] = decoded(found.T, b)
            told_in_full += len(rows)
        elif these.any():
            X[rows] = np.linalg.lstsq(decoded(A, b), decoded(B, 2 * b), rcond=None)[0].T
    if bounds is None:
        return X
    own = told is not None and not told.declared
    return X * _stretch(X, bounds[0], own, float(2 * told_in_full > len(X)))[:, None]


def _stretch(X: Floats, norm: float, standardised: bool, squares: float) -> Floats:
    """Return how much longer rows were that were shortened to a norm, 1 or more, shape (m,).

    Where columns are ``standardised`` by their own values, they add up to 0, and their squares,
    which have so much weight, to the number of rows: least squares, from equal factors.
    """
    m, c = X.shape
    short, factor = np.linalg.norm(X, axis=1) >= norm * (1 - 1e-9), np.ones(len(X))
    if not short.any():
        return factor
    length = (X**2).sum(axis=1)
    alike = np.sqrt(max(m * c - length[~short].sum(), 0.0) / length[short].sum())
    factor[short] = near = np.full(int(short.sum()), max(alike, 1.0))
    A, rest, left = X[short].T, X[~short].sum(axis=0), m - (X[~short] ** 2).sum(axis=0)

    def off(f: Floats) -> Floats:
        ends = A @ f + rest, squares / 2 * (A**2 @ f**2 - left)
        return np.concatenate([*ends, _EASE * (f - near)])

    def slopes(f: Floats) -> Floats:
        return np.vstack([A, squares * A**2 * f, _EASE * np.eye(len(f))])

    if standardised:
        factor[short] = least_squares(off, near, slopes, bounds=(1 - 1e-9, np.inf)).x
    return factor


def _raw(view: View, column: int, x: NDArray[np.float64], held: LocalData) -> Any:
    """Return values of a standardised column: by those that are known, or the declared range."""
    e = view.entries
    if e is not None:
        row_of = {i: k for k, i in enumerate(held.ids.tolist())}
        mine = [k for k in np.flatnonzero(e.columns == column).tolist() if int(e.ids[k]) in row_of]
        at = x[[row_of[int(e.ids[k])] for k in mine]]
        if len(mine) > 1 and np.ptp(at) > 0:
            value = e.values[mine].astype(np.float64)
            slope = (at - at.mean()) @ (value - value.mean()) / ((at - at.mean()) ** 2).sum()
            return value.mean() + slope * (x - at.mean())
    ends = view.schema.features[column].declared_range
    if ends is None or not np.ptp(x) > 0:
        return None
    return ends[0] + (x - x.min()) / np.ptp(x) * (ends[1] - ends[0])


def _claim(owner: str, ids: Any, columns: Any, values: NDArray[np.float64]) -> Entries:
    """Claim a table of values."""
    rows, features = np.meshgrid(ids, columns, indexing="ij")
    value = values.astype(np.float32).astype(np.float64).ravel()
    return Entries(owner, rows.ravel(), features.ravel().astype(np.int64), value)
