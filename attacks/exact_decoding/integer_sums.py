"""Certain class counts of the first tree: by division of integer sums, or from leaf values.

A value ``v = -eta G / (H + lambda)`` is possible for few pairs of integers (N, N1), with at most
one N1 for each N (`fedtrees.attacks.counts.leaf_values`). A pair remains possible if pairs of the
other leaves exist so that all N add up to the declared number of rows. A leaf with a single
possible pair is certain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import Counts, initial_gradient, victim_sums
from fedtrees.attacks.counts.leaf_values import positives_observed
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.core.claims import LeafCounts
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, to_fixed
from fedtrees.trees.boosted.losses import LOGISTIC, logistic_gradients

Longs = NDArray[np.int64]

UNIT = 1 << FIXED_POINT_BITS


def units_of(margin: NDArray[np.float32], label: int) -> Longs:
    """Return gradients and hessians of rows of a label, in units of 2^-30, int64, shape (n, 2)."""
    return to_fixed(logistic_gradients(margin, np.full(len(margin), label)))


def rounding_of(margin: NDArray[np.float32]) -> int:
    """Return the largest rounding error of float32(p - 1) over the margins, in units of 2^-30."""
    off = units_of(margin, 0)[:, 0] - units_of(margin, 1)[:, 0] - UNIT
    return int(np.abs(off).max(initial=0))


def exact_sums(evidence: BoostingObservations, local_rows: Table) -> list[Longs] | None:
    """Return the victims' sums G and H of the leaves of all trees, in units of 2^-30.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with sums per node.
    local_rows : Table
        Local data of the adversary, subtracted if it is in the sums.

    Returns
    -------
    list of int64 array, shape (J, 2), or None
        One array per tree. None if sums are not visible, noisy, suppressed, or not multiples of the
        unit; if trees were grown on other rows or restart; or if rounds use samples of the rows and
        the sums of the sampled local rows are unknown.
    """
    trees = evidence.trees
    if evidence.share < 1 and evidence.observed.own_sums is None:
        return None
    if evidence.outputs != 1 or evidence.foreign or evidence.restart:
        return None  # several gradients per row, foreign trees, or another base score in between
    if not evidence.distortion.exact or evidence.constant_hessian:
        return None
    if evidence.observed.level == "values":
        return None
    if not trees or any(tree.g is None or tree.h is None for tree in trees):
        return None
    rows_inside = local_rows if evidence.observed.own_inside else local_rows.take(slice(0))
    nodes = Forest(trees, evidence.base_margin).apply(rows_inside.X)
    margin = np.full(len(rows_inside), evidence.base_margin, dtype=np.float32)
    out = []
    for t, tree in enumerate(trees):
        seen = np.stack([tree.g, tree.h], axis=1)[tree.leaves] * UNIT  # type: ignore[arg-type]
        if not (np.isfinite(seen).all() and (seen == np.rint(seen)).all()):
            return None
        local_sums = np.zeros((len(tree), 2), dtype=np.int64)
        np.add.at(local_sums, nodes[:, t], to_fixed(logistic_gradients(margin, rows_inside.y)))
        sent = evidence.observed.own_sums
        leaf_sums = local_sums[tree.leaves] if sent is None else to_fixed(sent[t])
        out.append(seen.astype(np.int64) - leaf_sums)
        margin += tree.value[nodes[:, t]]
    return out


def first_counts(target: Longs, base: np.float32) -> Counts | None:
    """Return the class counts of the first tree by division (Di Gennaro et al. 2025, Eqs. 4-9).

    Parameters
    ----------
    target : int64 array, shape (J, 2)
        Sums G and H of the leaves, in units of 2^-30.
    base : float32
        Base margin. All rows have the same p and h, which follow from it.

    Returns
    -------
    Counts or None
        None if a division leaves a remainder or counts are contradictory. This is the case, for
        example, if the sums are rounded or suppressed.
    """
    margin = np.array([base], dtype=np.float32)
    p, h = units_of(margin, 0)[0]
    one = p - units_of(margin, 1)[0, 0]  # 1 up to rounding
    if h == 0:
        return None
    n, rest = np.divmod(target[:, 1], h)
    n1, over = np.divmod(n * p - target[:, 0], one)
    if rest.any() or over.any() or (n < 0).any() or (n1 < 0).any() or (n1 > n).any():
        return None
    return Counts(n - n1, n1, 0.0)


def base_margin_of(evidence: BoostingObservations) -> np.float32 | None:
    """Infer the base margin from the sums of the first tree, None if this is not possible.

    All hessians of the first tree are equal, so that the hessian sums are multiples of this value.
    Two base scores are tried: probability 1/2, and the mean label that follows from the counts. A
    base score is accepted if it leads to consistent counts.
    """
    tree = evidence.trees[0]
    if tree.g is None or tree.h is None:
        return None
    total = np.rint(np.stack([tree.g, tree.h], axis=1)[tree.leaves] * UNIT).astype(np.int64)
    h = int(np.gcd.reduce(total[:, 1], initial=0)) / UNIT
    if not 0 < h <= 0.25:
        return None
    root = np.sqrt(0.25 - h)
    for p in (0.5 - root, 0.5 + root):
        n = total[:, 1].sum() / UNIT / h
        mean = round(n * p - total[:, 0].sum() / UNIT) / round(n)
        for score in (0.5, mean):
            try:
                margin = np.float32(LOGISTIC.base_margin(score)[0])
            except UsageError:  # a mean label of 0 or 1
                continue
            if first_counts(total, margin) is not None:
                return margin
    return None


#: Tolerance of a value, in multiples of the expected float32 rounding error.
SLACK = 2.0
#: Largest error of N1 at which at most one integer is within the tolerance.
_MOST = 0.25


def certain_counts(evidence: BoostingObservations, local_rows: Table) -> LeafCounts | None:
    """Return the victims' counts in the certain leaves of the first tree.

    None if no leaf is certain, or if the method does not apply. It needs two classes, a declared
    number of rows that includes local data, all rows in the tree, and exact sums behind the values.
    """
    observed, n_rows = evidence.observed, evidence.row_counts.n_rows
    if observed.level != "values" or n_rows is None or not observed.own_inside:
        return None
    plain = evidence.outputs == 1 and evidence.share == 1 and not evidence.constant_hessian
    exact = evidence.distortion.exact and not evidence.foreign
    if not (plain and exact and evidence.trees) or evidence.targets is not None:
        return None
    sums, tree = victim_sums(evidence, local_rows, 1)[0], evidence.trees[0]
    local_counts = np.stack([sums.own_n0, sums.own_n1], axis=1)
    pairs = []
    for value, (n0, n1) in zip(tree.value[tree.leaves], local_counts, strict=True):
        leaf_pairs = _pairs(evidence, value, int(n0), int(n1))
        if leaf_pairs is None:
            return None
        pairs.append(leaf_pairs)
    possible = _adding_up([n for n, _ in pairs], n_rows)
    sure = np.array([int(k.sum()) == 1 for k in possible])
    if not sure.any():
        return None
    both = [(n[k][0], n1[k][0]) if s else (0, 0)
            for (n, n1), k, s in zip(pairs, possible, sure, strict=True)]  # fmt: skip
    n, n1 = np.array(both).T
    counts = np.stack([n - n1, n1], axis=1) - local_counts
    return LeafCounts(0, tree.leaves[sure], counts[sure])


def _pairs(
    evidence: BoostingObservations, value: np.float32, own0: int, own1: int
) -> tuple[Longs, Longs] | None:
    """Return all pairs (N, N1) that a leaf value allows, None if N1 is not unique for some N."""
    n = np.arange(own0 + own1, int(evidence.row_counts.n_rows or 0) + 1, dtype=np.int64)
    exact, error = positives_observed(evidence, value, n, initial_gradient(evidence))
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
