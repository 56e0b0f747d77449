"""Metropolis moves over all rows and all trees at once.

The state's probability is proportional to

    exp(-1/2 sum_leaves precision * residual^2) * prior(classes, cells)

A move changes cells of one row or exchanges cells of two, follows what that does to every later
tree (a changed leaf changes the margin, hence the gradients in all trees after it), and is
accepted by Metropolis and Hastings. A row never leaves its leaf of the first tree, whose class
counts are known; exchanging all features of two rows of such a leaf exchanges their labels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.classes import Classes, count_row, draw_class
from fedtrees.attacks.joint.energy import accept, judge
from fedtrees.attacks.joint.moves import below, change_one, exchange, inside, swapped, uniform
from fedtrees.attacks.joint.state import State
from fedtrees.attacks.joint.world import World
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]

# Shares of the moves, cumulative: class, one cell redrawn, one cell moved by one or two; the rest
# exchanges features of two rows.
SHARES = np.array([0.08, 0.40, 0.55])
# Which features two rows exchange, cumulative: one, two, all; the rest a random half.
EXCHANGES = np.array([0.5, 0.75, 0.85])


def draw_classes(state: State, classes: Classes, seed: int) -> None:
    """Count all rows, one after the other, each in a class drawn given those before it."""
    K = len(classes.size) // 2
    _draw_classes(
        state.cell, state.label, state.component, classes.base, classes.weight, classes.count,
        classes.present, classes.size, np.empty(K), np.array([seed], dtype=np.uint64),
    )  # fmt: skip


def sample(
    world: World, state: State, classes: Classes, precision: Floats, moves: int, seed: int
) -> int:
    """Make moves in place and return how many that change a row were accepted.

    Parameters
    ----------
    precision : float64 array, shape (L, 2)
    moves : int
        Proposals, those of classes included.
    seed : int
    """
    first = state.leaf[:, int(np.argmin(world.foreign))]
    order = np.argsort(first, kind="stable").astype(np.int32)
    begin = np.searchsorted(first[order], first).astype(np.int32)
    end = np.searchsorted(first[order], first, side="right").astype(np.int32)
    mates = np.stack([order, begin, end], axis=1)
    accepted: int = _sample(
        state.cell, state.lo, state.hi, state.label, state.component, state.leaf, state.p,
        state.residual, world.root, world.node, world.box, world.value, world.slope,
        world.foreign, world.flat,
        classes.base, classes.weight, classes.count, classes.present, classes.size,
        precision, mates, moves, np.array([seed], dtype=np.uint64), SHARES, EXCHANGES,
    )  # fmt: skip
    return accepted


@kernel
def _draw_classes(cell, label, component, base, weight, count, present, size, scratch, state):  # type: ignore[no-untyped-def]
    for i in range(label.shape[0]):
        u = uniform(state)
        component[i] = draw_class(cell[i], label[i], base, weight, count, present, size, scratch, u)
        count_row(cell[i], component[i], count, present, size, 1)


@kernel
def _draw_new_class(
    i, cell, label, component, base, weight, count, present, size, scratch, state
):  # type: ignore[no-untyped-def]  # fmt: skip
    count_row(cell[i], component[i], count, present, size, -1)
    u = uniform(state)
    component[i] = draw_class(cell[i], label[i], base, weight, count, present, size, scratch, u)
    count_row(cell[i], component[i], count, present, size, 1)


@kernel
def _sample(
    cell, lo, hi, label, component, leaf, p, residual, root, node, box, value, slope, foreign, flat,
    base, weight, count, present, size, precision, mates, moves, state, shares, exchanges,
):  # type: ignore[no-untyped-def]  # fmt: skip
    n, T, d = leaf.shape[0], leaf.shape[1], cell.shape[1]
    scratch = np.empty(size.shape[0] // 2)
    new_cell = np.empty((2, d), dtype=np.int32)
    new_leaf, new_p = np.empty((2, T), dtype=np.int32), np.empty((2, T))
    changed = np.empty(d, dtype=np.int64)
    rows, labels = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.int64)
    accepted = 0
    for _ in range(moves):
        kind = uniform(state)
        if kind < shares[0]:
            i = below(state, cell.shape[0])
            _draw_new_class(
                i, cell, label, component, base, weight, count, present, size, scratch, state
            )
            continue
        a = below(state, n)
        rows[0], labels[0], n_rows = a, label[a], 1
        if kind < shares[2]:
            n_changed, prior = change_one(
                a, kind >= shares[1], cell, label, component, base, weight, count, present, state,
                new_cell, changed,
            )  # fmt: skip
        else:
            if uniform(state) < 0.5:
                b = below(state, n)
            else:
                b = np.int64(mates[mates[a, 1] + below(state, mates[a, 2] - mates[a, 1]), 0])
            if a == b:
                continue
            rows[1], labels[1], n_rows = b, label[b], 2
            n_changed, prior = exchange(
                a, b, cell, label, component, base, count, state, exchanges, new_cell, changed
            )
        moved, features = rows[:n_rows], changed[:n_changed]
        # rows of one first leaf that exchange everything take their boxes with them
        whole = (
            n_rows == 2 and leaf[a, 0] == leaf[rows[1], 0] and swapped(a, rows[1], cell, new_cell)
        )
        if n_changed == 0 or not (whole or inside(moved, new_cell, features, lo, hi)):
            continue
        first, gain = judge(
            moved, labels, new_cell, features, leaf, p, residual, root, node, box, value, slope,
            foreign, flat, precision, new_leaf, new_p,
        )  # fmt: skip
        gain += math.log(prior)
        if gain < 0.0 and uniform(state) >= math.exp(gain):
            continue
        accepted += 1
        if whole:
            for f in range(d):
                lo[a, f], lo[rows[1], f] = lo[rows[1], f], lo[a, f]
                hi[a, f], hi[rows[1], f] = hi[rows[1], f], hi[a, f]
        accept(first, moved, labels, new_leaf, new_p, leaf, p, residual, slope, foreign, flat)
        for s in range(n_rows):
            i = rows[s]
            count_row(cell[i], component[i], count, present, size, -1)
            for f in range(d):
                cell[i, f] = new_cell[s, f]
            count_row(cell[i], component[i], count, present, size, 1)
    return accepted
