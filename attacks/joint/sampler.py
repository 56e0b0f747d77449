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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.classes import (
    Classes,
    count_row,
    draw_cell,
    draw_class,
    swap_gain,
)
from fedtrees.attacks.joint.world import World
from fedtrees.attacks.timberstrike.local_search import next_bits
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

# Shares of the moves, cumulative: class, one cell redrawn, one cell moved by one or two; the rest
# exchanges features of two rows.
SHARES = np.array([0.08, 0.40, 0.55])
# Which features two rows exchange, cumulative: one, two, all; the rest a random half.
EXCHANGES = np.array([0.5, 0.75, 0.85])


@dataclass(eq=False)
class State:
    """Rows on the grid and what follows from them; arrays change in place.

    Attributes
    ----------
    cell : int32 array, shape (m, d)
        Victims' rows, then own ones (whose cells stay).
    lo, hi : int32 array, shape (n, d)
        Cells ``lo <= cell < hi`` a victim's row may have.
    label, component : int32 array, shape (m,)
    leaf : int32 array, shape (n, T)
        Leaf of each victim's row in each tree, leaves numbered through.
    p : float64 array, shape (n, T)
        Probability of label 1 before each tree.
    residual : float64 array, shape (L, 2)
        The rows' sums less the sums to meet.
    """

    cell: Ints
    lo: Ints
    hi: Ints
    label: Ints
    component: Ints
    leaf: Ints
    p: Floats
    residual: Floats

    @property
    def n(self) -> int:
        """Number of victims' rows."""
        return len(self.leaf)

    @staticmethod
    def of(
        world: World,
        cell: Ints,
        box: tuple[Ints, Ints],
        label: Ints,
        own_cell: Ints,
        own_label: Ints,
    ) -> State:
        """Route the rows; all are in the first class of their label."""
        n, T = len(cell), len(world.root)
        state = State(
            np.ascontiguousarray(np.concatenate([cell, own_cell]), dtype=np.int32),
            np.array(box[0], dtype=np.int32, order="C"),
            np.array(box[1], dtype=np.int32, order="C"),
            np.concatenate([label, own_label]).astype(np.int32),
            np.zeros(n + len(own_cell), dtype=np.int32),
            np.zeros((n, T), dtype=np.int32),
            np.zeros((n, T)),
            np.zeros_like(world.target),
        )
        state.refresh(world)
        return state

    def refresh(self, world: World) -> None:
        """Compute leaves, probabilities and residuals from the cells, in place."""
        _refresh(
            self.cell, self.label, world.root, world.node, world.value, world.slope,
            world.target, world.start, world.flat, self.leaf, self.p, self.residual,
        )  # fmt: skip

    def mean_square(self, world: World) -> float:
        """Return the mean squared residual of the known sums."""
        known = np.isfinite(world.variance)
        return float((self.residual[known] ** 2).mean())

    def energy(self, precision: Floats) -> float:
        """Return half the weighted sum of squared residuals."""
        return 0.5 * float((precision * self.residual**2).sum())


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
    first = state.leaf[:, 0]
    order = np.argsort(first, kind="stable").astype(np.int32)
    begin = np.searchsorted(first[order], first).astype(np.int32)
    end = np.searchsorted(first[order], first, side="right").astype(np.int32)
    mates = np.stack([order, begin, end], axis=1)
    accepted: int = _sample(
        state.cell, state.lo, state.hi, state.label, state.component, state.leaf, state.p,
        state.residual, world.root, world.node, world.box, world.value, world.slope, world.flat,
        classes.base, classes.weight, classes.count, classes.present, classes.size,
        precision, mates, moves, np.array([seed], dtype=np.uint64), SHARES, EXCHANGES,
    )  # fmt: skip
    return accepted


@kernel
def _uniform(state):  # type: ignore[no-untyped-def]
    return np.float64(next_bits(state)) * 2.0**-53


@kernel
def _below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(_uniform(state) * n)


@kernel
def _walk(root, node, cell):  # type: ignore[no-untyped-def]
    """Return the leaf of a row."""
    while node[root, 0] >= 0:
        root = node[root, 2] if cell[node[root, 0]] < node[root, 1] else node[root, 3]
    return node[root, 2]


@kernel
def _refresh(cell, label, root, node, value, slope, target, start, flat, leaf, p, residual):  # type: ignore[no-untyped-def]
    for j in range(residual.shape[0]):
        residual[j, 0] = -target[j, 0]
        residual[j, 1] = -target[j, 1]
    for i in range(leaf.shape[0]):
        margin = start
        for t in range(root.shape[0]):
            j = _walk(root[t], node, cell[i])
            q = 1.0 / (1.0 + math.exp(-margin))
            h = 1.0 if flat else q * (1.0 - q)
            residual[j, 0] += q - label[i] + slope[j] * h
            residual[j, 1] += h
            leaf[i, t], p[i, t] = j, q
            margin += value[j]


@kernel
def _draw_classes(cell, label, component, base, weight, count, present, size, scratch, state):  # type: ignore[no-untyped-def]
    for i in range(label.shape[0]):
        u = _uniform(state)
        component[i] = draw_class(cell[i], label[i], base, weight, count, present, size, scratch, u)
        count_row(cell[i], component[i], count, present, size, 1)


@kernel
def _drop(j, dg, dh, residual, precision):  # type: ignore[no-untyped-def]
    """Return how much less energy a leaf has once its residual changes by (dg, dh)."""
    return -(
        precision[j, 0] * dg * (residual[j, 0] + 0.5 * dg)
        + precision[j, 1] * dh * (residual[j, 1] + 0.5 * dh)
    )


@kernel
def _follow(cell, changed, leaf, p, root, node, box, value, new_leaf, new_p):  # type: ignore[no-untyped-def]
    """Route a row whose listed features changed; return the first tree it changes leaf in.

    Returns the number of trees where it changes none.
    """
    T = root.shape[0]
    first, shift, factor = T, 0.0, 1.0
    for t in range(T):
        j, q = leaf[t], p[t]
        new_leaf[t], new_p[t] = j, q
        if first < T:
            new_p[t] = q * factor / (1.0 - q + q * factor)
        for k in range(changed.shape[0]):
            f = changed[k]
            if cell[f] < box[j, f, 0] or cell[f] >= box[j, f, 1]:
                new = _walk(root[t], node, cell)
                new_leaf[t] = new
                shift += value[new] - value[j]
                factor = math.exp(shift)
                first = min(first, t)
                break
    return first


@kernel
def _gain(first, y, new_leaf, new_p, leaf, p, residual, precision, slope, flat):  # type: ignore[no-untyped-def]
    """Return how much less energy one row's new leaves and probabilities have."""
    gain = 0.0
    for t in range(first, leaf.shape[0]):
        j, k, q, r = leaf[t], new_leaf[t], p[t], new_p[t]
        hj = 1.0 if flat else q * (1.0 - q)
        hk = 1.0 if flat else r * (1.0 - r)
        gj, gk = q - y + slope[j] * hj, r - y + slope[k] * hk
        if j == k:
            gain += _drop(j, gk - gj, hk - hj, residual, precision)
        else:
            gain += _drop(j, -gj, -hj, residual, precision)
            gain += _drop(k, gk, hk, residual, precision)
    return gain


@kernel
def _meet(j, k, sign, gj, hj, gk, hk, precision):  # type: ignore[no-untyped-def]
    """Return what two changes, each judged alone, leave out where both meet in a leaf."""
    if j != k:
        return 0.0
    return sign * (precision[j, 0] * gj * gk + precision[j, 1] * hj * hk)


@kernel
def _together(first, a, b, ya, yb, new_leaf, new_p, leaf, p, precision, slope, flat):  # type: ignore[no-untyped-def]
    """Return what the gains of two rows, each judged alone, leave out."""
    gain = 0.0
    for t in range(first, leaf.shape[1]):
        ja, ka, jb, kb = leaf[a, t], new_leaf[0, t], leaf[b, t], new_leaf[1, t]
        if ja != jb and ja != kb and ka != jb and ka != kb:
            continue
        qa, ra, qb, rb = p[a, t], new_p[0, t], p[b, t], new_p[1, t]
        hja = 1.0 if flat else qa * (1.0 - qa)
        hka = 1.0 if flat else ra * (1.0 - ra)
        hjb = 1.0 if flat else qb * (1.0 - qb)
        hkb = 1.0 if flat else rb * (1.0 - rb)
        gja, gka = qa - ya + slope[ja] * hja, ra - ya + slope[ka] * hka
        gjb, gkb = qb - yb + slope[jb] * hjb, rb - yb + slope[kb] * hkb
        gain += _meet(ja, jb, -1.0, gja, hja, gjb, hjb, precision)
        gain += _meet(ja, kb, 1.0, gja, hja, gkb, hkb, precision)
        gain += _meet(ka, jb, 1.0, gka, hka, gjb, hjb, precision)
        gain += _meet(ka, kb, -1.0, gka, hka, gkb, hkb, precision)
    return gain


@kernel
def _accept(first, rows, labels, new_leaf, new_p, leaf, p, residual, slope, flat):  # type: ignore[no-untyped-def]
    for s in range(rows.shape[0]):
        i = rows[s]
        for t in range(first, leaf.shape[1]):
            j, q = leaf[i, t], p[i, t]
            h = 1.0 if flat else q * (1.0 - q)
            residual[j, 0] -= q - labels[s] + slope[j] * h
            residual[j, 1] -= h
            j, q = new_leaf[s, t], new_p[s, t]
            h = 1.0 if flat else q * (1.0 - q)
            residual[j, 0] += q - labels[s] + slope[j] * h
            residual[j, 1] += h
            leaf[i, t], p[i, t] = j, q


@kernel
def _change_one(
    a, shift, cell, label, component, base, weight, count, present, state, new_cell, changed
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Propose another cell for one feature of a row.

    Returns how many features change, and the factor of prior and proposal in the acceptance.
    """
    d = cell.shape[1]
    f = _below(state, d)
    old, q, y, prior = cell[a, f], component[a], label[a], 1.0
    if shift:
        new = old + (1 + _below(state, 2)) * (1 if _uniform(state) < 0.5 else -1)
        if new < 0 or new >= base.shape[2] or base[y, f, new] <= 0.0:
            return 0, 1.0
        prior = count[q, f, new] + base[y, f, new]
        prior /= count[q, f, old] - 1.0 + base[y, f, old]
    else:
        # drawn from the prior given all other rows: it cancels in the acceptance
        new = draw_cell(q, y, f, old, base, weight, count, present, _uniform(state))
    if new == old:
        return 0, 1.0
    changed[0] = f
    for k in range(d):
        new_cell[0, k] = cell[a, k]
    new_cell[0, f] = new
    return 1, prior


@kernel
def _exchange(
    a, b, cell, label, component, base, count, state, exchanges, new_cell, changed
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Propose that two rows exchange some features; returns as `_change_one`."""
    d = cell.shape[1]
    which = _uniform(state)
    one, other = _below(state, d), _below(state, d)
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
            take = _uniform(state) < 0.5
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
def _swapped(a, b, cell, new_cell):  # type: ignore[no-untyped-def]
    for f in range(cell.shape[1]):
        if new_cell[0, f] != cell[b, f] or new_cell[1, f] != cell[a, f]:
            return False
    return True


@kernel
def _inside(rows, new_cell, changed, lo, hi):  # type: ignore[no-untyped-def]
    for s in range(rows.shape[0]):
        for k in range(changed.shape[0]):
            c = new_cell[s, changed[k]]
            if c < lo[rows[s], changed[k]] or c >= hi[rows[s], changed[k]]:
                return False
    return True


@kernel
def _judge(
    rows, labels, new_cell, changed, leaf, p, residual, root, node, box, value, slope, flat,
    precision, new_leaf, new_p,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Return the first tree that a proposal changes, and how much less energy it has."""
    first, gain = root.shape[0], 0.0
    for s in range(rows.shape[0]):
        i = rows[s]
        here = _follow(
            new_cell[s], changed, leaf[i], p[i], root, node, box, value, new_leaf[s], new_p[s]
        )
        first = min(first, here)
    for s in range(rows.shape[0]):
        i = rows[s]
        gain += _gain(
            first, labels[s], new_leaf[s], new_p[s], leaf[i], p[i], residual, precision, slope,
            flat,
        )  # fmt: skip
    if rows.shape[0] == 2:
        gain += _together(
            first, rows[0], rows[1], labels[0], labels[1], new_leaf, new_p, leaf, p, precision,
            slope, flat,
        )  # fmt: skip
    return first, gain


@kernel
def _draw_new_class(
    i, cell, label, component, base, weight, count, present, size, scratch, state
):  # type: ignore[no-untyped-def]  # fmt: skip
    count_row(cell[i], component[i], count, present, size, -1)
    u = _uniform(state)
    component[i] = draw_class(cell[i], label[i], base, weight, count, present, size, scratch, u)
    count_row(cell[i], component[i], count, present, size, 1)


@kernel
def _sample(
    cell, lo, hi, label, component, leaf, p, residual, root, node, box, value, slope, flat,
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
        kind = _uniform(state)
        if kind < shares[0]:
            i = _below(state, cell.shape[0])
            _draw_new_class(
                i, cell, label, component, base, weight, count, present, size, scratch, state
            )
            continue
        a = _below(state, n)
        rows[0], labels[0], n_rows = a, label[a], 1
        if kind < shares[2]:
            n_changed, prior = _change_one(
                a, kind >= shares[1], cell, label, component, base, weight, count, present, state,
                new_cell, changed,
            )  # fmt: skip
        else:
            if _uniform(state) < 0.5:
                b = _below(state, n)
            else:
                b = np.int64(mates[mates[a, 1] + _below(state, mates[a, 2] - mates[a, 1]), 0])
            if a == b:
                continue
            rows[1], labels[1], n_rows = b, label[b], 2
            n_changed, prior = _exchange(
                a, b, cell, label, component, base, count, state, exchanges, new_cell, changed
            )
        moved, features = rows[:n_rows], changed[:n_changed]
        # rows of one first leaf that exchange everything take their boxes with them
        whole = (
            n_rows == 2 and leaf[a, 0] == leaf[rows[1], 0] and _swapped(a, rows[1], cell, new_cell)
        )
        if n_changed == 0 or not (whole or _inside(moved, new_cell, features, lo, hi)):
            continue
        first, gain = _judge(
            moved, labels, new_cell, features, leaf, p, residual, root, node, box, value, slope,
            flat, precision, new_leaf, new_p,
        )  # fmt: skip
        gain += math.log(prior)
        if gain < 0.0 and _uniform(state) >= math.exp(gain):
            continue
        accepted += 1
        if whole:
            for f in range(d):
                lo[a, f], lo[rows[1], f] = lo[rows[1], f], lo[a, f]
                hi[a, f], hi[rows[1], f] = hi[rows[1], f], hi[a, f]
        _accept(first, moved, labels, new_leaf, new_p, leaf, p, residual, slope, flat)
        for s in range(n_rows):
            i = rows[s]
            count_row(cell[i], component[i], count, present, size, -1)
            for f in range(d):
                cell[i, f] = new_cell[s, f]
            count_row(cell[i], component[i], count, present, size, 1)
    return accepted
