"""Leaf sums as whole numbers, and what the first tree's say for certain."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.lattice.contents import UNIT
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.fixed_point import to_fixed
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC, logistic_gradients

Longs = NDArray[np.int64]


def units_of(margin: NDArray[np.float32], label: int) -> Longs:
    """Return gradient and hessian of rows of a label in units, int64, shape (n, 2)."""
    return to_fixed(logistic_gradients(margin, np.full(len(margin), label)))


def rounding_of(margin: NDArray[np.float32]) -> int:
    """Return how far float32(p - 1) is from p - 1 at most, in units, over the margins."""
    off = units_of(margin, 0)[:, 0] - units_of(margin, 1)[:, 0] - UNIT
    return int(np.abs(off).max(initial=0))


def exact_sums(evidence: Evidence, own: Table) -> list[Longs] | None:
    """Return per tree the victims' G and H per leaf in units, int64, shape (J, 2).

    None where sums are not seen, are noisy, lack what was suppressed, or are no whole numbers of
    units, and where it was not told which own rows are in them.
    """
    trees = evidence.trees
    if evidence.share < 1 and evidence.own_sums is None:
        return None
    if evidence.outputs != 1 or evidence.foreign or evidence.restart:
        return None  # trees of other rows, or margins that start anew
    if evidence.noise is not None or evidence.suppressed:
        return None
    if evidence.level == "values" or evidence.constant_hessian:
        return None
    if not trees or any(tree.g is None or tree.h is None for tree in trees):
        return None
    own = own if evidence.own_inside else own.take(slice(0))
    nodes = Forest(trees, evidence.base_margin).apply(own.X)
    margin = np.full(len(own), evidence.base_margin, dtype=np.float32)
    out = []
    for t, tree in enumerate(trees):
        seen = np.stack([tree.g, tree.h], axis=1)[tree.leaves] * UNIT  # type: ignore[arg-type]
        if not (np.isfinite(seen).all() and (seen == np.rint(seen)).all()):
            return None
        mine = np.zeros((len(tree), 2), dtype=np.int64)
        np.add.at(mine, nodes[:, t], to_fixed(logistic_gradients(margin, own.y)))
        told = None if evidence.own_sums is None else to_fixed(evidence.own_sums[t])
        out.append(seen.astype(np.int64) - (mine[tree.leaves] if told is None else told))
        margin += tree.value[nodes[:, t]]
    return out


def first_counts(target: Longs, base: np.float32) -> Counts | None:
    """Return the first tree's class counts, None unless its sums divide without rest.

    Every row brings the same p and h to it (``base`` is its log-odds), so that N and N1 follow from
    G and H in units, int64 (J, 2), by division; sums of anything but whole rows (rounded,
    suppressed, of other rows) leave a rest.
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


def base_margin_of(evidence: Evidence) -> np.float32 | None:
    """Return the log-odds before the first tree from its sums alone, None where they do not tell.

    All hessians of the first tree are equal, so the leaf sums are multiples of it. Tried are the
    two ways a run starts: probability 1/2, and the mean label, which the counts that follow from
    a candidate must give again.
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
