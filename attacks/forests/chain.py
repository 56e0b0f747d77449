"""A Markov chain over whole tables: rows move, residuals of leaves follow.

A state's probability is proportional to

    exp(-beta * sum_leaves cost(noisy count - count)) * prior(rows, latent classes)

The prior is a mixture of K latent classes in which variables (the label is one) are independent,
with all its parameters integrated out: Dirichlet alpha / K over classes, symmetric Dirichlet a0
over the levels of each variable in each class.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.forests.noise import NAT
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.trees.jit import kernel

#: Latent classes, and the masses of their Dirichlet priors: over classes in all, per level.
CLASSES, ALPHA, MASS = 10, 1.0, 0.5
# Shares of the moves, cumulative: a latent class, one variable of a row, two of a row; the rest
# exchanges variables of two rows.
LATENT, ONE, TWO = 0.25, 0.65, 0.80
_NATS = 1.0 / NAT


class World(NamedTuple):
    """What does not change: trees, costs, sizes of variables. Kernels take it as it is."""

    variable: NDArray[np.int32]  # int32 (T, 2^d)
    right: NDArray[np.int64]  # int64 (T, 2^d)
    tested: NDArray[np.int8]  # int8 (T, 2^d, G)
    cost: NDArray[np.int64]  # int64 (2 b + 1,)
    sizes: NDArray[np.int64]  # int64 (G + 1,): levels of every variable, then classes
    free: NDArray[np.int64]  # int64 (f,): variables that may move, the label among them
    mass: NDArray[np.float64]  # float64 (2,): alpha / K, a0

    @staticmethod
    def of(
        forest: NoisyForest, cost: NDArray[np.int64], known: NDArray[np.integer] | None = None
    ) -> World:
        """Return the world of a forest; variables in ``known`` do not move."""
        sizes = np.append(forest.variables.sizes, forest.n_classes)
        free = np.setdiff1d(np.flatnonzero(sizes > 1), [] if known is None else known)
        mass = np.array([ALPHA / CLASSES, MASS])
        return World(
            forest.variable, forest.right, forest.tested, cost, sizes, free.astype(np.int64), mass
        )


class State(NamedTuple):
    """Rows and what follows from them; arrays change in place. Kernels take it as it is."""

    value: NDArray[np.int16]  # int16 (m, G + 1): levels and class; the first n rows may move
    leaf: NDArray[np.int32]  # int32 (m, T)
    residual: NDArray[np.int64]  # int64 (T, 2^d, K): noisy counts less counts
    latent: NDArray[np.int32]  # int32 (m,)
    count: NDArray[np.int32]  # int32 (classes, G + 1, most levels): rows of each class and level
    size: NDArray[np.int32]  # int32 (classes,)
    energy: NDArray[np.int64]  # int64 (1,): sum of the costs of residuals

    @staticmethod
    def of(
        forest: NoisyForest,
        world: World,
        noisy: NDArray[np.int64],
        value: NDArray[np.integer],
        latent: NDArray[np.integer],
    ) -> State:
        """Return the state of rows with their classes, shape (m, G + 1), in latent classes."""
        value = np.array(value, dtype=np.int16, order="C")
        leaf = forest.route(value[:, :-1])
        residual = noisy - forest.counts(value[:, :-1], value[:, -1])
        count = np.zeros((CLASSES, len(world.sizes), int(world.sizes.max())), dtype=np.int32)
        columns = np.arange(len(world.sizes))[None, :]
        np.add.at(count, (np.asarray(latent)[:, None], columns, value), 1)
        size = np.bincount(latent, minlength=CLASSES).astype(np.int32)
        energy = np.array([world.cost[residual + len(world.cost) // 2].sum()])
        kept = np.array(latent, dtype=np.int32)
        return State(value, leaf, residual, kept, count, size, energy)


class Scratch(NamedTuple):
    """What a move fills anew."""

    leaf: NDArray[np.int32]  # int32 (2, T): leaves before the move
    changed: NDArray[np.int64]  # int64 (G + 1,): variables that change
    before: NDArray[np.int16]  # int16 (2, G + 1): values before the move
    weight: NDArray[np.float64]  # float64 (classes,)

    @staticmethod
    def of(world: World) -> Scratch:
        """Return one to be filled."""
        T, width = len(world.variable), len(world.sizes)
        return Scratch(
            np.empty((2, T), dtype=np.int32),
            np.empty(width, dtype=np.int64),
            np.empty((2, width), dtype=np.int16),
            np.empty(CLASSES),
        )


def advance(
    world: World, state: State, n: int, beta: float, moves: int, bits: NDArray[np.uint64]
) -> int:
    """Make so many moves of the first `n` rows in place; return how many were accepted.

    Parameters
    ----------
    world, state
    n : int
        Rows that may move; latent classes are drawn for all.
    beta : float
        Costs count so many times: 1 is the posterior, 0 the prior.
    moves : int
    bits : uint64 array, shape (1,)
        Coins, changed in place.
    """
    made: int = _advance(world, state, Scratch.of(world), n, beta, moves, bits)
    return made


@kernel
def _uniform(bits):  # type: ignore[no-untyped-def]
    return np.float64(next_bits(bits)) * 2.0**-53


@kernel
def _below(bits, n):  # type: ignore[no-untyped-def]
    return np.int64(_uniform(bits) * n)


@kernel
def _advance(world, state, scratch, n, beta, moves, bits):  # type: ignore[no-untyped-def]
    accepted = 0
    label, m = world.sizes.shape[0] - 1, state.value.shape[0]
    for _ in range(moves):
        kind = _uniform(bits)
        if kind < LATENT or world.free.shape[0] == 0:
            _draw_latent(world, state, scratch, _below(bits, m), bits)
            continue
        rows, a, b = 1, _below(bits, n), 0
        if kind >= TWO:
            b = _below(bits, n)
            rows = 2
            if a == b:
                continue
        changed = _propose(world, state, scratch, a, b, kind, bits)
        if changed == 0:
            continue
        factor = _prior_ratio(world, state, scratch, a, b, rows, changed)
        rise = 0
        for s in range(rows):
            rise += _move(world, state, scratch, s, a if s == 0 else b, changed, label)
        if _uniform(bits) < factor * math.exp(-beta * _NATS * rise):
            accepted += 1
            state.energy[0] += rise
            for s in range(rows):
                i = a if s == 0 else b
                z = state.latent[i]
                for k in range(changed):
                    g = scratch.changed[k]
                    state.count[z, g, scratch.before[s, g]] -= 1
                    state.count[z, g, state.value[i, g]] += 1
        else:
            for s in range(rows):
                _undo(state, scratch, s, a if s == 0 else b, changed, label)
    return accepted


@kernel
def _propose(world, state, scratch, a, b, kind, bits):  # type: ignore[no-untyped-def]
    """Write new values into the rows, keep the old ones; return how many variables change."""
    free, value = world.free, state.value
    changed = 0
    g = free[_below(bits, free.shape[0])]
    h = g if kind < ONE or kind >= TWO else free[_below(bits, free.shape[0])]
    for k in range(1 if h == g else 2):
        f = g if k == 0 else h
        old = value[a, f]
        if kind >= TWO:
            if value[b, f] == old:
                continue
            scratch.before[1, f] = value[b, f]
            scratch.before[0, f] = old
            value[a, f], value[b, f] = value[b, f], old
        else:
            to = _below(bits, world.sizes[f] - 1)
            scratch.before[0, f] = old
            value[a, f] = to + (1 if to >= old else 0)
        scratch.changed[changed] = f
        changed += 1
    return changed


@kernel
def _prior_ratio(world, state, scratch, a, b, rows, changed):  # type: ignore[no-untyped-def]
    """Return the prior of the rows as they are over that of the rows before."""
    za, zb, mass = state.latent[a], state.latent[b], world.mass[1]
    ratio = 1.0
    if rows == 2 and za == zb:
        return ratio
    for k in range(changed):
        f = scratch.changed[k]
        ratio *= state.count[za, f, state.value[a, f]] + mass
        ratio /= state.count[za, f, scratch.before[0, f]] - 1 + mass
        if rows == 2:
            ratio *= state.count[zb, f, state.value[b, f]] + mass
            ratio /= state.count[zb, f, scratch.before[1, f]] - 1 + mass
    return ratio


@kernel
def _move(world, state, scratch, s, i, changed, label):  # type: ignore[no-untyped-def]
    """Bring leaves and residuals up to date with a row's values; return the rise in energy."""
    T, leaves, half = world.variable.shape[0], world.variable.shape[1], world.cost.shape[0] // 2
    new_class = state.value[i, label]
    old_class = new_class
    for k in range(changed):
        if scratch.changed[k] == label:
            old_class = scratch.before[s, label]
    depth, width = 0, leaves
    while width > 1:
        depth += 1
        width >>= 1
    rise = 0
    for t in range(T):
        old = state.leaf[i, t]
        scratch.leaf[s, t] = old
        first = depth
        for k in range(changed):
            f = scratch.changed[k]
            if f != label:
                at = world.tested[t, old, f]
                if at >= 0 and at < first:
                    first = at
        new = old
        if first < depth:
            node = (old + leaves) >> (depth - first)
            while node < leaves:
                passed = (world.right[t, node] >> state.value[i, world.variable[t, node]]) & 1
                node = 2 * node + passed
            new = node - leaves
            state.leaf[i, t] = new
        if new != old or new_class != old_class:
            r = state.residual[t, old, old_class] + half
            rise += world.cost[r + 1] - world.cost[r]
            state.residual[t, old, old_class] += 1
            r = state.residual[t, new, new_class] + half
            rise += world.cost[r - 1] - world.cost[r]
            state.residual[t, new, new_class] -= 1
    return rise


@kernel
def _undo(state, scratch, s, i, changed, label):  # type: ignore[no-untyped-def]
    """Put a row back where it was."""
    now = state.value[i, label]
    for k in range(changed):
        f = scratch.changed[k]
        state.value[i, f] = scratch.before[s, f]
    was = state.value[i, label]
    for t in range(state.leaf.shape[1]):
        new, old = state.leaf[i, t], scratch.leaf[s, t]
        if new != old or now != was:
            state.residual[t, new, now] += 1
            state.residual[t, old, was] -= 1
            state.leaf[i, t] = old


@kernel
def _draw_latent(world, state, scratch, i, bits):  # type: ignore[no-untyped-def]
    """Draw the latent class of a row given all other rows."""
    z, width = state.latent[i], world.sizes.shape[0]
    classes = state.size.shape[0]
    state.size[z] -= 1
    for f in range(width):
        state.count[z, f, state.value[i, f]] -= 1
    total = 0.0
    for c in range(classes):
        w = state.size[c] + world.mass[0]
        for f in range(width):
            w *= state.count[c, f, state.value[i, f]] + world.mass[1]
            w /= state.size[c] + world.sizes[f] * world.mass[1]
        total += w
        scratch.weight[c] = total
    u = _uniform(bits) * total
    c = 0
    while c < classes - 1 and scratch.weight[c] <= u:
        c += 1
    state.latent[i] = c
    state.size[c] += 1
    for f in range(width):
        state.count[c, f, state.value[i, f]] += 1
