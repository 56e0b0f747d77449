"""The class counts of the first tree's leaves that noisy sums make most probable.

An attack that estimates the mean of a count and rounds it scores badly where noise is large: the
mean of a leaf that is probably empty is a small positive number, and no leaf is then claimed to be
empty. The score counts leaves that are right in every class, so that the best claim is the *mode*
of the joint posterior of both integers. Trees whose splits ignore the data (`dp-gbdt`) have many
empty leaves, which a prior with a fitted concentration expresses: the shares of the leaves are
Dirichlet distributed, centred on the rows of the prior (the adversary's rows, else rows of the
population), and the concentration is averaged over by its marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln

from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR, LeafSums, initial_gradient
from fedtrees.attacks.counts.leaf_values import victims_of
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.core.claims import LeafCounts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Pseudo-counts per leaf that the prior mixes. Small ones make empty leaves probable.
CONCENTRATIONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Pseudo-counts of the base rate in the Beta prior of the class share of one leaf.
CLASS_WEIGHT = 2.0
# Row totals of one leaf that are examined: those within this many nats of the best, at most 400.
_NATS, _MOST_TOTALS = 20.0, 400
# With more than four times this number of rows, only this number of the smallest totals is
# examined, and twice as many around the likely one.
_WINDOW = 1024
# Class counts examined for each total: within so many standard deviations, and at most so many.
_DEVIATIONS, _MOST_COUNTS = 6.0, 200


def counts_are_noisy(evidence: BoostingObservations, sums: LeafSums) -> bool:
    """Return whether the sums of the first tree's leaves contain noise of a known variance.

    The result is False if small bins were suppressed: the sums then belong to other rows than those
    in the leaves, so that no channel connects them with the counts.
    """
    largest = max(sums.var_g.max(initial=0.0), sums.var_h.max(initial=0.0))
    return bool(largest > NOISE_FLOOR) and not evidence.distortion.hides_small_bins


def most_probable_counts(
    evidence: BoostingObservations, sums: LeafSums, own_rows: int, tree: int = 0
) -> tuple[Ints, Ints] | None:
    """Return the victims' class counts of every leaf that are expected to score best.

    Parameters
    ----------
    evidence : BoostingObservations
        The trees and sums that the adversary has seen.
    sums : LeafSums
        Sums of this tree, without the adversary's rows.
    own_rows : int
        Number of the adversary's rows.
    tree : int
        A tree of the first round.

    Returns
    -------
    tuple of int64 array, shape (J,) each, or None
        Rows of the other classes and of the tree's class. For numeric targets the second is zero.
        None if the number of the victims' rows is neither declared nor visible in the sums.

    Notes
    -----
    The claim maximises, leaf by leaf, ``P(n0, n1 | sums) * (1 / J + (n0 + n1) / N)``: the expected
    share of leaves plus the expected share of rows in leaves whose counts are exact.
    """
    total = _number_of_rows(evidence, sums, own_rows, tree)
    if total is None:
        return None
    leaves = _Leaves(evidence, sums, tree, total)
    pairs = [
        leaves.best_pair(j, *each) for j, each in enumerate(zip(*leaves.totals(), strict=True))
    ]
    n, n1 = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return n - n1, n1


def most_probable_claims(
    evidence: BoostingObservations,
    sums: Sequence[LeafSums],
    own_rows: int,
    claims: Sequence[LeafCounts],
) -> list[LeafCounts]:
    """Return claims about trees of the first round, with the most probable counts under noise.

    A claim is unchanged if the sums of its tree are exact, if small bins were suppressed, or if the
    number of the victims' rows is unknown.

    Parameters
    ----------
    evidence : BoostingObservations
        The trees and sums that the adversary has seen.
    sums : sequence of LeafSums
        Sums of the trees in their order, without the adversary's rows.
    own_rows : int
        Number of the adversary's rows.
    claims : sequence of LeafCounts
        Each is about all leaves of a tree. For numeric targets they count one class.
    """
    most_probable = []
    for claim in claims:
        t, counts = claim.tree, None
        if counts_are_noisy(evidence, sums[t]):
            counts = most_probable_counts(evidence, sums[t], own_rows, t)
        if counts is not None:
            several = np.stack(counts, axis=1)[:, : claim.counts.shape[1]]
            claim = LeafCounts(t, evidence.trees[t].leaves, several)
        most_probable.append(claim)
    return most_probable


def _number_of_rows(
    evidence: BoostingObservations, sums: LeafSums, own_rows: int, tree: int
) -> int | None:
    """Return how many of the victims' rows the tree was grown on: declared, else from hessians."""
    declared = victims_of(evidence, own_rows, False)
    if declared is not None:
        return round(evidence.share * declared)
    if sums.h is None:
        return None
    return max(round(float(sums.h.sum()) / initial_gradient(evidence, tree)[1]), 0)


@dataclass(frozen=True, eq=False)
class _Leaves:
    """The leaves of one tree with the evidence about their counts.

    `total` is the number of the victims' rows.
    """

    evidence: BoostingObservations
    sums: LeafSums
    tree: int
    total: int

    @property
    def likely(self) -> Ints:
        """The prior's rows in every leaf, int64, shape (J,)."""
        return np.asarray(np.add(*self.sums.prior_counts))

    def totals(self) -> tuple[Ints, Floats]:
        """Return row totals to examine for every leaf, and their log probability, (J, M) each.

        The prior is a mixture over `CONCENTRATIONS`, each weighted by its likelihood of the prior's
        rows and of the hessian sums.
        """
        J, n = len(self.likely), self._examined()
        log_likelihood = self._log_likelihood_of_totals(n)
        log_likelihood[:, 1:][
            n[:, 1:] <= np.maximum.accumulate(n, axis=1)[:, :-1]
        ] = -np.inf  # seen before
        parts, weights = [], []
        for a in CONCENTRATIONS:
            alpha = (self.likely + a)[:, None]
            rest = alpha.sum() - alpha
            if J == 1:
                prior = np.where(n == self.total, 0.0, -np.inf)
            else:
                choose = gammaln(self.total + 1) - gammaln(n + 1) - gammaln(self.total - n + 1)
                prior = choose + betaln(n + alpha, self.total - n + rest) - betaln(alpha, rest)
            of_prior = gammaln(J * a) - gammaln(J * a + self.likely.sum())
            of_prior += float((gammaln(alpha) - gammaln(a)).sum())
            parts.append(prior + log_likelihood)
            weights.append(of_prior + float(np.logaddexp.reduce(parts[-1], axis=1).sum()))
        log_weights = np.array(weights) - np.logaddexp.reduce(weights)
        log_p = parts[0] + log_weights[0]
        for part, weight in zip(parts[1:], log_weights[1:], strict=True):
            log_p = np.logaddexp(log_p, part + weight)
        return n, log_p

    def _examined(self) -> Ints:
        """Return the row totals to examine, int64 (J, M): all, or small ones and likely ones."""
        if self.total < 4 * _WINDOW:
            return np.tile(np.arange(self.total + 1), (len(self.likely), 1))
        likely = self.likely + 0.5
        center = self.total * likely / likely.sum()
        if self.sums.h is not None:
            h = initial_gradient(self.evidence, self.tree)[1]
            spread, noise = center * (1 + self.total / likely.sum()), self.sums.var_h / h**2
            center = center + spread / (spread + noise) * (self.sums.h / h - center)
        center = np.rint(np.clip(center, 0, self.total)).astype(np.int64)[:, None]
        near = np.clip(center + np.arange(-_WINDOW, _WINDOW), 0, self.total)
        return np.concatenate([np.tile(np.arange(_WINDOW), (len(near), 1)), near], axis=1)

    def _log_likelihood_of_totals(self, n: Ints) -> Floats:
        """Return how well every total explains the hessian sum of its leaf, shape (J, M)."""
        if self.sums.h is None:
            return np.zeros(n.shape)
        h = initial_gradient(self.evidence, self.tree)[1]
        variance = np.maximum(self.sums.var_h, NOISE_FLOOR)[:, None]
        return np.asarray(-((self.sums.h[:, None] - h * n) ** 2) / (2 * variance))

    def best_pair(self, j: int, totals: Ints, log_p: Floats) -> tuple[int, int]:
        """Return the total and the class count of leaf ``j`` that are expected to score best."""
        order = np.argsort(-log_p, kind="stable")[:_MOST_TOTALS]
        order = order[log_p[order] >= log_p[order[0]] - _NATS]
        n, log_p = totals[order], log_p[order]
        # expected score of an exact claim: its share of leaves plus its share of rows
        gain = np.log(1 / len(self.likely) + n / max(self.total, 1))
        if self.evidence.targets is not None:  # rows have numbers, and no class
            return int(n[np.argmax(log_p + gain)]), 0
        n1, log_q = self._class_counts(j, n)
        score = (log_p + gain)[:, None] + log_q
        at, k = np.unravel_index(int(np.argmax(score)), score.shape)
        return int(n[at]), int(n1[at, k])

    def _class_counts(self, j: int, n: Ints) -> tuple[Ints, Floats]:
        """Return class counts to examine for every total, and their log probability, both (m, k).

        The prior of the class count is beta-binomial, with the class counts of the prior's rows and
        the base rate as parameters. The observation is the gradient sum, or the leaf value.
        """
        rate, seen, variance = self._base_rate, *self._seen(j, n)
        n0_likely, n1_likely = self.sums.prior_counts
        a = n1_likely[j] + CLASS_WEIGHT * rate
        b = n0_likely[j] + CLASS_WEIGHT * (1 - rate)
        mean, weight = n * a / (a + b), a + b
        spread = np.maximum(n * a * b / weight**2 * (n + weight) / (weight + 1), 1e-3)
        gain = spread / (spread + variance)
        center, deviation = mean + gain * (seen - mean), np.sqrt(gain * variance)
        width = int(min(np.ceil(_DEVIATIONS * deviation.max(initial=0.0)) + 1, _MOST_COUNTS))
        offsets = np.arange(-width, width + 1)
        n1 = np.rint(np.clip(center, 0, n)).astype(np.int64)[:, None] + offsets
        possible, n1 = (n1 >= 0) & (n1 <= n[:, None]), np.clip(n1, 0, n[:, None])
        choose = gammaln(n[:, None] + 1) - gammaln(n1 + 1) - gammaln(n[:, None] - n1 + 1)
        prior = choose + betaln(n1 + a, n[:, None] - n1 + b) - betaln(a, b)
        log_likelihood = -((n1 - seen[:, None]) ** 2) / (2 * variance[:, None])
        return n1, np.where(possible, prior + log_likelihood, -np.inf)

    def _seen(self, j: int, n: Ints) -> tuple[Floats, Floats]:
        """Return the class count that leaf ``j`` shows for every total, with its variance."""
        p, h = initial_gradient(self.evidence, self.tree)
        var_g, var_h = float(self.sums.var_g[j]), float(self.sums.var_h[j])
        if self.sums.g is not None:
            seen = n * p - self.sums.g[j]
        else:  # a leaf value v = -eta G / (H + lambda) ties both sums together
            tree = self.evidence.trees[self.tree]
            params = self.evidence.params
            u = float(tree.value[tree.leaves[j]]) / params.learning_rate
            seen = n * p + u * (n * h + params.reg_lambda) + params.reg_alpha * np.sign(u)
            var_g += u * u * var_h
        return seen, np.full(len(n), max(var_g, NOISE_FLOOR))

    @property
    def _base_rate(self) -> float:
        """Share of the tree's class among all victims' rows, between 0 and 1."""
        rows = self.likely.sum()
        rate = float((self.sums.prior_counts[1].sum() + 1) / (rows + 2))
        if self.sums.g is None or not self.total:
            return rate
        p, _ = initial_gradient(self.evidence, self.tree)
        spread = rate * (1 - rate) / (rows + 3)
        noise = float(self.sums.var_g.sum()) / self.total**2
        gain = spread / (spread + noise + 1e-12)
        shown = p - float(self.sums.g.sum()) / self.total
        return float(np.clip(rate + gain * (shown - rate), 0.01, 0.99))
