"""Proposals of the Markov chain: another cell for a row, or an exchange between two rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import below, uniform
from fedtrees.attacks.evidence.grid import has
from fedtrees.attacks.joint.classes import draw_cell, swap_gain
from fedtrees.core.compilation import inner_kernel

# Cumulative probabilities that two rows exchange one feature, two features, or all features. With
# the remaining probability each feature is exchanged with probability 1/2.
ONE, TWO, ALL = 0.5, 0.75, 0.85


class Proposal(NamedTuple):
    """One or two rows after a proposed move. Every move fills the same arrays again.

    Kernels also receive the number of rows and of changed features, because only the first entries
    of the arrays are valid.

    Attributes
    ----------
    row : int64 array, shape (2,)
        Numbers of the rows.
    cell : int32 array, shape (2, d)
        Their cells after the move.
    changed : int64 array, shape (d,)
        Features in which cells change.
    leaf : int32 array, shape (2, T)
        Their leaves after the move.
    p : float64 array, shape (2, T)
        Prediction before each tree, see `p` of `State`. Valid from the first changed tree on.
    factor : float64 array, shape (2, K)
        Factors on the odds of each class before and after a round, used while a row is routed.
    """

    row: NDArray[np.int64]
    cell: NDArray[np.int32]
    changed: NDArray[np.int64]
    leaf: NDArray[np.int32]
    p: NDArray[np.float64]
    factor: NDArray[np.float64]

    @staticmethod
    def empty(d: int, n_trees: int, outputs: int = 1) -> Proposal:
        """Allocate a proposal for ``d`` features, ``n_trees`` trees and ``outputs`` classes."""
        return Proposal(
            np.empty(2, dtype=np.int64),
            np.empty((2, d), dtype=np.int32),
            np.empty(d, dtype=np.int64),
            np.empty((2, n_trees), dtype=np.int32),
            np.empty((2, n_trees)),
            np.empty((2, outputs)),
        )


@inner_kernel
def change_one(state, classes, new, shift, bits):  # type: ignore[no-untyped-def]
    """Propose another cell for one random feature of ``new.row[0]``.

    Parameters
    ----------
    state : State
        The current rows.
    classes : Classes
        The prior.
    new : Proposal
        Filled in.
    shift : bool
        Shift the cell by one or two. Otherwise it is drawn from the prior, given all other rows.
    bits : uint64 array, shape (1,)
        State of the random number generator.

    Returns
    -------
    n_changed : {0, 1}
        Number of changed features.
    factor : float
        Factor of prior and proposal densities in the acceptance probability.
    """
    a, d = new.row[0], state.cell.shape[1]
    f = below(bits, d)
    old, q, y = state.cell[a, f], state.component[a], state.label[a]
    if shift:
        to = old + (1 + below(bits, 2)) * (1 if uniform(bits) < 0.5 else -1)
    else:
        # a draw from the conditional prior cancels the prior in the acceptance probability
        to = draw_cell(classes, q, y, f, old, uniform(bits))
    is_valid = to != old and 0 <= to < classes.base.shape[2] and classes.base[y, f, to] > 0.0
    to = to if is_valid else old
    factor = classes.count[q, f, to] + classes.base[y, f, to]
    factor /= classes.count[q, f, old] - 1.0 + classes.base[y, f, old]
    new.changed[0] = f
    for k in range(d):
        new.cell[0, k] = state.cell[a, k]
    new.cell[0, f] = to
    return int(is_valid), factor if is_valid and shift else 1.0


@inner_kernel
def exchange(state, classes, new, bits):  # type: ignore[no-untyped-def]
    """Propose that the two rows of ``new`` exchange some features.

    For example, they exchange all of them with probability ``ALL - TWO``. Parameters and results
    are those of `change_one`.
    """
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
def is_full_exchange(state, new):  # type: ignore[no-untyped-def]
    """Return whether the proposal exchanges all cells of both rows."""
    a, b, all_swapped = new.row[0], new.row[1], True
    for f in range(state.cell.shape[1]):
        all_swapped = (
            all_swapped
            and new.cell[0, f] == state.cell[b, f]
            and new.cell[1, f] == state.cell[a, f]
        )
    return all_swapped


@inner_kernel
def inside(state, new, n_rows, n_changed):  # type: ignore[no-untyped-def]
    """Return whether all changed cells lie in the boxes of their rows."""
    stays_inside = True
    for s in range(n_rows):
        i = new.row[s]
        for k in range(n_changed):
            f = new.changed[k]
            stays_inside = stays_inside and state.lo[i, f] <= new.cell[s, f] < state.hi[i, f]
            stays_inside = stays_inside and has(state.codes[i, f], new.cell[s, f])
    return stays_inside
