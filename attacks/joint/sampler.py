"""Metropolis moves over all rows and all trees at once.

The state's probability is proportional to

    exp(-1/2 sum_leaves precision * residual^2) * prior(classes, cells)

A move changes cells of one row or exchanges cells of two, follows what that does to every later
tree (a changed leaf changes the margin, hence the gradients in all trees after it), and is
accepted by Metropolis and Hastings. A row never leaves its leaf of the first tree, where that has
known class counts; exchanging all features of two rows of such a leaf exchanges their labels. Of
several classes it never leaves its leaf of its own class's first tree. Where noise hides the
counts, rows are anywhere and labels are drawn as well. Where trees are grown on some of the rows,
which rows are in which tree is part of the state.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.classes import Classes, count_row, draw_class, log_weight
from fedtrees.attacks.joint.energy import (
    accept,
    judge,
    relabel,
    relabelled,
    resample,
    trade,
)
from fedtrees.attacks.joint.moves import (
    Proposal,
    below,
    change_one,
    exchange,
    inside,
    swapped,
    uniform,
)
from fedtrees.attacks.joint.state import State
from fedtrees.attacks.joint.world import World
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]

# Shares of the moves, cumulative: class, one cell redrawn, one cell moved by one or two; the rest
# exchanges features of two rows.
CLASS, REDRAW, SHIFT = 0.08, 0.40, 0.55
# Where trees are grown on some of the rows, so many of all but the first of these draw anew which;
# and so many pairs of rows are tried for a trade.
RANDOMNESS, TRADES = 0.3, 8
# Where labels are not known, so many of all moves draw one.
LABEL = 0.1


def draw_classes(state: State, classes: Classes, seed: int) -> None:
    """Count all rows, one after the other, each in a class drawn given those before it."""
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
    """Make so many moves in place and return how many that change a row's cells were accepted.

    ``precision``, float64 (L, 2), weighs every squared residual. Moves of classes are moves too.
    With ``labels`` these are drawn as well.
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
    """Return who shares a leaf of the first own tree, int32, shape (n, 3).

    Rows sorted by that leaf; and per row, where those of its leaf begin and end.
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
    """Do the work of `sample`; ``mates`` as of `_mates`, ``new`` and ``scratch`` (K,) to fill."""
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
        # rows of one first leaf that exchange everything take their boxes with them
        whole = (
            n_rows == 2
            and world.outputs == 1
            and state.leaf[new.row[0], 0] == state.leaf[new.row[1], 0]
            and state.inside[new.row[0], 0] == state.inside[new.row[1], 0]
            and swapped(state, new)
        )
        if n_changed == 0 or not (whole or inside(state, new, n_rows, n_changed)):
            continue
        first, gain = judge(world, state, precision, new, n_rows, n_changed)
        gain += math.log(factor)
        if gain < 0.0 and uniform(bits) >= math.exp(gain):
            continue
        accepted += 1
        if whole:
            _swap_boxes(state, new)
        accept(world, state, new, n_rows, first)
        _move_cells(state, classes, new, n_rows)
    return accepted


@inner_kernel
def _draw_label(state, classes, precision, i, scratch, bits):  # type: ignore[no-untyped-def]
    """Give row ``i`` the other label, or not, by its probability given all else, in place."""
    count_row(classes, state.cell, i, state.component[i], -1)
    gain = relabelled(state, precision, i)
    gain += log_weight(classes, state.cell, i, 1 - state.label[i], scratch)
    gain -= log_weight(classes, state.cell, i, state.label[i], scratch)
    if uniform(bits) * (1.0 + math.exp(min(-gain, 700.0))) < 1.0:
        relabel(state, i)
    _count_in_new_class(i, state, classes, scratch, bits)


@inner_kernel
def _toss(world, state, precision, i, bits):  # type: ignore[no-untyped-def]
    """Draw anew in which trees a row is, and let it trade places with others, in place."""
    if state.sampled[i]:
        resample(world, state, precision, i, bits)
        for _ in range(TRADES if state.leaf.shape[1] > 1 else 0):
            t, other = 1 + below(bits, state.leaf.shape[1] - 1), below(bits, state.leaf.shape[0])
            if state.sampled[other]:
                trade(world, state, precision, i, other, t, bits)


@inner_kernel
def _choose_rows(mates, row, two, bits):  # type: ignore[no-untyped-def]
    """Draw one row or two, the second as often from the same first leaf as from all.

    Returns how many; 0 where the same was drawn twice.
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
