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
from fedtrees.attacks.forests.labels import Labels, label_cost, label_cost_of_two
from fedtrees.attacks.forests.noise import NAT, Noise
from fedtrees.attacks.forests.structure import NoisyForest
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError

#: Latent classes, and the masses of their Dirichlet priors: over classes in all, per level.
CLASSES, ALPHA, MASS = 10, 1.0, 0.5
# Shares of the moves, cumulative: a latent class, one variable of a row, two of a row; the rest
# exchanges variables of two rows.
LATENT, ONE, TWO = 0.25, 0.65, 0.80
_NATS = 1.0 / NAT
# What no energy rises by, and nats by which rounding cannot turn a decision.
_NEVER, _MARGIN = 1 << 62, 1e-6
_BEYOND = float(_NEVER >> 1)
# A power of ten that products of as many counts as there are variables stay below.
_LARGEST = 300


class World(NamedTuple):
    """What does not change: trees, costs, sizes of variables. Kernels take it as it is."""

    variable: NDArray[np.int32]  # int32 (T, 2^d)
    right: NDArray[np.int64]  # int64 (T, 2^d)
    tested: NDArray[np.int8]  # int8 (T, 2^d, G)
    cost: NDArray[np.int64]  # int64 (2 b + 1,)
    labels: Labels  # where these were released, costs are theirs
    step: int  # most that a row more or less changes the cost of a leaf
    sizes: NDArray[np.int64]  # int64 (G + 1,): levels of every variable, then classes
    free: NDArray[np.int64]  # int64 (f,): variables that may move, the label among them
    # float64 (m + 1,): what a latent class of so many rows weighs before its levels are asked
    weight: NDArray[np.float64]

    @staticmethod
    def of(
        forest: NoisyForest,
        cost: NDArray[np.int64],
        m: int,
        known: NDArray[np.integer] | None = None,
        labels: Labels | None = None,
    ) -> World:
        """Return the world of `m` rows and a forest; variables in ``known`` do not move.

        Raises `DataError`: so many rows and variables that weights of latent classes do not fit a
        float.
        """
        sizes = np.append(forest.variables.sizes, forest.n_classes)
        if not weighable(len(sizes), m):
            raise DataError(
                f"{m} rows of {len(sizes) - 1} variables: the weight of a latent class would not "
                "fit a float; leave out columns, or rows"
            )
        free = np.setdiff1d(np.flatnonzero(sizes > 1), [] if known is None else known)
        rows = np.arange(m + 1, dtype=np.float64)
        weight = rows + ALPHA / CLASSES
        for r in sizes:
            weight *= r / (rows + r * MASS)  # the factor r keeps it from vanishing
        tables = (forest.variable, forest.right, forest.tested)
        labels = Labels.of(Noise("exact"), forest.noisy, m) if labels is None else labels
        step = 1 + int(max(np.abs(np.diff(cost)).max(initial=0), labels.epsilon * NAT))
        return World(*tables, cost, labels, step, sizes, free.astype(np.int64), weight)


class State(NamedTuple):
    """Rows and what follows from them; arrays change in place. Kernels take it as it is."""

    value: NDArray[np.int16]  # int16 (m, G + 1): levels and class; the first n rows may move
    leaf: NDArray[np.int32]  # int32 (m, T)
    residual: NDArray[np.int64]  # int64 (T, 2^d, K): noisy counts less counts
    latent: NDArray[np.int32]  # int32 (m,)
    count: NDArray[np.float64]  # float64 (G + 1, most levels, classes): rows there, and a0 more
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
        counts = forest.counts(value[:, :-1], value[:, -1])
        told = len(world.labels.label) > 0
        residual = -counts if told else noisy - counts
        count = np.full((len(world.sizes), int(world.sizes.max()), CLASSES), MASS)
        columns = np.arange(len(world.sizes))[None, :]
        np.add.at(count, (columns, value, np.asarray(latent)[:, None]), 1.0)
        size = np.bincount(latent, minlength=CLASSES).astype(np.int32)
        costs = world.labels.costs(counts) if told else world.cost[residual + len(world.cost) // 2]
        energy = np.array([costs.sum()])
        kept = np.array(latent, dtype=np.int32)
        return State(value, leaf, residual, kept, count, size, energy)


class Scratch(NamedTuple):
    """What a move fills anew."""

    leaf: NDArray[np.int32]  # int32 (2, T): leaves after the move
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


def weighable(width: int, m: int) -> bool:
    """Tell whether the weights of latent classes of `m` rows of so many variables fit a float."""
    return width * math.log10(2.0 * m + 2.0) < _LARGEST


def advance(
    world: World,
    state: State,
    n: int,
    beta: float,
    moves: int,
    bits: NDArray[np.uint64],
    prior: bool = True,
) -> int:
    """Make so many moves of the first `n` rows in place; return how many were accepted.

    `n`: Rows that may move; latent classes are drawn for all.
    `beta`: Costs count so many times: 1 is the posterior, 0 the prior.
    `bits`: uint64 array, shape (1,). Randomness, changed in place.
    `prior`: Without it all rows are equally likely.
    """
    made: int = _advance(world, state, Scratch.of(world), n, beta, moves, bits, prior)
    return made


@inner_kernel
def _uniform(bits):  # type: ignore[no-untyped-def]
    return np.float64(next_bits(bits)) * 2.0**-53


@inner_kernel
def _below(bits, n):  # type: ignore[no-untyped-def]
    return np.int64(_uniform(bits) * n)


@kernel
def _advance(world, state, scratch, n, beta, moves, bits, prior):  # type: ignore[no-untyped-def]
    accepted = 0
    m = state.value.shape[0]
    for _ in range(moves):
        kind = _uniform(bits)
        if kind < LATENT or world.free.shape[0] == 0:
            if not prior:
                continue
            _draw_latent(world, state, scratch, _below(bits, m), bits)
            continue
        rows, a, b = 1, _below(bits, n), 0
        if kind >= TWO:
            rows, b = 2, _below(bits, n)
        changed = 0 if rows == 2 and a == b else _propose(world, state, scratch, a, b, kind, bits)
        if changed == 0:
            continue
        factor = _prior_ratio(state, scratch, a, b, rows, changed) if prior else 1.0
        u = _uniform(bits)
        most = _BEYOND
        if u > 0.0 and beta > 0.0:
            most = min(most, (math.log(factor / u) + _MARGIN) / (beta * _NATS))
        rise = _rise(world, state, scratch, a, b, rows, changed, most)
        if rise <= most and u < factor * math.exp(-beta * _NATS * rise):
            accepted += 1
            state.energy[0] += rise
            _accept(state, scratch, a, b, rows, changed)
        else:
            for k in range(changed):
                f = scratch.changed[k]
                state.value[a, f] = scratch.before[0, f]
                if rows == 2:
                    state.value[b, f] = scratch.before[1, f]
    return accepted


@inner_kernel
def _propose(world, state, scratch, a, b, kind, bits):  # type: ignore[no-untyped-def]
    """Write new values into the rows, keep the old ones; return how many variables change."""
    free, value = world.free, state.value
    changed = 0
    g = free[_below(bits, free.shape[0])]
    h = g if kind < ONE or kind >= TWO else free[_below(bits, free.shape[0])]
    label = world.sizes.shape[0] - 1
    scratch.before[0, label], scratch.before[1, label] = value[a, label], value[b, label]
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


@inner_kernel
def _prior_ratio(state, scratch, a, b, rows, changed):  # type: ignore[no-untyped-def]
    """Return the prior of the rows as they are over that of the rows before."""
    za, zb = state.latent[a], state.latent[b]
    ratio = 1.0
    if rows == 2 and za == zb:
        return ratio
    for k in range(changed):
        f = scratch.changed[k]
        ratio *= state.count[f, state.value[a, f], za]
        ratio /= state.count[f, scratch.before[0, f], za] - 1.0
        if rows == 2:
            ratio *= state.count[f, state.value[b, f], zb]
            ratio /= state.count[f, scratch.before[1, f], zb] - 1.0
    return ratio


@inner_kernel
def _rise(world, state, scratch, a, b, rows, changed, most):  # type: ignore[no-untyped-def]
    """Route the rows as they are, write their leaves, and return how much energy rises.

    Where trees that are left cannot bring it down to `most` again, something above that.
    """
    T, leaves, half = world.variable.shape[0], world.variable.shape[1], world.cost.shape[0] // 2
    label, residual = world.sizes.shape[0] - 1, state.residual
    released, pair = world.labels.label, world.labels.pair
    told, two = released.shape[0] > 0, pair.shape[0] > 0
    depth, width = 0, leaves
    while width > 1:
        depth += 1
        width >>= 1
    rise, gain = 0, 2 * rows * world.step
    for t in range(T):
        if rise - (T - t) * gain > most:
            return _NEVER
        for s in range(rows):
            i = a if s == 0 else b
            old = state.leaf[i, t]
            first = depth
            for k in range(changed):
                f = scratch.changed[k]
                if f != label:
                    at = world.tested[t, old, f]
                    if 0 <= at < first:
                        first = at
            node = (old + leaves) >> (depth - first)
            while node < leaves:
                passed = (world.right[t, node] >> state.value[i, world.variable[t, node]]) & 1
                node = 2 * node + passed
            scratch.leaf[s, t] = node - leaves
        for s in range(rows):
            # both rows may go through one leaf: what the first does is seen by the second
            i = a if s == 0 else b
            old, new = state.leaf[i, t], scratch.leaf[s, t]
            was, now = scratch.before[s, label], state.value[i, label]
            if new != old or now != was:
                if two:
                    rise -= label_cost_of_two(pair, released, residual, t, old)
                    residual[t, old, was] += 1
                    rise += label_cost_of_two(pair, released, residual, t, old)
                    rise -= label_cost_of_two(pair, released, residual, t, new)
                    residual[t, new, now] -= 1
                    rise += label_cost_of_two(pair, released, residual, t, new)
                    continue
                if told:
                    rise -= label_cost(world.labels, residual, t, old)
                    residual[t, old, was] += 1
                    rise += label_cost(world.labels, residual, t, old)
                    rise -= label_cost(world.labels, residual, t, new)
                    residual[t, new, now] -= 1
                    rise += label_cost(world.labels, residual, t, new)
                    continue
                r = residual[t, old, was] + half
                rise += world.cost[r + 1] - world.cost[r]
                residual[t, old, was] += 1
                r = residual[t, new, now] + half
                rise += world.cost[r - 1] - world.cost[r]
                residual[t, new, now] -= 1
        for s in range(rows):
            i = a if s == 0 else b
            old, new = state.leaf[i, t], scratch.leaf[s, t]
            was, now = scratch.before[s, label], state.value[i, label]
            if new != old or now != was:
                residual[t, old, was] -= 1
                residual[t, new, now] += 1
    return rise


@inner_kernel
def _accept(state, scratch, a, b, rows, changed):  # type: ignore[no-untyped-def]
    """Bring leaves, residuals and counts of latent classes up to date with the rows."""
    label, residual = state.value.shape[1] - 1, state.residual
    for s in range(rows):
        i = a if s == 0 else b
        z, was, now = state.latent[i], scratch.before[s, label], state.value[i, label]
        for t in range(state.leaf.shape[1]):
            residual[t, state.leaf[i, t], was] += 1
            residual[t, scratch.leaf[s, t], now] -= 1
            state.leaf[i, t] = scratch.leaf[s, t]
        for k in range(changed):
            f = scratch.changed[k]
            state.count[f, scratch.before[s, f], z] -= 1.0
            state.count[f, state.value[i, f], z] += 1.0


@inner_kernel
def _draw_latent(world, state, scratch, i, bits):  # type: ignore[no-untyped-def]
    """Draw the latent class of a row given all other rows."""
    z, width, weight = state.latent[i], world.sizes.shape[0], scratch.weight
    classes = weight.shape[0]
    state.size[z] -= 1
    for f in range(width):
        state.count[f, state.value[i, f], z] -= 1.0
    for c in range(classes):
        weight[c] = world.weight[state.size[c]]
    for f in range(width):
        v = state.value[i, f]
        for c in range(classes):
            weight[c] *= state.count[f, v, c]
    for c in range(1, classes):
        weight[c] += weight[c - 1]
    u = _uniform(bits) * weight[classes - 1]
    c = 0
    while c < classes - 1 and weight[c] <= u:
        c += 1
    state.latent[i] = c
    state.size[c] += 1
    for f in range(width):
        state.count[f, state.value[i, f], c] += 1.0
