"""Certain class counts of the first tree if only leaf values are visible.

A value ``v = -eta G / (H + lambda)`` is possible for few pairs of integers (N, N1), with at most
one N1 for each N (`fedtrees.attacks.evidence.values`). A pair remains possible if pairs of the
other leaves exist so that all N add up to the declared number of rows. A leaf with a single
possible pair is certain.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import first_gradient
from fedtrees.attacks.evidence.sums import victim_sums
from fedtrees.attacks.evidence.values import positives_of_value
from fedtrees.core.guess import LeafCounts
from fedtrees.core.schema import Table

Longs = NDArray[np.int64]

#: Tolerance of a value, in multiples of the expected float32 rounding error.
SLACK = 2.0
#: Largest error of N1 at which at most one integer is within the tolerance.
_MOST = 0.25


def certain_counts(evidence: Evidence, local_rows: Table) -> LeafCounts | None:
    """Return the victims' counts in the certain leaves of the first tree.

    None if no leaf is certain, or if the method does not apply. It needs two classes, a declared
    number of rows that includes local data, all rows in the tree, and exact sums behind the values.
    """
    is_declared = evidence.level == "values" and evidence.n_rows is not None and evidence.own_inside
    plain = evidence.outputs == 1 and evidence.share == 1 and not evidence.constant_hessian
    off = evidence.noise is not None or evidence.suppressed or evidence.foreign
    if not (is_declared and plain) or off or not evidence.trees or evidence.targets is not None:
        return None
    sums, tree = victim_sums(evidence, local_rows, 1)[0], evidence.trees[0]
    local_counts = np.stack([sums.own_n0, sums.own_n1], axis=1)
    pairs = []
    for value, (n0, n1) in zip(tree.value[tree.leaves], local_counts, strict=True):
        leaf_pairs = _pairs(evidence, value, int(n0), int(n1))
        if leaf_pairs is None:
            return None
        pairs.append(leaf_pairs)
    possible = _adding_up([n for n, _ in pairs], int(evidence.n_rows or 0))
    sure = np.array([int(k.sum()) == 1 for k in possible])
    if not sure.any():
        return None
    both = [(n[k][0], n1[k][0]) if s else (0, 0)
            for (n, n1), k, s in zip(pairs, possible, sure, strict=True)]  # fmt: skip
    n, n1 = np.array(both).T
    counts = np.stack([n - n1, n1], axis=1) - local_counts
    return LeafCounts(0, tree.leaves[sure], counts[sure])


def _pairs(
    evidence: Evidence, value: np.float32, own0: int, own1: int
) -> tuple[Longs, Longs] | None:
    """Return all pairs (N, N1) that a leaf value allows, None if N1 is not unique for some N."""
    off = 0.0
    if evidence.rounding is not None:
        low, high = evidence.rounding.bounds(np.float64(value))
        off = float(np.maximum(value - low, high - value))
    n = np.arange(own0 + own1, int(evidence.n_rows or 0) + 1, dtype=np.int64)
    settings = (evidence.learning_rate, evidence.reg_lambda)
    exact, error = positives_of_value(
        value, n, first_gradient(evidence), settings, off, evidence.reg_alpha
    )
    if (SLACK * error > _MOST).any():
        return None
    n1 = np.rint(exact).astype(np.int64)
    fits = (np.abs(exact - n1) <= SLACK * error) & (n1 >= own1) & (n1 <= n - own0)
    return n[fits], n1[fits]


def _adding_up(sizes: list[Longs], total: int) -> list[NDArray[np.bool_]]:
    """Return which sizes of every leaf are part of a choice of one per leaf with this sum.

    Forward and backward dynamic programming over the leaves.
    """
    ahead = [np.arange(total + 1) == 0]  # possible sums of the leaves before
    for n in sizes:
        ahead.append(_moved(ahead[-1], n))
    behind = np.arange(total + 1) == 0  # possible sums of the leaves after
    possible = []
    for n, before in zip(sizes[::-1], ahead[-2::-1], strict=True):
        reachable = [bool((before & _from_end(behind, total - int(k))).any()) for k in n]
        possible.append(np.array(reachable, dtype=bool))
        behind = _moved(behind, n)
    return possible[::-1]


def _moved(sums: NDArray[np.bool_], sizes: Longs) -> NDArray[np.bool_]:
    out = np.zeros_like(sums)
    for k in sizes.tolist():
        out[k:] |= sums[: len(sums) - k]
    return out


def _from_end(sums: NDArray[np.bool_], total: int) -> NDArray[np.bool_]:
    """Return for every s whether total - s is a possible sum."""
    out = np.zeros_like(sums)
    out[: total + 1] = sums[total::-1] if total >= 0 else False
    return out
