"""Gradients and columns of the adversary in a vertical regression, and the residuals they imply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.regression.exact_algebra import rank, solve_integers
from fedtrees.core.claims import Entries
from fedtrees.core.view import View
from fedtrees.linear import (
    SIGMOID_BITS,
    Integers,
    clip_scores,
    pack_integers,
    shorten_rows,
    split_batches,
    standardise_rows,
    take_step,
    to_fixed_point,
    to_python_integers,
    unpack_integers,
)
from fedtrees.linear import link_polynomial as link_in
from fedtrees.messages.regression import ColumnScales, Gradient, OwnDesign

#: Binary digits before the point of scores. Larger ones do not occur, as sigmoids saturate.
SCORE_BITS = 12


@dataclass(frozen=True, eq=False)
class Design:
    """Columns and gradients of one party of the adversary.

    Attributes
    ----------
    name : str
        The party.
    values : object array, shape (m, c)
        Standardised columns as integers with the protocol's binary places.
    gradients : tuple of Gradient
        One per round.
    """

    name: str
    values: Integers
    gradients: tuple[Gradient, ...]

    def weights(self, view: View) -> list[Integers]:
        """Return its weights at the start of every round, and at the end."""
        p, weights = (
            view.parameters,
            [to_python_integers(np.zeros(self.values.shape[1], dtype=np.int64))],
        )
        for message in self.gradients:
            places = message.bits - p["bits"]
            gradient = unpack_integers(message.values)
            rows = split_batches(len(self.values), p["batch"])
            # batches are used in turn
            batch = rows[(len(weights) - 1) % len(rows)]
            m = batch.stop - batch.start
            weights.append(take_step(weights[-1], gradient, places, m, p["lr"], p["alpha"]))
        return weights


@dataclass(frozen=True, eq=False)
class ColumnsView:
    """The adversary's part of a vertical regression.

    Attributes
    ----------
    active : OwnDesign
        Columns and targets of the active party.
    designs : tuple of Design
        Parties of the adversary that have data.
    other_scales : tuple of ColumnScales
        Means and scales of the columns of all remaining parties.
    rounds : int
        Number of rounds of which all gradients are known.
    batches : tuple of slice
        Rows of the rounds, in turn.
    """

    active: OwnDesign
    designs: tuple[Design, ...]
    other_scales: tuple[ColumnScales, ...]
    rounds: int
    batches: tuple[slice, ...]

    @classmethod
    def of(cls, view: View) -> ColumnsView | None:
        """Read a view. The result is None without the active party's columns."""
        noted = next((m for _, m in view.messages(OwnDesign)), None)
        if noted is None or not view.local_data:
            return None
        messages = [m for _, m in view.messages(Gradient)]
        scales = [m for _, m in view.messages(ColumnScales)]
        designs = []
        for local_data in view.local_data:
            if local_data.y is not None:
                name = next(n for n, role in view.roles.items() if role == "active")
                values = unpack_integers(noted.design)
            else:
                same = [s for s in scales if np.array_equal(s.columns, local_data.columns)]
                if not same:
                    continue
                scaling = same[0]
                name, bits = scaling.party, int(view.parameters["bits"])
                values = standardise_rows(local_data.X, scaling.mean, scaling.scale, bits)
                values = shorten_rows(values, bits, view.defense.requirements.row_bounds)
            gradients = tuple(m for m in messages if m.party == name)
            designs.append(Design(name, values, gradients))
        rounds = min((len(d.gradients) for d in designs), default=0)
        remaining = tuple(s for s in scales if s.party not in view.principals)
        batches = split_batches(len(noted.target), view.parameters["batch"])
        return cls(noted, tuple(designs), remaining, rounds, batches)

    def add_noise(self, variance: float, rng: np.random.Generator) -> ColumnsView:
        """Return a copy with additional normal error of this variance in every gradient."""

        def moved(m: Gradient) -> Gradient:
            values = unpack_integers(m.values)
            # the error has the same fixed-point precision as the gradient
            error = to_fixed_point(rng.normal(0.0, variance**0.5, values.shape), m.bits)
            return replace(m, values=pack_integers(values + error))

        designs = (replace(d, gradients=tuple(map(moved, d.gradients))) for d in self.designs)
        return replace(self, designs=tuple(designs))

    @property
    def values(self) -> Integers:
        """The adversary's columns concatenated, shape (m, c)."""
        return np.concatenate([d.values for d in self.designs], axis=1)

    @property
    def lacking(self) -> tuple[int, int] | None:
        """Rows and rank of the first batch in which the local columns have too small a rank.

        It is None if there is no such batch.
        """
        values = self.values
        seen = ((len(values[rows]), rank(values[rows])) for rows in self.batches)
        return next(((m, r) for m, r in seen if r < m), None)

    @property
    def least(self) -> int:
        """Number of rows of the smallest batch."""
        return min(rows.stop - rows.start for rows in self.batches)

    @property
    def hidden(self) -> int:
        """Number of other parties' columns that are not constant."""
        return sum(int((s.scale > 0).sum()) for s in self.other_scales)

    def open_gradients(self) -> tuple[Integers, int]:
        """Return the adversary's gradients of all rounds, shape (c, rounds), and binary places."""
        places = max((m.bits for d in self.designs for m in d.gradients), default=0)
        parts = []
        for design in self.designs:
            aligned = [unpack_integers(m.values) << (places - m.bits) for m in design.gradients]
            parts.append(np.stack(aligned[: self.rounds], axis=1))
        return np.concatenate(parts), places


def residual_bits(view: View) -> int:
    """Return the number of binary places of residuals."""
    degree = len(link_of(view)) - 1
    return 2 * int(view.parameters["bits"]) * degree + SIGMOID_BITS


def link_of(view: View) -> tuple[Fraction, ...]:
    """Return the link as a polynomial of the score, constant first."""
    return link_in(view.parameters, bool(view.schema.classes))


def exact_residuals(view: View, read: ColumnsView) -> list[Integers] | None:
    """Return the exact residuals of all rounds, by batch, shape (m, visits).

    Residuals and columns are integers. If the gradients were sent unchanged, ``X' d = g`` holds
    exactly, so that conditioning is not a limit. If the gradients were changed, the result is None.
    """
    g, places = read.open_gradients()
    bits = residual_bits(view)
    if places != bits + view.parameters["bits"]:
        return None
    residuals, values = [], read.values
    for k, rows in enumerate(read.batches):
        solution = solve_integers(values[rows].T, g[:, k :: len(read.batches)], bits + SCORE_BITS)
        if solution is None:
            return None
        residuals.append(solution)
    return residuals


def scores_of(residuals: Integers, view: View, target: Integers) -> Integers:
    """Return the total scores for residuals and targets, with ``2 bits`` binary places.

    Parameters
    ----------
    residuals : object array, shape (m, rounds)
        Residuals as integers.
    view : View
        Link function and precision.
    target : object array, shape (m,)
        Targets as integers.
    """
    b, bits, link = int(view.parameters["bits"]), residual_bits(view), link_of(view)
    answer = residuals + (target << (bits - b))[:, None]
    # all coefficients are brought to the same power of two, so that the inversion is in integers
    factors = [int(c * (1 << SIGMOID_BITS)) for c in link]
    degree = len(link) - 1
    scale = [factors[k] << (2 * b * (degree - k)) for k in range(degree + 1)]
    if degree == 1:
        return (answer - scale[0]) // scale[1]
    scores = [_inverse(int(v), scale) for v in answer.ravel()]
    return to_python_integers(scores).reshape(answer.shape)


def _inverse(value: int, scale: list[int]) -> int:
    """Return the integer at which a cubic that rises in its middle part reaches a value."""
    # the cubic is monotone between its turning points
    turn = isqrt(scale[1] // (-3 * scale[3]))
    low, high = -turn, turn
    while low < high:
        middle = (low + high) // 2
        if sum(c * middle**k for k, c in enumerate(scale)) < value:
            low = middle + 1
        else:
            high = middle
    return low


def known_scores(view: View, read: ColumnsView) -> list[Integers]:
    """Return the contribution of the adversary's columns to the scores, by batch, (m, visits)."""
    total: list[Any] = [0] * len(read.batches)
    for design in read.designs:
        every = np.stack(design.weights(view)[: read.rounds], axis=1)
        for k, rows in enumerate(read.batches):
            z = design.values[rows] @ every[:, k :: len(total)]
            # a defense may clip each party's scores before they are added
            total[k] = total[k] + clip_scores(
                z, 2 * view.parameters["bits"], view.defense.requirements.row_bounds
            )
    return total


def entries_of_column(
    view: View, column: int, row_of: dict[int, int]
) -> tuple[list[int], NDArray[np.float32]]:
    """Return the rows and values of the known entries of a column, for ids in `row_of`."""
    if view.known_entries is None:
        return [], np.zeros(0, dtype=np.float32)
    e = view.known_entries
    of_column = [k for k in np.flatnonzero(e.columns == column).tolist() if int(e.ids[k]) in row_of]
    return [row_of[int(e.ids[k])] for k in of_column], e.values[of_column]


def claim_table(owner: str, ids: Any, columns: Any, values: NDArray[np.float64]) -> Entries:
    """Return a claim about a table of values, rounded to float32."""
    with np.errstate(over="ignore"):
        rounded = np.nan_to_num(values.astype(np.float32)).astype(np.float64)
    rows, features = np.meshgrid(ids, columns, indexing="ij")
    return Entries(owner, rows.ravel(), features.ravel().astype(np.int64), rounded.ravel())
