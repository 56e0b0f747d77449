"""First-tree counts that are certain where leaf values alone are seen.

A value ``v = -eta G / (H + lambda)`` leaves few pairs of whole numbers (N, N1), one N1 for each N
(`fedtrees.attacks.evidence.values`). Those stay that are part of some choice of a pair per leaf
which adds up to the number of rows; a leaf with one pair left is certain.
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

#: How far a value may be off, in what float32 is expected to leave.
SLACK = 2.0
#: A leaf's N1 is told while its error is below it: one whole number is near.
_MOST = 0.25


def certain_counts(evidence: Evidence, own: Table) -> LeafCounts | None:
    """Return the victims' counts in the leaves of the first tree that are certain; None: none are.

    All rows are in it, their number is known, and values are of their exact sums.
    """
    told = evidence.level == "values" and evidence.n_rows is not None and evidence.own_inside
    plain = evidence.outputs == 1 and evidence.share == 1 and not evidence.constant_hessian
    off = evidence.noise is not None or evidence.suppressed or evidence.foreign
    if not (told and plain) or off or not evidence.trees or evidence.targets is not None:
        return None
    sums, tree = victim_sums(evidence, own, 1)[0], evidence.trees[0]
    mine = np.stack([sums.own_n0, sums.own_n1], axis=1)
    pairs = []
    for value, (n0, n1) in zip(tree.value[tree.leaves], mine, strict=True):
        found = _pairs(evidence, value, int(n0), int(n1))
        if found is None:
            return None
        pairs.append(found)
    kept = _adding_up([n for n, _ in pairs], int(evidence.n_rows or 0))
    sure = np.array([int(k.sum()) == 1 for k in kept])
    if not sure.any():
        return None
    both = [(n[k][0], n1[k][0]) if s else (0, 0)
            for (n, n1), k, s in zip(pairs, kept, sure, strict=True)]  # fmt: skip
    n, n1 = np.array(both).T
    counts = np.stack([n - n1, n1], axis=1) - mine
    return LeafCounts(0, tree.leaves[sure], counts[sure])


def _pairs(
    evidence: Evidence, value: np.float32, own0: int, own1: int
) -> tuple[Longs, Longs] | None:
    """Return all pairs (N, N1) that a leaf's value allows; None where they are too many to tell."""
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
    """Return which sizes of every leaf are part of a choice, one of each, of this sum."""
    ahead = [np.arange(total + 1) == 0]  # sums that the leaves before can have
    for n in sizes:
        ahead.append(_moved(ahead[-1], n))
    behind = np.arange(total + 1) == 0  # likewise those after
    kept = []
    for n, before in zip(sizes[::-1], ahead[-2::-1], strict=True):
        there = [bool((before & _from_end(behind, total - int(k))).any()) for k in n]
        kept.append(np.array(there, dtype=bool))
        behind = _moved(behind, n)
    return kept[::-1]


def _moved(sums: NDArray[np.bool_], sizes: Longs) -> NDArray[np.bool_]:
    out = np.zeros_like(sums)
    for k in sizes.tolist():
        out[k:] |= sums[: len(sums) - k]
    return out


def _from_end(sums: NDArray[np.bool_], total: int) -> NDArray[np.bool_]:
    """Return for every s whether total - s is one of the sums."""
    out = np.zeros_like(sums)
    out[: total + 1] = sums[total::-1] if total >= 0 else False
    return out
