"""What the parties that hold columns saw of a vertical regression, and what it says of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np

from fedtrees.attacks.regression.modular import rank, solved
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import Integers, encoded, integers, packed, unpacked
from fedtrees.messages.regression import (
    SIGMOID_BITS,
    ColumnScales,
    Gradient,
    OwnDesign,
    batches_of,
    limited,
    shortened,
    standardised,
    stepped,
)
from fedtrees.messages.regression import link_of as link_in

#: Scores of this size and more do not occur: a sigmoid is far out before.
SCORE_BITS = 12


@dataclass(frozen=True, eq=False)
class Design:
    """What one principal computes with."""

    name: str
    values: Integers  # object array, shape (m, c): whole numbers with the protocol's binary places
    gradients: tuple[Gradient, ...]  # by round

    def weights(self, view: View) -> list[Integers]:
        """Return its weights at the start of every round, and at the end."""
        p, made = view.parameters, [integers(np.zeros(self.values.shape[1], dtype=np.int64))]
        for told in self.gradients:
            places = told.bits - p["bits"]
            gradient = unpacked(told.values)
            rows = batches_of(len(self.values), p["batch"])
            batch = rows[(len(made) - 1) % len(rows)]
            m = batch.stop - batch.start
            made.append(stepped(made[-1], gradient, places, m, p["lr"], p["alpha"]))
        return made


@dataclass(frozen=True, eq=False)
class ColumnsView:
    """A view of a vertical regression, read."""

    active: OwnDesign
    designs: tuple[Design, ...]  # of the principals that hold data
    others: tuple[ColumnScales, ...]  # of everybody else
    rounds: int
    batches: tuple[slice, ...]  # rows of the rounds, in turn

    @classmethod
    def of(cls, view: View) -> ColumnsView | None:
        """Read a view, None where the active party's columns or gradients are not in it."""
        noted = next((m for _, m in view.messages(OwnDesign)), None)
        if noted is None or not view.own:
            return None
        told = [m for _, m in view.messages(Gradient)]
        scales = [m for _, m in view.messages(ColumnScales)]
        designs = []
        for held in view.own:
            if held.y is not None:
                name = next(n for n, role in view.roles.items() if role == "active")
                values = unpacked(noted.design)
            else:
                same = [s for s in scales if np.array_equal(s.columns, held.columns)]
                if not same:
                    continue
                name = same[0].party
                bits, told = int(view.parameters["bits"]), same[0]
                values = standardised(held.X, told.mean, told.scale, bits)
                values = shortened(values, bits, view.defense.row_bounds)
            mine = tuple(m for m in told if m.party == name)
            designs.append(Design(name, values, mine))
        rounds = min((len(d.gradients) for d in designs), default=0)
        others = tuple(s for s in scales if s.party not in view.principals)
        batches = batches_of(len(noted.target), view.parameters["batch"])
        return cls(noted, tuple(designs), others, rounds, batches)

    def shaken(self, variance: float, rng: np.random.Generator) -> ColumnsView:
        """Return the same with so much more error in every gradient."""

        def moved(m: Gradient) -> Gradient:
            values = unpacked(m.values)
            error = encoded(rng.normal(0.0, variance**0.5, values.shape), m.bits)
            return replace(m, values=packed(values + error))

        designs = (replace(d, gradients=tuple(map(moved, d.gradients))) for d in self.designs)
        return replace(self, designs=tuple(designs))

    @property
    def values(self) -> Integers:
        """The principals' columns side by side, shape (m, c)."""
        return np.concatenate([d.values for d in self.designs], axis=1)

    @property
    def lacking(self) -> tuple[int, int] | None:
        """Rows and rank of the first batch of which the principals see fewer directions."""
        values = self.values
        seen = ((len(values[rows]), rank(values[rows])) for rows in self.batches)
        return next(((m, r) for m, r in seen if r < m), None)

    @property
    def least(self) -> int:
        """Rows of the smallest batch."""
        return min(rows.stop - rows.start for rows in self.batches)

    @property
    def hidden(self) -> int:
        """How many columns others have that vary."""
        return sum(int((s.scale > 0).sum()) for s in self.others)

    def opened(self) -> tuple[Integers, int]:
        """Return the principals' gradients of all rounds, shape (c, rounds), and their places."""
        places = max((m.bits for d in self.designs for m in d.gradients), default=0)
        parts = []
        for design in self.designs:
            told = [unpacked(m.values) << (places - m.bits) for m in design.gradients]
            parts.append(np.stack(told[: self.rounds], axis=1))
        return np.concatenate(parts), places


def residual_bits(view: View) -> int:
    """Return the binary places of residuals."""
    degree = len(link_of(view)) - 1
    return 2 * int(view.parameters["bits"]) * degree + SIGMOID_BITS


def link_of(view: View) -> tuple[Fraction, ...]:
    """Return the link as a polynomial of the score, constant first."""
    return link_in(view.parameters, bool(view.schema.classes))


def exact_residuals(view: View, read: ColumnsView) -> list[Integers] | None:
    """Return the residuals of all rounds, by batch, shape (m, visits), to the last of their places.

    They are whole numbers, and so are the columns: where the gradients were opened as they are,
    ``X' d = g`` holds to the last bit, and conditioning is no limit. None where they were not.
    """
    g, places = read.opened()
    bits = residual_bits(view)
    if places != bits + view.parameters["bits"]:
        return None
    found, values = [], read.values
    for k, rows in enumerate(read.batches):
        solution = solved(values[rows].T, g[:, k :: len(read.batches)], bits + SCORE_BITS)
        if solution is None:
            return None
        found.append(solution)
    return found


def scores_of(residuals: Integers, view: View, target: Integers) -> Integers:
    """Return everybody's scores, by residuals and targets, with ``2 bits`` binary places."""
    b, bits, link = int(view.parameters["bits"]), residual_bits(view), link_of(view)
    answer = residuals + (target << (bits - b))[:, None]
    factors = [int(c * (1 << SIGMOID_BITS)) for c in link]
    degree = len(link) - 1
    scale = [factors[k] << (2 * b * (degree - k)) for k in range(degree + 1)]
    if degree == 1:
        return (answer - scale[0]) // scale[1]
    found = [_inverse(int(v), scale) for v in answer.ravel()]
    return integers(found).reshape(answer.shape)


def _inverse(value: int, scale: list[int]) -> int:
    """Return where a cubic that rises in the middle has a value, among whole numbers."""
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
    """Return what the principals' own columns bring to the scores, by batch, (m, visits)."""
    total: list[Any] = [0] * len(read.batches)
    for design in read.designs:
        every = np.stack(design.weights(view)[: read.rounds], axis=1)
        for k, rows in enumerate(read.batches):
            z = design.values[rows] @ every[:, k :: len(total)]
            total[k] = total[k] + limited(z, 2 * view.parameters["bits"], view.defense.row_bounds)
    return total
