"""What the authors' code makes of evidence, where it differs."""

from __future__ import annotations

from dataclasses import replace

from fedtrees.attacks.evidence.boosted import Evidence


def as_published(evidence: Evidence) -> Evidence:
    """Read noisy sums as the authors' code does: as if they were exact.

    Where every hessian is 1, it takes a quarter of each count for H and finds G from leaf value and
    quarter, ``-(v / eta) (N / 4 + lambda)``: four times too small for a large leaf, so that labels
    come out even. In later trees, sums of p (1-p) are held against those quarters.
    """
    trees = evidence.trees
    if evidence.constant_hessian:
        trees = tuple(replace(t, g=None, h=None if t.h is None else t.h / 4) for t in trees)
    return replace(evidence, trees=trees, noise=None, constant_hessian=False)
