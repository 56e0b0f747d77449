"""Metropolis-Hastings moves over all rows and all trees at once.

The probability of a state is proportional to

    exp(-1/2 sum_leaves precision * residual^2) * prior(classes, cells)

A move changes a cell of one row, or exchanges cells between two rows. A changed leaf changes the
margin, and therefore the gradients in all later trees. The move is accepted by the rule of
Metropolis and Hastings.

Constraints depend on the evidence:

- If the class counts of the first tree are exact, a row never leaves its leaf of the first tree (of
  the first tree of its class, for more than two classes). If two rows of a leaf exchange all
  features, this is the same as exchanging their labels.
- If noise hides the counts, rows are not constrained, and their labels are sampled, too.
- If trees are grown on samples of the rows, the participation of rows is part of the state.

Proposals of the Markov chain: another cell for a row, or an exchange between two rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.log_posterior import (
    Classes,
    accept,
    count_row,
    draw_cell,
    draw_class,
    judge,
    log_weight,
    relabel,
    relabel_gain,
    resample,
    swap_gain,
    trade,
)
from fedtrees.attacks.joint.posterior_problem import State, World
from fedtrees.attacks.reconstruction.boxes import has
from fedtrees.attacks.solvers.sampling import below, uniform
from fedtrees.core.compilation import inner_kernel, kernel

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


Floats = NDArray[np.float64]

# Cumulative probabilities of the moves: redraw the latent class, redraw a cell, shift a cell by one
# or two. The remaining moves exchange features of two rows.
CLASS, REDRAW, SHIFT = 0.08, 0.40, 0.55
# Under row subsampling, probability that a move (except of a latent class) redraws the
# participation of a row instead, and number of pairs that then try to exchange their participation.
RANDOMNESS, TRADES = 0.3, 8
# Probability that a move redraws a label, if labels are unknown.
LABEL = 0.1


def draw_classes(state: State, classes: Classes, seed: int) -> None:
    """Draw the latent class of every row given the previous rows, and count it, in place.

    Parameters
    ----------
    state : State
        All rows. Their components change.
    classes : Classes
        Empty counts, to be filled.
    seed : int
        Seed of the draws.
    """
    _draw_classes(state, classes, _scratch(classes), _bits(seed))


def sample(
    world: World,
    state: State,
    classes: Classes,
    precision: Floats,
    moves: int,
    seed: int,
    labels: bool = False,
) -> int:
    """Run the Markov chain in place.

    Parameters
    ----------
    world : World
        Trees and sums.
    state : State
        Rows of the chain.
    classes : Classes
        Counts of the mixture, all rows included.
    precision : float64 array, shape (L, 2)
        Weights of the squared residuals.
    moves : int
        Number of proposals, including those of latent classes, labels and participation.
    seed : int
        Seed of the moves.
    labels : bool
        Whether labels are unknown and sampled, too.

    Returns
    -------
    accepted : int
        Number of accepted moves that change cells.
    """
    new = Proposal.empty(state.cell.shape[1], len(world.root), world.outputs)
    accepted: int = _sample(
        world, state, classes, precision, _mates(world, state), moves, new, _scratch(classes),
        _bits(seed), LABEL if labels else 0.0,
    )  # fmt: skip
    return accepted


def _scratch(classes: Classes) -> Floats:
    return np.empty(len(classes.size) // len(classes.base))


def _bits(seed: int) -> NDArray[np.uint64]:
    return np.array([seed], dtype=np.uint64)


def _mates(world: World, state: State) -> NDArray[np.int32]:
    """Return the rows that share a leaf of the first tree that is not foreign, int32, shape (n, 3).

    Column 0 contains the rows sorted by this leaf. Columns 1 and 2 contain, for each row, where the
    rows of its leaf begin and end in column 0.
    """
    first = state.leaf[:, int(np.argmin(world.foreign))]
    order = np.argsort(first, kind="stable")
    begin = np.searchsorted(first[order], first)
    end = np.searchsorted(first[order], first, side="right")
    return np.stack([order, begin, end], axis=1).astype(np.int32)


@kernel
def _draw_classes(state, classes, scratch, bits):  # type: ignore[no-untyped-def]
    for i in range(state.label.shape[0]):
        _count_in_new_class(i, state, classes, scratch, bits)


@inner_kernel
def _count_in_new_class(i, state, classes, scratch, bits):  # type: ignore[no-untyped-def]
    u = uniform(bits)
    state.component[i] = draw_class(classes, state.cell, i, state.label[i], scratch, u)
    count_row(classes, state.cell, i, state.component[i], 1)


@kernel
def _sample(world, state, classes, precision, mates, moves, new, scratch, bits, label):  # type: ignore[no-untyped-def]
    """Run the chain: compiled part of `sample`."""
    accepted = 0
    for _ in range(moves):
        if label > 0.0 and uniform(bits) < label:
            _draw_label(state, classes, precision, below(bits, len(state.leaf)), scratch, bits)
            continue
        kind = uniform(bits)
        if kind < CLASS:
            i = below(bits, state.cell.shape[0])
            count_row(classes, state.cell, i, state.component[i], -1)
            _count_in_new_class(i, state, classes, scratch, bits)
            continue
        n_rows = _choose_rows(mates, new.row, kind >= SHIFT, bits)
        if n_rows == 0:
            continue
        if world.share < 1.0 and uniform(bits) < RANDOMNESS:
            _toss(world, state, precision, new.row[0], bits)
            continue
        if n_rows == 1:
            n_changed, factor = change_one(state, classes, new, kind >= REDRAW, bits)
        else:
            n_changed, factor = exchange(state, classes, new, bits)
        # Rows of the same leaf of the first tree that exchange all cells also exchange their boxes.
        # This is the exchange of two labels within the leaf, which keeps its class counts.
        exchanges_all = (
            n_rows == 2
            and world.outputs == 1
            and state.leaf[new.row[0], 0] == state.leaf[new.row[1], 0]
            and state.inside[new.row[0], 0] == state.inside[new.row[1], 0]
            and is_full_exchange(state, new)
        )
        if n_changed == 0 or not (exchanges_all or inside(state, new, n_rows, n_changed)):
            continue
        first, gain = judge(world, state, precision, new, n_rows, n_changed)
        gain += math.log(factor)
        if gain < 0.0 and uniform(bits) >= math.exp(gain):
            continue
        accepted += 1
        if exchanges_all:
            _swap_boxes(state, new)
        accept(world, state, new, n_rows, first)
        _move_cells(state, classes, new, n_rows)
    return accepted


@inner_kernel
def _draw_label(state, classes, precision, i, scratch, bits):  # type: ignore[no-untyped-def]
    """Draw the label of row ``i`` given everything else (a Gibbs step), in place."""
    count_row(classes, state.cell, i, state.component[i], -1)
    gain = relabel_gain(state, precision, i)
    gain += log_weight(classes, state.cell, i, 1 - state.label[i], scratch)
    gain -= log_weight(classes, state.cell, i, state.label[i], scratch)
    if uniform(bits) * (1.0 + math.exp(min(-gain, 700.0))) < 1.0:
        relabel(state, i)
    _count_in_new_class(i, state, classes, scratch, bits)


@inner_kernel
def _toss(world, state, precision, i, bits):  # type: ignore[no-untyped-def]
    """Redraw in which trees a row takes part, and try exchanges with other rows, in place."""
    if state.sampled[i]:
        resample(world, state, precision, i, bits)
        for _ in range(TRADES if state.leaf.shape[1] > 1 else 0):
            t, other = 1 + below(bits, state.leaf.shape[1] - 1), below(bits, state.leaf.shape[0])
            if state.sampled[other]:
                trade(world, state, precision, i, other, t, bits)


@inner_kernel
def _choose_rows(mates, row, two, bits):  # type: ignore[no-untyped-def]
    """Draw one row or two. Return their number, 0 if the same row was drawn twice.

    The second row is drawn from all rows, or from the same leaf of the first tree, with probability
    1/2 each.
    """
    n = mates.shape[0]
    a = row[0] = below(bits, n)
    if not two:
        return 1
    if uniform(bits) < 0.5:
        row[1] = below(bits, n)
    else:
        row[1] = mates[mates[a, 1] + below(bits, mates[a, 2] - mates[a, 1]), 0]
    return 0 if a == row[1] else 2


@inner_kernel
def _swap_boxes(state, new):  # type: ignore[no-untyped-def]
    a, b, lo, hi = new.row[0], new.row[1], state.lo, state.hi
    for f in range(lo.shape[1]):
        lo[a, f], lo[b, f] = lo[b, f], lo[a, f]
        hi[a, f], hi[b, f] = hi[b, f], hi[a, f]
        state.codes[a, f], state.codes[b, f] = state.codes[b, f], state.codes[a, f]


@inner_kernel
def _move_cells(state, classes, new, n_rows):  # type: ignore[no-untyped-def]
    for s in range(n_rows):
        i = new.row[s]
        count_row(classes, state.cell, i, state.component[i], -1)
        for f in range(state.cell.shape[1]):
            state.cell[i, f] = new.cell[s, f]
        count_row(classes, state.cell, i, state.component[i], 1)
