"""Prior and likelihood of the rows of a chain, as changes by a proposal (Metropolis-Hastings).

The prior is a collapsed mixture of latent classes (`Classes`). The rows of a label belong to K
latent classes with a Dirichlet prior on their shares. Within a class, features are independent,
each with a Dirichlet prior of total weight a0 around the marginal of the label in the local data.
Shares and distributions are integrated out, so that the state consists of counts (Neal 2000,
Algorithm 3 for a finite number of classes). Local rows are data with known cells and unknown class.

The negative log likelihood, or energy, is half the weighted sum of squared residuals of all leaves,
in nats. A changed cell can move a row to other leaves. This changes its margin, and therefore its
gradients in all later trees.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.posterior_problem import contributions_of_row, target_of_row, walk
from fedtrees.attacks.reconstruction.boxes import has
from fedtrees.attacks.reconstruction.prior import Prior
from fedtrees.attacks.solvers.sampling import uniform
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

CLASS_WEIGHT = 1.0  # Dirichlet weight of each class share


class Classes(NamedTuple):
    """Counts of rows per component of the mixture. A component is a latent class of a label.

    A named tuple of arrays, because compiled kernels accept it as an argument. The counts change in
    place.

    Attributes
    ----------
    base : float64 array, shape (L, d, w)
        Prior counts per label, feature and cell: a0 times the marginal of the label.
    weight : float
        a0.
    count : int32 array, shape (L * K, d, w)
        Rows per component, feature and cell.
    present : int32 array, shape (L * K, d)
        Rows per component whose feature is not missing.
    size : int32 array, shape (L * K,)
        Rows per component.
    """

    base: Floats
    weight: float
    count: Ints  # type: ignore[assignment]
    present: Ints
    size: Ints

    @staticmethod
    def of(prior: Prior, n_classes: int, weight: float) -> Classes:
        """Return empty counts with the marginals of the prior.

        Parameters
        ----------
        prior : Prior
            Masses of the cells per label and feature.
        n_classes : int
            Number of latent classes per label, K.
        weight : float
            Total weight of the prior counts of a feature, a0, in rows.
        """
        base = weight * np.diff(prior.cumulative / prior.cumulative[:, :, -1:], axis=2)
        labels, d, w = base.shape
        return Classes(
            base,
            weight,
            np.zeros((labels * n_classes, d, w), dtype=np.int32),
            np.zeros((labels * n_classes, d), dtype=np.int32),
            np.zeros(labels * n_classes, dtype=np.int32),
        )

    def add(self, cells: Ints, component: Ints) -> None:
        """Count rows (int32, shape (n, d), -1 where missing) in their components."""
        for i in range(len(component)):
            count_row(self, cells, i, component[i], 1)


@kernel
def count_row(classes, cell, i, component, sign):  # type: ignore[no-untyped-def]
    """Add row ``i`` of ``cell`` to a component, or remove it if ``sign`` is -1, in place."""
    classes.size[component] += sign
    for f in range(cell.shape[1]):
        c = cell[i, f]
        if c >= 0:
            classes.count[component, f, c] += sign
            classes.present[component, f] += sign


@kernel
def draw_class(classes, cell, i, label, scratch, u):  # type: ignore[no-untyped-def]
    """Draw a component for a row that is in none, given all other rows.

    Parameters
    ----------
    classes : Classes
    cell : int32 array, shape (m, d)
        Cells of all rows.
    i, label : int
        The row and its label.
    scratch : float64 array, shape (K,)
        Memory for intermediate results.
    u : float
        Uniform random number in [0, 1).
    """
    base, count, present = classes.base, classes.count, classes.present
    K = scratch.shape[0]
    total = 0.0
    for k in range(K):
        q = label * K + k
        w = classes.size[q] + CLASS_WEIGHT
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                w *= (count[q, f, c] + base[label, f, c]) / (present[q, f] + classes.weight)
        total += w
        scratch[k] = total
    if not total > 1e-250:  # the product over many features underflows: use logarithms
        total = _cumulate_logs(classes, cell, i, label, scratch)
    k = 0
    while k < K - 1 and scratch[k] <= u * total:
        k += 1
    return label * K + k


@inner_kernel
def _cumulate_logs(classes, cell, i, label, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with cumulative class weights relative to the greatest; return their sum."""
    base, count, present = classes.base, classes.count, classes.present
    K = out.shape[0]
    top = -np.inf
    for k in range(K):
        q = label * K + k
        out[k] = np.log(classes.size[q] + CLASS_WEIGHT)
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                out[k] += np.log(count[q, f, c] + base[label, f, c])
                out[k] -= np.log(present[q, f] + classes.weight)
        top = max(top, out[k])
    total = 0.0
    for k in range(K):
        total += np.exp(out[k] - top)
        out[k] = total
    return total


@inner_kernel
def log_weight(classes, cell, i, label, scratch):  # type: ignore[no-untyped-def]
    """Return the log of P(label) P(cells | label) for a row that is in no component.

    The share of the label has a uniform prior. Parameters are those of `draw_class`.
    """
    K, n, top = scratch.shape[0], 0, -np.inf
    for k in range(K):
        q = label * K + k
        n += classes.size[q]
        w = np.log(classes.size[q] + CLASS_WEIGHT)
        for f in range(cell.shape[1]):
            c = cell[i, f]
            if c >= 0:
                w += np.log(
                    (classes.count[q, f, c] + classes.base[label, f, c])
                    / (classes.present[q, f] + classes.weight)
                )
        scratch[k] = w
        top = max(top, w)
    total = 0.0
    for k in range(K):
        total += np.exp(scratch[k] - top)
    return top + np.log(total) + np.log((n + 1.0) / (n + K * CLASS_WEIGHT))


@inner_kernel
def draw_cell(classes, component, label, f, current_cell, u):  # type: ignore[no-untyped-def]
    """Draw a cell of a feature for a row, given all other rows of its component.

    ``current_cell`` is the current cell of the row. The counts include it, so that it is
    subtracted. ``u`` is a uniform random number in [0, 1).
    """
    base, count = classes.base, classes.count
    left = u * (classes.present[component, f] - 1 + classes.weight)
    last = 0
    for c in range(base.shape[2]):
        mass = count[component, f, c] + base[label, f, c]
        if c == current_cell:
            mass -= 1.0
        if mass > 0.0:
            left -= mass
            last = c
            if left < 0.0:
                break
    return last


@inner_kernel
def swap_gain(classes, f, ca, cb, qa, qb, la, lb):  # type: ignore[no-untyped-def]
    """Return the factor by which the prior changes if two rows exchange their cells of a feature.

    ``ca`` and ``cb`` are their current cells, ``qa`` and ``qb`` their components, ``la`` and ``lb``
    their labels.
    """
    if ca == cb or qa == qb:
        return 1.0
    base, count = classes.base, classes.count
    gain = (count[qa, f, cb] + base[la, f, cb]) / (count[qa, f, ca] - 1.0 + base[la, f, ca])
    gain *= (count[qb, f, ca] + base[lb, f, ca]) / (count[qb, f, cb] - 1.0 + base[lb, f, cb])
    return gain


# Kernels in this module and in `sampler` neither return early nor take views of rows. Otherwise
# numba would count references to every array of their arguments, which costs a tenth of a move.


@kernel
def judge(world, state, precision, new, n_rows, n_changed):  # type: ignore[no-untyped-def]
    """Route the rows of a proposal through all trees and return the decrease of the energy.

    Parameters
    ----------
    world : World
        Trees and sums.
    state : State
        The current rows.
    precision : float64 array, shape (L, 2)
        Weights of the squared residuals.
    new : Proposal
        The proposed cells. Its leaves and probabilities are filled in.
    n_rows : {1, 2}
        Number of rows in the proposal.
    n_changed : int
        Number of features in ``new.changed``.

    Returns
    -------
    first : int
        First tree in which a contribution changes, or the number of trees if none does.
    gain : float
        Decrease of the energy, in nats.
    """
    first, gain = world.root.shape[0], 0.0
    for s in range(n_rows):
        if world.outputs == 1:
            first = min(first, _follow(world, state, new, s, n_changed))
        else:
            first = min(first, _follow_classes(world, state, new, s, n_changed))
    for s in range(n_rows):
        gain += _alone(world, state, precision, new, s, first)
    return first, gain + _together(world, state, precision, new, n_rows, first)


@kernel
def accept(world, state, new, n_rows, first):  # type: ignore[no-untyped-def]
    """Copy leaves and probabilities of a proposal to the state after `judge`, in place.

    The residuals are updated from tree ``first`` on. The caller updates the cells afterwards.
    """
    for s in range(n_rows):
        i = new.row[s]
        for t in range(first, state.leaf.shape[1]):
            j, k = state.leaf[i, t], new.leaf[s, t]
            if state.inside[i, t]:
                y = target_of_row(world, state.label[i], state.cell, i, t)
                g, h = contributions_of_row(state.p[i, t], y, world.slope[j], world.bend)
                state.residual[j, 0] -= g
                state.residual[j, 1] -= h
                y = target_of_row(world, state.label[i], new.cell, s, t)
                g, h = contributions_of_row(new.p[s, t], y, world.slope[k], world.bend)
                state.residual[k, 0] += g
                state.residual[k, 1] += h
            if not world.foreign[t]:
                state.p[i, t] = new.p[s, t]
            state.leaf[i, t] = k


@inner_kernel
def _follow(world, state, new, s, n_changed):  # type: ignore[no-untyped-def]
    """Route row ``s`` of a proposal. Return the first tree with another contribution, or T."""
    i, T = new.row[s], world.root.shape[0]
    first, shift, factor, by_set = T, 0.0, 1.0, world.sets.shape[0] > 0
    numbers = world.targets.shape[0] > 0
    if numbers and new.cell[s, -1] != state.cell[i, -1]:
        first = 0  # another target changes the gradient in every tree
    for t in range(T):
        j = state.leaf[i, t]
        new.leaf[s, t] = j
        if not world.foreign[t]:
            q = state.p[i, t]
            if numbers:
                new.p[s, t] = q + shift
            else:
                new.p[s, t] = q if first == T else q * factor / (1.0 - q + q * factor)
        for k in range(n_changed):
            f = new.changed[k]
            c = new.cell[s, f]
            out = c < world.box[j, f, 0] or c >= world.box[j, f, 1]
            if out or (by_set and not has(world.codes[j, f], c)):
                # The new cell is outside the box of the old leaf: route the row again. All later
                # predictions change by the difference of both leaf values.
                to = walk(world, t, new.cell, s)
                new.leaf[s, t] = to
                shift += world.value[to] - world.value[j]
                factor = math.exp(shift)
                first = min(first, t)
                break
    return first


@inner_kernel
def _follow_classes(world, state, new, s, n_changed):  # type: ignore[no-untyped-def]
    """Route a row like `_follow` if a round has one tree per class.

    The margins of all classes change at the end of the round.
    """
    i, T, K = new.row[s], world.root.shape[0], world.outputs
    first, by_set, was, rise = T, world.sets.shape[0] > 0, new.factor[0], new.factor[1]
    for c in range(K):
        rise[c] = 1.0
    for t in range(T):
        c = t % K
        if c == 0:
            total = 0.0
            for k in range(K):
                was[k] = rise[k]
                total += state.p[i, t + k] * was[k]
            for k in range(K if not world.foreign[t] else 0):
                q = state.p[i, t + k]
                new.p[s, t + k] = q if first == T else q * was[k] / total
        j = state.leaf[i, t]
        new.leaf[s, t] = j
        for k in range(n_changed):
            f = new.changed[k]
            x = new.cell[s, f]
            out = x < world.box[j, f, 0] or x >= world.box[j, f, 1]
            if out or (by_set and not has(world.codes[j, f], x)):
                to = walk(world, t, new.cell, s)
                new.leaf[s, t] = to
                rise[c] *= math.exp(world.value[to] - world.value[j])
                first = min(first, t)
                break
    return first


@inner_kernel
def _drop(j, dg, dh, residual, precision):  # type: ignore[no-untyped-def]
    """Return the decrease of the energy of leaf j if its residual changes by (dg, dh)."""
    return -(
        precision[j, 0] * dg * (residual[j, 0] + 0.5 * dg)
        + precision[j, 1] * dh * (residual[j, 1] + 0.5 * dh)
    )


@inner_kernel
def _alone(world, state, precision, new, s, first):  # type: ignore[no-untyped-def]
    """Return the decrease of the energy if only row ``s`` of a proposal changes."""
    i, gain = new.row[s], 0.0
    for t in range(first, state.leaf.shape[1]):
        if state.inside[i, t]:
            j, k = state.leaf[i, t], new.leaf[s, t]
            y = target_of_row(world, state.label[i], state.cell, i, t)
            gj, hj = contributions_of_row(state.p[i, t], y, world.slope[j], world.bend)
            y = target_of_row(world, state.label[i], new.cell, s, t)
            gk, hk = contributions_of_row(new.p[s, t], y, world.slope[k], world.bend)
            if j == k:
                gain += _drop(j, gk - gj, hk - hj, state.residual, precision)
            else:
                gain += _drop(j, -gj, -hj, state.residual, precision)
                gain += _drop(k, gk, hk, state.residual, precision)
    return gain


@inner_kernel
def _meet(j, k, sign, gj, hj, gk, hk, precision):  # type: ignore[no-untyped-def]
    """Return the cross term of two changes of the same leaf, 0 for different leaves."""
    if j != k:
        return 0.0
    return sign * (precision[j, 0] * gj * gk + precision[j, 1] * hj * hk)


@inner_kernel
def _together(world, state, precision, new, n_rows, first):  # type: ignore[no-untyped-def]
    """Return the sum of the cross terms between both rows of a proposal, 0 for one row.

    The energy is quadratic, so that the gains of two rows add up except in leaves that both rows
    enter or leave.
    """
    a, b, gain = new.row[0], new.row[n_rows - 1], 0.0
    for t in range(first, state.leaf.shape[1] if n_rows == 2 else first):
        ja, ka, jb, kb = state.leaf[a, t], new.leaf[0, t], state.leaf[b, t], new.leaf[1, t]
        if not (state.inside[a, t] and state.inside[b, t]):
            continue
        # the rows interact only if they share one of their old or new leaves
        if ja != jb and ja != kb and ka != jb and ka != kb:
            continue
        ya = target_of_row(world, state.label[a], state.cell, a, t)
        yb = target_of_row(world, state.label[b], state.cell, b, t)
        gja, hja = contributions_of_row(state.p[a, t], ya, world.slope[ja], world.bend)
        gjb, hjb = contributions_of_row(state.p[b, t], yb, world.slope[jb], world.bend)
        ya = target_of_row(world, state.label[a], new.cell, 0, t)
        yb = target_of_row(world, state.label[b], new.cell, 1, t)
        gka, hka = contributions_of_row(new.p[0, t], ya, world.slope[ka], world.bend)
        gkb, hkb = contributions_of_row(new.p[1, t], yb, world.slope[kb], world.bend)
        gain += _meet(ja, jb, -1.0, gja, hja, gjb, hjb, precision)
        gain += _meet(ja, kb, 1.0, gja, hja, gkb, hkb, precision)
        gain += _meet(ka, jb, 1.0, gka, hka, gjb, hjb, precision)
        gain += _meet(ka, kb, -1.0, gka, hka, gkb, hkb, precision)
    return gain


@inner_kernel
def relabel_gain(state, precision, i):  # type: ignore[no-untyped-def]
    """Return the decrease of the energy, in nats, if the label of row ``i`` changes."""
    gain, dg = 0.0, 2.0 * state.label[i] - 1.0
    for t in range(state.leaf.shape[1]):
        if state.inside[i, t]:
            gain += _drop(state.leaf[i, t], dg, 0.0, state.residual, precision)
    return gain


@inner_kernel
def relabel(state, i):  # type: ignore[no-untyped-def]
    """Change the label of row ``i`` in place. The component is not updated."""
    dg = 2.0 * state.label[i] - 1.0
    for t in range(state.leaf.shape[1]):
        if state.inside[i, t]:
            state.residual[state.leaf[i, t], 0] += dg
    state.label[i] = 1 - state.label[i]


@inner_kernel
def resample(world, state, precision, i, bits):  # type: ignore[no-untyped-def]
    """Redraw in which trees row ``i`` takes part, given everything else (a Gibbs step), in place.

    The participation in the first tree is fixed.
    """
    odds = math.log(world.share) - math.log1p(-world.share)
    for t in range(1, state.leaf.shape[1]):
        if world.foreign[t]:
            continue
        j, was = state.leaf[i, t], state.inside[i, t]
        y = target_of_row(world, state.label[i], state.cell, i, t)
        g, h = contributions_of_row(state.p[i, t], y, world.slope[j], world.bend)
        sign = -1.0 if was else 1.0
        gain = _drop(j, sign * g, sign * h, state.residual, precision) + sign * odds
        # accept the other value with probability exp(gain) / (1 + exp(gain))
        if uniform(bits) * (1.0 + math.exp(-gain)) < 1.0:
            state.inside[i, t] = not was
            state.residual[j, 0] += sign * g
            state.residual[j, 1] += sign * h


@inner_kernel
def trade(world, state, precision, a, b, t, bits):  # type: ignore[no-untyped-def]
    """Try to exchange the participation of two rows in a tree by a Metropolis step, in place.

    Nothing happens if both rows take part in the tree, if none does, or if the tree is foreign.
    """
    if state.inside[a, t] == state.inside[b, t] or world.foreign[t]:
        return
    i, o = (a, b) if state.inside[a, t] else (b, a)
    j, k = state.leaf[i, t], state.leaf[o, t]
    yi = target_of_row(world, state.label[i], state.cell, i, t)
    yo = target_of_row(world, state.label[o], state.cell, o, t)
    gi, hi = contributions_of_row(state.p[i, t], yi, world.slope[j], world.bend)
    go, ho = contributions_of_row(state.p[o, t], yo, world.slope[k], world.bend)
    gain = _drop(j, -gi, -hi, state.residual, precision)
    gain += _drop(k, go, ho, state.residual, precision)
    gain += _meet(j, k, 1.0, gi, hi, go, ho, precision)
    if gain >= 0.0 or uniform(bits) < math.exp(gain):
        state.inside[i, t], state.inside[o, t] = False, True
        state.residual[j, 0] -= gi
        state.residual[j, 1] -= hi
        state.residual[k, 0] += go
        state.residual[k, 1] += ho
