"""The class counts of the first round's trees, from sums or from leaf values."""

from __future__ import annotations

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import Counts, counts_from_sums, first_gradient
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.evidence.values import counts_from_values


def first_counts(evidence: Evidence, sums: LeafSums, n_own: int, whole: bool, t: int = 0) -> Counts:
    """Return the counts of tree ``t`` of the first round by the best means there are."""
    ph = first_gradient(evidence, t)
    if sums.g is not None:
        n = evidence.n_rows
        inside = n_own if evidence.own_inside and not whole else 0
        n_victims = None if n is None else max(n - inside, 0)
        return counts_from_sums(sums, *ph, n_victims, evidence.most_rows)
    counts = counts_from_values(evidence, sums, ph, t)
    if whole and evidence.own_inside:
        return Counts(counts.n0 + sums.own_n0, counts.n1 + sums.own_n1, counts.residual)
    return counts
