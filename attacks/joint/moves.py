"""What a move proposes: another cell for a row, or an exchange between two rows."""

from __future__ import annotations

import numpy as np

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.joint.classes import draw_cell, swap_gain
from fedtrees.trees.jit import kernel


@kernel
def uniform(state):  # type: ignore[no-untyped-def]
    return np.float64(next_bits(state)) * 2.0**-53


@kernel
def below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(uniform(state) * n)


@kernel
def change_one(
    a, shift, cell, label, component, base, weight, count, present, state, new_cell, changed
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Propose another cell for one feature of a row.

    Returns how many features change, and the factor of prior and proposal in the acceptance.
    """
    d = cell.shape[1]
    f = below(state, d)
    old, q, y, prior = cell[a, f], component[a], label[a], 1.0
    if shift:
        new = old + (1 + below(state, 2)) * (1 if uniform(state) < 0.5 else -1)
        if new < 0 or new >= base.shape[2] or base[y, f, new] <= 0.0:
            return 0, 1.0
        prior = count[q, f, new] + base[y, f, new]
        prior /= count[q, f, old] - 1.0 + base[y, f, old]
    else:
        # drawn from the prior given all other rows: it cancels in the acceptance
        new = draw_cell(q, y, f, old, base, weight, count, present, uniform(state))
    if new == old:
        return 0, 1.0
    changed[0] = f
    for k in range(d):
        new_cell[0, k] = cell[a, k]
    new_cell[0, f] = new
    return 1, prior


@kernel
def exchange(
    a, b, cell, label, component, base, count, state, exchanges, new_cell, changed
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Propose that two rows exchange some features; returns as `change_one`."""
    d = cell.shape[1]
    which = uniform(state)
    one, other = below(state, d), below(state, d)
    n_changed, prior = 0, 1.0
    for f in range(d):
        new_cell[0, f], new_cell[1, f] = cell[a, f], cell[b, f]
        if which < exchanges[0]:
            take = f == one
        elif which < exchanges[1]:
            take = f in (one, other)
        elif which < exchanges[2]:
            take = True
        else:
            take = uniform(state) < 0.5
        if take and cell[a, f] != cell[b, f]:
            new_cell[0, f], new_cell[1, f] = cell[b, f], cell[a, f]
            changed[n_changed] = f
            n_changed += 1
            prior *= swap_gain(
                f, cell[a, f], cell[b, f], component[a], component[b], label[a], label[b], base,
                count,
            )  # fmt: skip
    return n_changed, prior


@kernel
def swapped(a, b, cell, new_cell):  # type: ignore[no-untyped-def]
    for f in range(cell.shape[1]):
        if new_cell[0, f] != cell[b, f] or new_cell[1, f] != cell[a, f]:
            return False
    return True


@kernel
def inside(rows, new_cell, changed, lo, hi):  # type: ignore[no-untyped-def]
    for s in range(rows.shape[0]):
        for k in range(changed.shape[0]):
            c = new_cell[s, changed[k]]
            if c < lo[rows[s], changed[k]] or c >= hi[rows[s], changed[k]]:
                return False
    return True
