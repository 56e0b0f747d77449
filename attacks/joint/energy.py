"""What a proposal does to the residuals of all leaves, and so to the state's energy."""

from __future__ import annotations

import math

from fedtrees.attacks.joint.state import walk
from fedtrees.trees.jit import kernel


@kernel
def _drop(j, dg, dh, residual, precision):  # type: ignore[no-untyped-def]
    """Return how much less energy a leaf has once its residual changes by (dg, dh)."""
    return -(
        precision[j, 0] * dg * (residual[j, 0] + 0.5 * dg)
        + precision[j, 1] * dh * (residual[j, 1] + 0.5 * dh)
    )


@kernel
def _follow(cell, changed, leaf, p, root, node, box, value, foreign, new_leaf, new_p):  # type: ignore[no-untyped-def]
    """Route a row whose listed features changed; return the first tree it changes leaf in.

    Returns the number of trees where it changes none.
    """
    T = root.shape[0]
    first, shift, factor = T, 0.0, 1.0
    for t in range(T):
        j = leaf[t]
        new_leaf[t] = j
        if not foreign[t]:
            q = p[t]
            new_p[t] = q if first == T else q * factor / (1.0 - q + q * factor)
        for k in range(changed.shape[0]):
            f = changed[k]
            if cell[f] < box[j, f, 0] or cell[f] >= box[j, f, 1]:
                new = walk(root[t], node, cell)
                new_leaf[t] = new
                shift += value[new] - value[j]
                factor = math.exp(shift)
                first = min(first, t)
                break
    return first


@kernel
def _gain(first, y, new_leaf, new_p, leaf, p, residual, precision, slope, foreign, flat):  # type: ignore[no-untyped-def]
    """Return how much less energy one row's new leaves and probabilities have."""
    gain = 0.0
    for t in range(first, leaf.shape[0]):
        if foreign[t]:
            continue
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
def _together(
    first, a, b, ya, yb, new_leaf, new_p, leaf, p, precision, slope, foreign, flat
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Return what the gains of two rows, each judged alone, leave out."""
    gain = 0.0
    for t in range(first, leaf.shape[1]):
        ja, ka, jb, kb = leaf[a, t], new_leaf[0, t], leaf[b, t], new_leaf[1, t]
        if foreign[t] or (ja != jb and ja != kb and ka != jb and ka != kb):
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
def accept(first, rows, labels, new_leaf, new_p, leaf, p, residual, slope, foreign, flat):  # type: ignore[no-untyped-def]
    for s in range(rows.shape[0]):
        i = rows[s]
        for t in range(first, leaf.shape[1]):
            if foreign[t]:
                leaf[i, t] = new_leaf[s, t]
                continue
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
def judge(
    rows, labels, new_cell, changed, leaf, p, residual, root, node, box, value, slope, foreign,
    flat, precision, new_leaf, new_p,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Return the first tree that a proposal changes, and how much less energy it has."""
    first, gain = root.shape[0], 0.0
    for s in range(rows.shape[0]):
        i = rows[s]
        here = _follow(
            new_cell[s], changed, leaf[i], p[i], root, node, box, value, foreign, new_leaf[s],
            new_p[s],
        )  # fmt: skip
        first = min(first, here)
    for s in range(rows.shape[0]):
        i = rows[s]
        gain += _gain(
            first, labels[s], new_leaf[s], new_p[s], leaf[i], p[i], residual, precision, slope,
            foreign, flat,
        )  # fmt: skip
    if rows.shape[0] == 2:
        gain += _together(
            first, rows[0], rows[1], labels[0], labels[1], new_leaf, new_p, leaf, p, precision,
            slope, foreign, flat,
        )  # fmt: skip
    return first, gain
