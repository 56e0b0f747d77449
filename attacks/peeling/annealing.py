"""Find tables that explain all class counts together, by simulated annealing.

All counts together determine more than each count separately. The victims' columns are known. The
search determines which values are in the same row, and how often each row was drawn for each tree.
The energy of a table is the number of draws in the requested bins that it leaves unexplained, plus
the negative log probability of the draws. Simulated annealing (Kirkpatrick et al. 1983) swaps
values of a feature between two rows and draws both anew in every tree. The result is not proven:
rows in which two chains agree are likely.
"""

import math
from collections import Counter
from functools import reduce
from operator import and_
from typing import NamedTuple

import numpy as np

from fedtrees.attacks.peeling.class_histograms import Counts
from fedtrees.attacks.peeling.feasible_bins import WORD, Longs, MaskedForest, has
from fedtrees.attacks.peeling.rows import FEATURE, LEFT, RIGHT, Ints
from fedtrees.attacks.solvers.sampling import next_bits, remainder
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.statistics import binomial

#: Confidence of rows in which the chains agree.
LIKELY = 0.95
CHAINS = 2
#: Energy of one draw that is not explained. Energies are integers.
UNIT = 1024
#: Inverse temperatures per draw, from accepting most moves to accepting almost none.
BETAS = np.geomspace(0.08, 0.7, 50)
#: Swaps per temperature, as a multiple of the number of unknown rows to the power 1.5.
SWAPS = 5.0
#: Smallest number of swaps per row. With fewer, the chains hardly agree.
LEAST_SWAPS = 10
#: Largest expected number of copies of a row in a table with randomly permuted columns.
CHANCE = 0.02
#: Smallest number of trees. With fewer, chains agree because of their columns only.
LEAST_TREES = 5
#: Steps of a swap in one tree.
STEPS_PER_TREE = 20.0
#: Exclusive upper bound on the number of draws of a row for a tree.
MOST_DRAWS = 6
#: Energy above that of an accepted swap at which the remaining trees are skipped.
HOPELESS = 10 * UNIT


class _Table(NamedTuple):
    """Rows and draws, changed in place."""

    rows: Longs  # int64 (n, d + 1): bins and, last, the class. Unknown rows come last
    drawn: Longs  # int64 (T, n)
    left: Longs  # int64 (requested bins, K): draws that are not explained
    prior: Longs  # int64 (MOST_DRAWS,): energy by number of draws


class Sought(NamedTuple):
    """Knowledge about the rows of a source.

    The number of draws of a row for a tree is binomial with `coins` trials of probability `odds`.

    Attributes
    ----------
    known_bins : int32 array, shape (k, d)
        Bins of known rows, -1 if missing.
    y : int64 array, shape (k,)
        Their classes.
    left : int64 array, shape (columns of masks,)
        Number of other rows in each bin.
    coins : int
        Number of trials.
    odds : float
        Probability of each trial.
    """

    known_bins: Ints
    y: Longs
    left: Longs
    coins: int
    odds: float


def likely_rows(
    state: MaskedForest, counts: Counts, problem: Sought, seeds: Longs, work: float
) -> tuple[Ints, Longs]:
    """Return rows in addition to the known ones in which the chains agree.

    Parameters
    ----------
    state : Masked
        Counts from which the determined draws of known rows were subtracted.
    counts : Counts
        Counts as they were sent.
    problem : Sought
        Known rows, and columns of the other rows.
    seeds : int64 array, shape (`CHAINS`,)
        Seeds of the chains.
    work : float
        Limit on elementary steps of about 20 nanoseconds.

    Returns
    -------
    bins : int32 array, shape (m, d)
        -1 if missing.
    y : int64 array, shape (m,)
        Classes.
    """
    width = np.diff(state.offsets)
    known_rows = np.column_stack(
        [np.where(problem.known_bins < 0, width - 1, problem.known_bins), problem.y]
    )
    sought = _columns(state, counts, problem)
    pmf = np.maximum(binomial(np.arange(MOST_DRAWS), problem.coins, problem.odds), 1e-9)
    prior = np.rint(-UNIT / 2 * np.log(pmf)).astype(np.int64)
    per_swap = STEPS_PER_TREE * (len(state.start) - 1) * len(BETAS) * len(seeds)
    swaps = int(min(SWAPS * len(sought) ** 1.5, work / per_swap))
    if swaps < LEAST_SWAPS * len(sought) or len(state.start) <= LEAST_TREES:
        return problem.known_bins[:0], problem.y[:0]
    tables = [_anneal(state, known_rows, sought, prior, swaps, s) for s in seeds.tolist()]
    agreed = reduce(and_, (Counter(map(tuple, t.tolist())) for t in tables))
    rows = np.array(list(agreed.elements()), dtype=np.int64).reshape(-1, sought.shape[1])
    by_chance = np.full(len(rows), float(len(sought)))
    for f, column in enumerate(sought.T):
        by_chance *= (rows[:, f, None] == column).mean(axis=1)
    rows = rows[by_chance < CHANCE]
    bins = np.where(rows[:, :-1] == width - 1, -1, rows[:, :-1])
    return bins.astype(np.int32), rows[:, -1]


def _columns(state: MaskedForest, counts: Counts, knowledge: Sought) -> Longs:
    """Return the columns of the unknown rows, int64 (n, d + 1), with estimated classes."""
    parts = np.split(knowledge.left, state.offsets[1:-1])
    bins = np.stack([np.repeat(np.arange(len(p)), p) for p in parts], axis=1)
    mean = counts.nodes[state.start[:-1]].mean(axis=0) / (knowledge.coins * knowledge.odds)
    rest = np.maximum(
        np.rint(mean).astype(np.int64) - np.bincount(knowledge.y, minlength=len(mean)), 0
    )
    classes = np.repeat(np.arange(len(mean)), rest)
    return np.column_stack([bins, np.resize(classes, len(bins))]).astype(np.int64)


def _anneal(
    state: MaskedForest, known_rows: Longs, sought: Longs, prior: Longs, swaps: int, seed: int
) -> Longs:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
    rows = np.concatenate([known_rows, rng.permuted(sought, axis=0)])
    drawn = np.zeros((len(state.start) - 1, len(rows)), dtype=np.int64)
    table = _Table(rows, drawn, state.bins.copy(), prior)
    for beta in BETAS:
        _draw(state, table, UNIT / beta, bits)
        _swap(state, table, len(known_rows), UNIT / beta, swaps, bits)
    return rows[len(known_rows) :]


@inner_kernel
def _exponential(bits):  # type: ignore[no-untyped-def]
    return -math.log((np.float64(next_bits(bits)) + 0.5) * 2.0**-53)


@inner_kernel
def _way(state, t, row, at):  # type: ignore[no-untyped-def]
    """Write the requested bins of a row on its path through a tree, and return their number."""
    v, n = np.int64(state.start[t]), 0
    while True:
        for p in range(state.pairs[v], state.pairs[v + 1]):
            at[n] = state.at[p] + row[state.feature[p]]
            n += 1
        f = state.nodes[v, FEATURE]
        if f < 0:
            return n
        v = np.int64(state.nodes[v, LEFT if has(state.left[v], row[f]) else RIGHT])


@inner_kernel
def _add(left, k, at, n, m):  # type: ignore[no-untyped-def]
    """Add m draws, and return the increase of the energy."""
    more = 0
    for j in range(n):
        x = left[at[j], k]
        left[at[j], k] = x - m
        more += abs(x - m) - abs(x)
    return more * UNIT


@inner_kernel
def _energies(left, k, at, n, prior, out):  # type: ignore[no-untyped-def]
    """Write the increase of the energy for each number of draws."""
    out[:] = 0
    for j in range(n):
        x = left[at[j], k]
        for m in range(1, prior.shape[0]):
            out[m] += abs(x - m) - abs(x)
    for m in range(prior.shape[0]):
        out[m] = out[m] * UNIT + prior[m]


@kernel
def _draw(state, table, heat, bits):  # type: ignore[no-untyped-def]
    """Draw the number of draws of every row for every tree anew (Gibbs sampling)."""
    rows, drawn, left, prior = table
    at = np.empty(state.levels * rows.shape[1], dtype=np.int64)
    energy = np.empty(prior.shape[0], dtype=np.int64)
    for t in range(drawn.shape[0]):
        for i in range(rows.shape[0]):
            k = rows[i, -1]
            n = _way(state, t, rows[i], at)
            _add(left, k, at, n, -drawn[t, i])
            _energies(left, k, at, n, prior, energy)
            least = np.int64(2**62)
            for m in range(prior.shape[0]):  # Gumbel-max trick: the minimum with noise is a sample
                e = energy[m] + np.int64(heat * math.log(_exponential(bits)))
                if e < least:
                    least, drawn[t, i] = e, m
            _add(left, k, at, n, drawn[t, i])


@inner_kernel
def _draw_wanted_bin(state, table, i, f, heat, gain, bits):  # type: ignore[no-untyped-def]
    """Draw another bin of feature f for row i, weighted by the draws that it would explain."""
    rows, drawn, left, _ = table
    k, present_bin = rows[i, -1], rows[i, f]
    gain[:] = 0
    for t in range(drawn.shape[0]):
        m, v = drawn[t, i], np.int64(state.start[t])
        while m > 0:
            for p in range(state.pairs[v], state.pairs[v + 1]):
                if state.feature[p] == f:
                    x = left[state.at[p] + present_bin, k]
                    lost = abs(x) - abs(x + m)
                    for b in range(state.at[p + 1] - state.at[p]):
                        x = left[state.at[p] + b, k]
                        gain[b] += lost + abs(x) - abs(x - m)
            g = state.nodes[v, FEATURE]
            if g < 0:
                break
            v = np.int64(state.nodes[v, LEFT if has(state.left[v], rows[i, g]) else RIGHT])
    best, want = -np.int64(2**62), present_bin
    for b in range(state.offsets[f + 1] - state.offsets[f]):
        e = gain[b] * UNIT - np.int64(2 * heat * math.log(_exponential(bits)))
        if b != present_bin and e > best:
            best, want = e, b
    return want


@inner_kernel
def _move(state, table, first, heat, gain, move, bits):  # type: ignore[no-untyped-def]
    """Propose two rows i and j, a feature, and their values before and after.

    With probability 3/4, row i gets a value drawn by `_draw_wanted_bin`. A class may also change in
    one row only. The result is False if there is no such move.
    """
    rows, d = table.rows, table.rows.shape[1] - 1
    n = rows.shape[0] - first
    i, j, f = first + remainder(bits, n), first + remainder(bits, n), remainder(bits, d + 1)
    if f < d and remainder(bits, 4) > 0:
        want, n = _draw_wanted_bin(state, table, i, f, heat, gain, bits), 0
        for r in range(first, rows.shape[0]):
            if r != i and rows[r, f] == want:
                n += 1
                if remainder(bits, n) == 0:
                    j = r
    move[0], move[1], move[2] = i, j, f
    move[3], move[4], move[5], move[6] = rows[i, f], rows[j, f], rows[j, f], rows[i, f]
    if f == d and rows[i, f] == rows[j, f]:
        move[5], move[6] = remainder(bits, state.bins.shape[1]), rows[j, f]
    return i != j and move[3] != move[5]


@inner_kernel
def _set(rows, move, values):  # type: ignore[no-untyped-def]
    rows[move[0], move[2]], rows[move[1], move[2]] = move[values], move[values + 1]


@inner_kernel
def _draw_two(state, table, t, i, j, at, energy, draws):  # type: ignore[no-untyped-def]
    """Choose the numbers of draws of two rows that explain most, and return the energy."""
    rows, _, left, prior = table
    k, n = rows[i, -1], _way(state, t, rows[i], at[0])
    k_j, n_j = rows[j, -1], _way(state, t, rows[j], at[1])
    _energies(left, k, at[0], n, prior, energy[0])
    least, draws[0], draws[1] = np.int64(2**62), 0, 0
    for m in range(prior.shape[0]):
        if m > 0:
            _add(left, k, at[0], n, 1)
        if energy[0, m] < least + HOPELESS:
            _energies(left, k_j, at[1], n_j, prior, energy[1])
            for o in range(prior.shape[0]):
                if energy[0, m] + energy[1, o] < least:
                    least, draws[0], draws[1] = energy[0, m] + energy[1, o], m, o
    _add(left, k, at[0], n, draws[0] + 1 - prior.shape[0])
    _add(left, k_j, at[1], n_j, draws[1])
    return least


@inner_kernel
def _add_two(state, table, t, i, j, at, a, b):  # type: ignore[no-untyped-def]
    """Add a and b draws of two rows to a tree, and return the increase of the energy."""
    rows, left = table.rows, table.left
    more = _add(left, rows[i, -1], at, _way(state, t, rows[i], at), a)
    return more + _add(left, rows[j, -1], at, _way(state, t, rows[j], at), b)


@kernel
def _swap(state, table, first, heat, tries, bits):  # type: ignore[no-untyped-def]
    """Propose swaps of values between rows from the first unknown one on (Metropolis)."""
    rows, drawn, prior = table.rows, table.drawn, table.prior
    trees, d = drawn.shape[0], rows.shape[1] - 1
    at = np.empty((2, state.levels * (d + 1)), dtype=np.int64)
    energy = np.empty((2, prior.shape[0]), dtype=np.int64)
    draws, move = np.empty((trees, 2), dtype=np.int64), np.empty(7, dtype=np.int64)
    gain = np.empty(state.left.shape[1] * WORD, dtype=np.int64)
    for _ in range(tries):
        if not _move(state, table, first, heat, gain, move, bits):
            continue
        i, j, more, done = move[0], move[1], np.int64(0), 0
        largest_rise = np.int64(heat * _exponential(bits))
        while done < trees and more <= largest_rise + HOPELESS:
            _set(rows, move, 3)
            a, b = drawn[done, i], drawn[done, j]
            more += _add_two(state, table, done, i, j, at[0], -a, -b) - prior[a] - prior[b]
            _set(rows, move, 5)
            more += _draw_two(state, table, done, i, j, at, energy, draws[done])
            done += 1
        if more <= largest_rise:
            drawn[:, i], drawn[:, j] = draws[:, 0], draws[:, 1]
            continue
        for t in range(done):
            _set(rows, move, 5)
            _add_two(state, table, t, i, j, at[0], -draws[t, 0], -draws[t, 1])
            _set(rows, move, 3)
            _add_two(state, table, t, i, j, at[0], drawn[t, i], drawn[t, j])
