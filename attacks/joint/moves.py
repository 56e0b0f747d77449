"""What a move proposes: another cell for a row, or an exchange between two rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.evidence.grid import has
from fedtrees.attacks.joint.classes import draw_cell, swap_gain
from fedtrees.core.compilation import inner_kernel

# Which features two rows exchange, cumulative: one, two, all; the rest a random half.
ONE, TWO, ALL = 0.5, 0.75, 0.85


class Proposal(NamedTuple):
    """One or two rows as a move would have them; every move fills the same arrays anew.

    Kernels take it as it is, with the numbers of rows and of features that count.
    """

    row: NDArray[np.int64]  # int64 (2,)
    cell: NDArray[np.int32]  # int32 (2, d): their cells after the move
    changed: NDArray[np.int64]  # int64 (d,): features in which cells change
    leaf: NDArray[np.int32]  # int32 (2, T): their leaves after the move
    # float64 (2, T): probability of label 1 before each tree, from the first tree on whose leaf
    # changes
    p: NDArray[np.float64]
    # float64 (2, K): by what odds of each class rise before and after a round, as it is followed
    factor: NDArray[np.float64]

    @staticmethod
    def empty(d: int, n_trees: int, outputs: int = 1) -> Proposal:
        """Return one to be filled."""
        return Proposal(
            np.empty(2, dtype=np.int64),
            np.empty((2, d), dtype=np.int32),
            np.empty(d, dtype=np.int64),
            np.empty((2, n_trees), dtype=np.int32),
            np.empty((2, n_trees)),
            np.empty((2, outputs)),
        )


@inner_kernel
def uniform(bits):  # type: ignore[no-untyped-def]
    """Return a draw from [0, 1)."""
    return np.float64(next_bits(bits)) * 2.0**-53


@inner_kernel
def below(bits, n):  # type: ignore[no-untyped-def]
    """Return a whole number drawn from 0 to n - 1."""
    return np.int64(uniform(bits) * n)


@inner_kernel
def change_one(state, classes, new, shift, bits):  # type: ignore[no-untyped-def]
    """Propose another cell for one feature of ``new.row[0]``.

    With ``shift`` it moves by one or two; else it is drawn from the prior given all other rows.
    Returned are how many features change, and the factor of prior and proposal in the acceptance.
    """
    a, d = new.row[0], state.cell.shape[1]
    f = below(bits, d)
    old, q, y = state.cell[a, f], state.component[a], state.label[a]
    if shift:
        to = old + (1 + below(bits, 2)) * (1 if uniform(bits) < 0.5 else -1)
    else:
        # the prior of what is drawn from it cancels in the acceptance
        to = draw_cell(classes, q, y, f, old, uniform(bits))
    there = to != old and 0 <= to < classes.base.shape[2] and classes.base[y, f, to] > 0.0
    to = to if there else old
    factor = classes.count[q, f, to] + classes.base[y, f, to]
    factor /= classes.count[q, f, old] - 1.0 + classes.base[y, f, old]
    new.changed[0] = f
    for k in range(d):
        new.cell[0, k] = state.cell[a, k]
    new.cell[0, f] = to
    return int(there), factor if there and shift else 1.0


@inner_kernel
def exchange(state, classes, new, bits):  # type: ignore[no-untyped-def]
    """Propose that the two rows of ``new`` exchange some features; returns as `change_one`."""
    a, b, cell = new.row[0], new.row[1], state.cell
    d = cell.shape[1]
    which = uniform(bits)
    one, other = below(bits, d), below(bits, d)
    n_changed, factor = 0, 1.0
    for f in range(d):
        new.cell[0, f], new.cell[1, f] = cell[a, f], cell[b, f]
        if which < ONE:
            take = f == one
        elif which < TWO:
            take = f in (one, other)
        elif which < ALL:
            take = True
        else:
            take = uniform(bits) < 0.5
        if take and cell[a, f] != cell[b, f]:
            new.cell[0, f], new.cell[1, f] = cell[b, f], cell[a, f]
            new.changed[n_changed] = f
            n_changed += 1
            factor *= swap_gain(
                classes, f, cell[a, f], cell[b, f], state.component[a], state.component[b],
                state.label[a], state.label[b],
            )  # fmt: skip
    return n_changed, factor


@inner_kernel
def swapped(state, new):  # type: ignore[no-untyped-def]
    """Tell whether both rows take all of each other's cells."""
    a, b, whole = new.row[0], new.row[1], True
    for f in range(state.cell.shape[1]):
        whole = whole and new.cell[0, f] == state.cell[b, f] and new.cell[1, f] == state.cell[a, f]
    return whole


@inner_kernel
def inside(state, new, n_rows, n_changed):  # type: ignore[no-untyped-def]
    """Tell whether all cells that change stay in the boxes of their rows."""
    kept = True
    for s in range(n_rows):
        i = new.row[s]
        for k in range(n_changed):
            f = new.changed[k]
            kept = kept and state.lo[i, f] <= new.cell[s, f] < state.hi[i, f]
            kept = kept and has(state.codes[i, f], new.cell[s, f])
    return kept
