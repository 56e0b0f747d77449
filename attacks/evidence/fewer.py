"""Scale sums and counts so that a sample of rows represents all rows of a large federation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtrees.attacks.evidence.allocation import share_out
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.guessing.rows import wanted


def share_of(rows: int) -> float:
    """Return the share of the given number of rows that an attack reconstructs."""
    return wanted(rows) / rows if rows else 1.0


def with_fewer_rows(
    evidence: Evidence, sums: Sequence[LeafSums], counts: Sequence[Counts], share: float
) -> tuple[Evidence, list[LeafSums], list[Counts]]:
    """Return the evidence, sums and counts that a share of the rows would have given.

    Penalties are scaled as well, because a leaf value ties ``G + (v / eta) H`` to the penalties,
    which have to shrink with the sums.

    Parameters
    ----------
    evidence : Evidence
        Training parameters.
    sums : sequence of LeafSums
        Victims' sums, one entry per tree.
    counts : sequence of Counts
        Victims' counts of the trees of the first round. May be empty.
    share : float
        Share of the rows, 0 to 1. For 1, the input is returned.
    """
    if share == 1:
        return evidence, list(sums), list(counts)
    penalties = {name: share * getattr(evidence, name) for name in ("reg_lambda", "reg_alpha")}
    return replace(evidence, **penalties), [_sums(s, share) for s in sums], _counts(counts, share)


def _sums(sums: LeafSums, share: float) -> LeafSums:
    return replace(
        sums,
        g=None if sums.g is None else share * sums.g,
        h=None if sums.h is None else share * sums.h,
        var_g=share**2 * sums.var_g,
        var_h=share**2 * sums.var_h,
        own_g=share * sums.own_g,
        own_h=share * sums.own_h,
    )


def _counts(counts: Sequence[Counts], share: float) -> list[Counts]:
    """Return scaled counts in which all trees have the same number of rows of each class."""
    if not counts:
        return []
    total = round(share * int((counts[0].n0 + counts[0].n1).sum()))
    if len(counts) == 1:
        (c,) = counts
        both = share_out(share * np.concatenate([c.n0, c.n1]), total)
        return [Counts(both[: len(c.n0)], both[len(c.n0) :], c.residual)]
    of_class = share_out(np.array([float(c.n1.sum()) for c in counts]), total)
    return [
        Counts(share_out(share * c.n0, total - int(k)), share_out(share * c.n1, int(k)), c.residual)
        for c, k in zip(counts, of_class, strict=True)
    ]
