"""A Markov chain over complete tables: rows move, and the residuals of leaves follow.

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

from fedtrees.attacks.forests.structure import (
    NAT,
    Labels,
    Noise,
    NoisyForest,
    label_cost,
    label_cost_of_two,
)
from fedtrees.attacks.solvers.sampling import below, uniform
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError

#: Number of latent classes, and masses of the Dirichlet priors: over all classes, per level.
CLASSES, ALPHA, MASS = 10, 1.0, 0.5
# Cumulative shares of the moves: a latent class, one variable of a row, two variables of a row.
# The remaining moves exchange variables of two rows.
LATENT, ONE, TWO = 0.25, 0.65, 0.80
_NATS = 1.0 / NAT
# Impossible rise of the energy, and margin in nats within which rounding cannot change a decision.
_NEVER, _MARGIN = 1 << 62, 1e-6
_BEYOND = float(_NEVER >> 1)
# Exponent of the power of ten that bounds the product of one count per variable.
_LARGEST = 300


class World(NamedTuple):
    """Constants of a chain: trees, costs, sizes of variables. Kernels receive it unchanged.

    Attributes
    ----------
    variable : int32 array, shape (T, 2^d)
        Variable that each node tests.
    right : int64 array, shape (T, 2^d)
        Levels that go right, as bits.
    tested : int8 array, shape (T, 2^d, G)
        Depth of the first test of each variable on the path to a leaf.
    cost : int64 array, shape (2 b + 1,)
        Cost of each residual.
    labels : Labels
        Costs of released labels, which replace those of counts.
    step : int
        Largest change of a leaf's cost by one row.
    sizes : int64 array, shape (G + 1,)
        Levels of every variable, then number of classes.
    free : int64 array, shape (f,)
        Variables that may change, including the label.
    weight : float64 array, shape (m + 1,)
        Weight of a latent class by its number of rows, without its levels.
    """

    variable: NDArray[np.int32]  # int32 (T, 2^d)
    right: NDArray[np.int64]  # int64 (T, 2^d)
    tested: NDArray[np.int8]  # int8 (T, 2^d, G)
    cost: NDArray[np.int64]  # int64 (2 b + 1,)
    labels: Labels
    step: int
    sizes: NDArray[np.int64]  # int64 (G + 1,)
    free: NDArray[np.int64]  # int64 (f,)
    weight: NDArray[np.float64]

    @staticmethod
    def of(
        forest: NoisyForest,
        cost: NDArray[np.int64],
        m: int,
        known_rows: NDArray[np.integer] | None = None,
        labels: Labels | None = None,
    ) -> World:
        """Return the constants for `m` rows and a forest.

        Parameters
        ----------
        forest : NoisyForest
            Trees and counts.
        cost : int64 array, shape (2 b + 1,)
            Cost of each residual.
        m : int
            Number of rows.
        known_rows : int array, optional
            Variables that do not change.
        labels : Labels, optional
            Released labels. None means that counts were released.

        Raises
        ------
        DataError
            If the weights of latent classes of so many rows and variables do not fit a float.
        """
        sizes = np.append(forest.variables.sizes, forest.n_classes)
        if not weighable(len(sizes), m):
            raise DataError(
                f"{m} rows of {len(sizes) - 1} variables: the weight of a latent class would not "
                "fit a float; leave out columns, or rows"
            )
        free = np.setdiff1d(np.flatnonzero(sizes > 1), [] if known_rows is None else known_rows)
        rows = np.arange(m + 1, dtype=np.float64)
        weight = rows + ALPHA / CLASSES
        for r in sizes:
            weight *= r / (rows + r * MASS)  # the factor r keeps it from vanishing
        tables = (forest.variable, forest.right, forest.tested)
        labels = Labels.of(Noise("exact"), forest.noisy, m) if labels is None else labels
        step = 1 + int(max(np.abs(np.diff(cost)).max(initial=0), labels.epsilon * NAT))
        return World(*tables, cost, labels, step, sizes, free.astype(np.int64), weight)


class State(NamedTuple):
    """Rows and everything derived from them. Kernels change the arrays in place.

    Attributes
    ----------
    value : int16 array, shape (m, G + 1)
        Levels and class. The first n rows may change.
    leaf : int32 array, shape (m, T)
        Leaf of each row in each tree.
    residual : int64 array, shape (T, 2^d, K)
        Noisy counts less counts.
    latent : int32 array, shape (m,)
        Latent class of each row.
    count : float64 array, shape (G + 1, most levels, classes)
        Number of rows plus a0.
    size : int32 array, shape (classes,)
        Rows of each latent class.
    energy : int64 array, shape (1,)
        Sum of the costs of the residuals.
    """

    value: NDArray[np.int16]  # int16 (m, G + 1)
    leaf: NDArray[np.int32]  # int32 (m, T)
    residual: NDArray[np.int64]  # int64 (T, 2^d, K)
    latent: NDArray[np.int32]  # int32 (m,)
    count: NDArray[np.float64]  # type: ignore[assignment]  # float64 (G + 1, most levels, classes)
    size: NDArray[np.int32]  # int32 (classes,)
    energy: NDArray[np.int64]  # int64 (1,)

    @staticmethod
    def of(
        forest: NoisyForest,
        world: World,
        noisy: NDArray[np.int64],
        value: NDArray[np.integer],
        latent: NDArray[np.integer],
    ) -> State:
        """Return the state of given rows in given latent classes.

        Parameters
        ----------
        forest : NoisyForest
            Trees and counts.
        world : World
            Constants.
        noisy : int64 array, shape (T, 2^d, K)
            Noisy counts, clipped to the range of the cost table.
        value : int array, shape (m, G + 1)
            Levels and class of each row.
        latent : int array, shape (m,)
            Latent classes.
        """
        row_values = np.array(value, dtype=np.int16, order="C")
        leaf = forest.route(row_values[:, :-1])
        counts = forest.counts(row_values[:, :-1], row_values[:, -1])
        has_labels = len(world.labels.label) > 0
        residual = -counts if has_labels else noisy - counts
        count = np.full((len(world.sizes), int(world.sizes.max()), CLASSES), MASS)
        columns = np.arange(len(world.sizes))[None, :]
        np.add.at(count, (columns, row_values, np.asarray(latent)[:, None]), 1.0)
        size = np.bincount(latent, minlength=CLASSES).astype(np.int32)
        costs = (
            world.labels.costs(counts)
            if has_labels
            else world.cost[residual + len(world.cost) // 2]
        )
        energy = np.array([costs.sum()])
        latent_classes = np.array(latent, dtype=np.int32)
        return State(row_values, leaf, residual, latent_classes, count, size, energy)


class Scratch(NamedTuple):
    """Buffers that every move overwrites."""

    leaf: NDArray[np.int32]  # int32 (2, T): leaves after the move
    changed: NDArray[np.int64]  # int64 (G + 1,): variables that change
    before: NDArray[np.int16]  # int16 (2, G + 1): values before the move
    weight: NDArray[np.float64]  # float64 (classes,)

    @staticmethod
    def of(world: World) -> Scratch:
        """Return uninitialised buffers."""
        T, width = len(world.variable), len(world.sizes)
        return Scratch(
            np.empty((2, T), dtype=np.int32),
            np.empty(width, dtype=np.int64),
            np.empty((2, width), dtype=np.int16),
            np.empty(CLASSES),
        )


def weighable(width: int, m: int) -> bool:
    """Return whether weights of latent classes of `m` rows of `width` variables fit a float."""
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
    """Make moves of the first `n` rows in place, and return how many were accepted.

    Parameters
    ----------
    world : World
        Constants.
    state : State
        Changed in place.
    n : int
        Number of rows that may change. Latent classes are drawn for all rows.
    beta : float
        Inverse temperature of the costs: 1 is the posterior, 0 the prior.
    moves : int
        Number of moves.
    bits : uint64 array, shape (1,)
        State of the random numbers, changed in place.
    prior : bool, default True
        If False, all rows are equally likely.
    """
    n_accepted: int = _advance(world, state, Scratch.of(world), n, beta, moves, bits, prior)
    return n_accepted


@kernel
def _advance(world, state, scratch, n, beta, moves, bits, prior):  # type: ignore[no-untyped-def]
    accepted = 0
    m = state.value.shape[0]
    for _ in range(moves):
        kind = uniform(bits)
        if kind < LATENT or world.free.shape[0] == 0:
            if not prior:
                continue
            _draw_latent(world, state, scratch, below(bits, m), bits)
            continue
        rows, a, b = 1, below(bits, n), 0
        if kind >= TWO:
            rows, b = 2, below(bits, n)
        changed = 0 if rows == 2 and a == b else _propose(world, state, scratch, a, b, kind, bits)
        if changed == 0:
            continue
        factor = _prior_ratio(state, scratch, a, b, rows, changed) if prior else 1.0
        u = uniform(bits)
        largest_rise = _BEYOND
        if u > 0.0 and beta > 0.0:
            largest_rise = min(largest_rise, (math.log(factor / u) + _MARGIN) / (beta * _NATS))
        rise = _rise(world, state, scratch, a, b, rows, changed, largest_rise)
        if rise <= largest_rise and u < factor * math.exp(-beta * _NATS * rise):
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
    """Write new values into the rows, store the old ones, and return the number of changes."""
    free, value = world.free, state.value
    changed = 0
    g = free[below(bits, free.shape[0])]
    h = g if kind < ONE or kind >= TWO else free[below(bits, free.shape[0])]
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
            to = below(bits, world.sizes[f] - 1)
            scratch.before[0, f] = old
            value[a, f] = to + (1 if to >= old else 0)
        scratch.changed[changed] = f
        changed += 1
    return changed


@inner_kernel
def _prior_ratio(state, scratch, a, b, rows, changed):  # type: ignore[no-untyped-def]
    """Return the prior of the present rows divided by that of the rows before."""
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
def _rise(world, state, scratch, a, b, rows, changed, largest_rise):  # type: ignore[no-untyped-def]
    """Route the present rows, write their leaves, and return the rise of the energy.

    If the remaining trees cannot reduce the rise to `largest_rise`, the result is some larger
    number.
    """
    T, leaves, half = world.variable.shape[0], world.variable.shape[1], world.cost.shape[0] // 2
    label, residual = world.sizes.shape[0] - 1, state.residual
    released, pair = world.labels.label, world.labels.pair
    has_labels, two = released.shape[0] > 0, pair.shape[0] > 0
    depth, width = 0, leaves
    while width > 1:
        depth += 1
        width >>= 1
    rise, gain = 0, 2 * rows * world.step
    for t in range(T):
        if rise - (T - t) * gain > largest_rise:
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
            # both rows may be in one leaf, so that the second has to see the change of the first
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
                if has_labels:
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
    """Update leaves, residuals and counts of latent classes to the new rows."""
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
    u = uniform(bits) * weight[classes - 1]
    c = 0
    while c < classes - 1 and weight[c] <= u:
        c += 1
    state.latent[i] = c
    state.size[c] += 1
    for f in range(width):
        state.count[f, state.value[i, f], c] += 1.0
