"""First-tree counts if only leaf values are visible (split-only broadcast).

This goes beyond Di Gennaro et al. (2025), Sec. 7, who propose to send leaf values without G and H
and expect this to close the leak. A value v = -eta G / (H + lambda) still connects the two integers
of a leaf: N1 = N p + (v/eta)(N p(1-p) + lambda) must be an integer, so that every N is compatible
with at most one N1, and few N with any. The leaves must add up to the declared number of rows,
which a dynamic programme over the candidate lists enforces exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.counts.leaf_sums import (
    DIRICHLET_PRIOR,
    NOISE_FLOOR,
    Counts,
    LeafSums,
    counts_from_sums,
    initial_gradient,
    shrink_positives,
)
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.compilation import kernel
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VALUE_ULPS = 4.0  # float32 error of a leaf value: sums, division and product by eta
GRADIENT_ERROR = 3.5e-8  # rows' g is float32(p) - 1, not p - 1: error on N1 per row
MAX_STEPS = 400_000_000  # work bound of the dynamic programme (about two seconds)
MEAN_ERROR = 1e-7  # error of a float32 label mean, per row
UNKNOWN_N_FACTOR = 10  # with N unknown, totals up to this multiple of the local rows are searched


@dataclass(frozen=True, eq=False)
class Candidates:
    """Possible numbers of rows and positives of a leaf, all clients together, and their log prior.

    Attributes
    ----------
    n, n1 : int64 array, shape (k,)
        Rows, and rows of the tree's class.
    score : float64 array, shape (k,)
        Log prior probability up to a constant (nats).
    """

    n: Ints
    n1: Ints
    score: Floats


def first_counts(
    evidence: BoostingObservations, sums: LeafSums, n_own: int, with_local_rows: bool, t: int = 0
) -> Counts:
    """Return the counts of a tree of the first round from its sums, or else from its leaf values.

    Parameters
    ----------
    evidence : BoostingObservations
        The trees.
    sums : LeafSums
        Sums of this tree.
    n_own : int
        Number of local rows.
    with_local_rows : bool
        If True, all training rows are counted. Otherwise the adversary's rows are left out.
    t : int, default 0
        The tree.
    """
    ph = initial_gradient(evidence, t)
    if sums.g is not None:
        n_victims = victims_of(evidence, n_own, with_local_rows)
        if n_victims is not None:
            n_victims = round(evidence.share * n_victims)
        return counts_from_sums(sums, *ph, n_victims, evidence.row_counts.most_rows)
    counts = counts_from_values(evidence, sums, ph, t)
    if with_local_rows and evidence.observed.own_inside:
        return Counts(counts.n0 + sums.own_n0, counts.n1 + sums.own_n1, counts.residual)
    return counts


def victims_of(evidence: BoostingObservations, n_own: int, with_local_rows: bool) -> int | None:
    """Return the declared number of rows to reconstruct. None if no number was declared.

    Parameters
    ----------
    evidence : BoostingObservations
        Declared number of rows.
    n_own : int
        Number of local rows.
    with_local_rows : bool
        If True, the local rows are counted as well.
    """
    n_rows = evidence.row_counts.n_rows
    if n_rows is None:
        return None
    return max(n_rows - (n_own if evidence.observed.own_inside and not with_local_rows else 0), 0)


def left_out(
    evidence: BoostingObservations,
    counts: Sequence[Counts],
    sums: LeafSums,
    n_own: int,
    with_local_rows: bool,
) -> tuple[Ints, Ints]:
    """Return the number of rows of each class that are in no leaf of the first round.

    If boosting starts at the label mean, this mean determines their labels. Otherwise they have the
    class shares of the counted rows.

    Parameters
    ----------
    evidence : BoostingObservations
        Declared number of rows and sampling rates.
    counts : sequence of Counts
        Counts of the trees of the first round.
    sums : LeafSums
        Sums of the first tree.
    n_own : int
        Number of local rows.
    with_local_rows : bool
        If True, the local rows are counted as well.

    Returns
    -------
    out, never : int64 array, shape (K,) each
        All rows outside the first round, and those of them that are held out of every round.
    """
    if len(counts) == 1:
        inside = np.array([counts[0].n0.sum(), counts[0].n1.sum()])
    else:
        inside = np.array([c.n1.sum() for c in counts])
    n = victims_of(evidence, n_own, with_local_rows)
    total = round(int(inside.sum()) / evidence.share) if n is None else n
    rest = max(total - int(inside.sum()), 0)
    rate = inside + DIRICHLET_PRIOR
    if evidence.row_counts.mean_start and evidence.outputs == 1 and n is not None:
        p = initial_gradient(evidence)[0]
        subtracted = evidence.observed.own_inside and not with_local_rows
        own1 = int(sums.own_n1.sum()) if subtracted else 0
        positives = np.clip(p * (evidence.row_counts.n_rows or n) - own1 - inside[1], 0, rest)
        rate = np.array([rest - positives, positives])
    sizes = largest_remainder(rate, rest)
    # share of the rows outside the first round that are outside every round
    never = evidence.row_counts.held_out / max(1 - evidence.share, 1e-12)
    return sizes, np.rint(never * sizes).astype(np.int64)


def counts_from_values(
    evidence: BoostingObservations, sums: LeafSums, ph: tuple[float, float], t: int = 0
) -> Counts:
    """Return the most probable counts of a first-round tree given its leaf values.

    The prior is Dirichlet-multinomial over (leaf, class) cells given the prior's rows. Conditional
    on the total, it is a product of negative binomials per cell.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and training parameters.
    sums : LeafSums
        Local rows and prior rows in the leaves.
    ph : tuple of float
        Probability and hessian of every row.
    t : int, default 0
        The tree.
    """
    leaves = _Leaves(evidence, evidence.trees[t], sums, *ph)
    n_max = leaves.most_rows
    if _noisy(sums):
        return _closest(leaves, n_max)
    lists = _all_candidates(leaves, n_max)
    chosen = _solve(lists, _totals(leaves, len(lists), n_max))
    if chosen is None:
        return _closest(leaves, n_max)
    n = np.array([c.n[k] for c, k in zip(lists, chosen, strict=True)], dtype=np.int64)
    n1 = np.array([c.n1[k] for c, k in zip(lists, chosen, strict=True)], dtype=np.int64)
    inside = leaves.inside
    return Counts(np.maximum(n - n1 - inside[0], 0), np.maximum(n1 - inside[1], 0), 0.0)


def size_scores(
    evidence: BoostingObservations, sums: LeafSums, ph: tuple[float, float], t: int = 0
) -> Floats | None:
    """Return the log probability of every total number of rows under its best counts.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and training parameters.
    sums : LeafSums
        Local rows and prior rows in the leaves.
    ph : tuple of float
        Probability and hessian of every row.
    t : int, default 0
        The tree.

    Returns
    -------
    float64 array, shape (most rows + 1,), or None
        None if no integers give the leaf values, if the values are noisy, or if targets are
        numeric.
    """
    leaves = _Leaves(evidence, evidence.trees[t], sums, *ph)
    if _noisy(sums) or evidence.targets is not None:
        return None
    lists = _all_candidates(leaves, leaves.most_rows)
    if any(len(c.n) == 0 for c in lists):
        return None
    weight = _totals(leaves, len(lists), leaves.most_rows)
    return np.asarray(_best_totals(lists, len(weight) - 1)[0] + weight)


@dataclass(frozen=True, eq=False)
class _Leaves:
    """The leaves of one tree with local rows, and p and h of every row."""

    evidence: BoostingObservations
    tree: Tree
    sums: LeafSums
    p: float
    h: float

    @property
    def inside(self) -> tuple[Ints, Ints]:
        """Local rows of either class that the tree was grown on, int64, shape (J,) each."""
        is_inside = int(self.evidence.observed.own_inside)
        if is_inside and self.evidence.share < 1:  # from their sums, which are exact if sent
            n = np.rint(self.sums.own_h / self.h)
            n1 = np.clip(np.rint(n * self.p - self.sums.own_g), 0, n)
            return (n - n1).astype(np.int64), n1.astype(np.int64)
        return is_inside * self.sums.own_n0, is_inside * self.sums.own_n1

    @property
    def n_own(self) -> int:
        """Number of local rows."""
        return int((self.sums.own_n0 + self.sums.own_n1).sum())

    @property
    def most_rows(self) -> int:
        """The number of rows if it is known, else an upper bound."""
        row_counts, n_local = self.evidence.row_counts, self.n_own
        if row_counts.n_rows is not None:
            return max(int(row_counts.n_rows), n_local if self.evidence.observed.own_inside else 0)
        if row_counts.most_rows is not None:
            return row_counts.most_rows
        return UNKNOWN_N_FACTOR * max(n_local, 100)


def positives_of_value(
    value: np.float32,
    n: Ints,
    ph: tuple[float, float],
    settings: tuple[float, float],
    off: float = 0.0,
    alpha: float = 0.0,
) -> tuple[Floats, Floats]:
    """Return the N1 that a leaf value implies for each N, and its error.

    Parameters
    ----------
    value : float32
        Leaf value, learning rate included.
    n : int64 array, shape (k,)
        Possible numbers of rows of the leaf.
    ph : tuple of float
        Probability and hessian of every row before the tree.
    settings : tuple of float
        eta and lambda.
    off : float, default 0.0
        Error of the value beyond float32, for example half a step if it was rounded.
    alpha : float, default 0.0
        L1 penalty. A value of 0 then only bounds G.

    Returns
    -------
    exact, error : float64 array, shape (k,) each
        Real-valued solution for N1, and its largest error.
    """
    p, h = ph
    eta, reg_lambda = settings
    slope = n * h + reg_lambda
    exact = n * p + float(value) / eta * slope + alpha * np.sign(float(value))
    if alpha and value == 0:
        return exact, np.full(len(n), alpha) + GRADIENT_ERROR * n
    off += VALUE_ULPS * float(np.spacing(np.abs(value)))
    return exact, off / eta * slope + GRADIENT_ERROR * n


def positives_observed(
    evidence: BoostingObservations, value: np.float32, n: Ints, ph: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return `positives_of_value` with the training parameters and the rounding of a view."""
    params, off = evidence.params, evidence.distortion.value_error(value)
    settings = (params.learning_rate, params.reg_lambda)
    return positives_of_value(value, n, ph, settings, off, params.reg_alpha)


def _all_candidates(leaves: _Leaves, n_max: int) -> list[Candidates]:
    """List the candidates of every leaf, thinned if there are too many for the search."""
    lists = [_candidates(leaves, j, n_max) for j in range(len(leaves.sums.own_n0))]
    # the dynamic programme takes one step per candidate and total
    if sum(len(c.n) for c in lists) * (n_max + 1) > MAX_STEPS:
        keep = max(int(MAX_STEPS / ((n_max + 1) * len(lists))), 1)
        lists = [_keep_best(c, keep) for c in lists]
    return lists


def _candidates(leaves: _Leaves, j: int, n_max: int) -> Candidates:
    """List the integer pairs of leaf ``j`` that its value allows, one N1 per N."""
    evidence, tree, p, h = leaves.evidence, leaves.tree, leaves.p, leaves.h
    own0, own1 = (int(part[j]) for part in leaves.inside)
    like0, like1 = (int(part[j]) for part in leaves.sums.prior_counts)
    value = tree.value[tree.leaves[j]]
    n = np.arange(own0 + own1, n_max + 1, dtype=np.int64)
    least = evidence.params.min_child_weight
    if len(tree) > 1 and least > 0:
        n = n[n * h >= least - 1e-5 * max(least, 1.0)]
    exact, tolerance = positives_observed(evidence, value, n, (p, h))
    # per N; below half a row the nearest one is the only one
    n1 = np.rint(exact).astype(np.int64)
    lower, upper = own1, n - own0
    inside = (np.abs(exact - n1) <= tolerance) & (n1 >= lower) & (n1 <= upper)
    wide = tolerance > 0.5
    clipped = np.clip(n1, lower, upper)
    inside |= wide & (np.abs(exact - clipped) <= tolerance)
    n1 = np.where(wide, clipped, n1)[inside]
    n = n[inside]
    return Candidates(n, n1, _log_prior(n - n1 - own0, like0) + _log_prior(n1 - own1, like1))


def _totals(leaves: _Leaves, n_leaves: int, n_max: int) -> Floats:
    """Return the log weight of every number of rows from 0 to ``n_max``, float64."""
    size = np.arange(n_max + 1, dtype=np.float64)
    share = leaves.evidence.share
    if leaves.evidence.row_counts.n_rows is not None and share == 1:
        return np.where(size == n_max, 0.0, -np.inf)
    # Dirichlet-multinomial normaliser, and 1/N for the unknown size
    inside = sum(int(part.sum()) for part in leaves.inside)
    like = int(np.add(*leaves.sums.prior_counts).sum())
    victims = np.maximum(size - inside, 0.0)
    r = like + 2 * DIRICHLET_PRIOR * n_leaves
    norm = gammaln(victims + 1) + gammaln(r) - gammaln(victims + r)
    n_rows = leaves.evidence.row_counts.n_rows
    if n_rows is not None:
        n_own = leaves.n_own if leaves.evidence.observed.own_inside else 0
        return np.asarray(norm + _binomial(size - inside, n_rows - n_own, share))
    norm -= np.log(size + 1)
    if leaves.evidence.row_counts.mean_start:
        # a float32 label mean leaves only the multiples of its denominator
        positives = size * leaves.p
        norm[np.abs(positives - np.rint(positives)) > MEAN_ERROR * (size + 1)] = -np.inf
    return np.asarray(norm)


def _binomial(x: Floats, n: int, share: float) -> Floats:
    """Return the log probability that x of n rows are in a round, -inf if impossible."""
    inside = np.clip(x, 0, n)
    choose = gammaln(n + 1) - gammaln(inside + 1) - gammaln(n - inside + 1)
    out = choose + inside * np.log(share) + (n - inside) * np.log1p(-share)
    return np.where(x == inside, out, -np.inf)


def _log_prior(extra: Ints, rows: int) -> Floats:
    """Return the log weight of ``extra`` victims' rows in a cell with ``rows`` prior rows."""
    r = rows + DIRICHLET_PRIOR
    return np.asarray(gammaln(extra + r) - gammaln(r) - gammaln(extra + 1.0), dtype=np.float64)


def _keep_best(c: Candidates, keep: int) -> Candidates:
    if c.n.shape[0] <= keep:
        return c
    # without the constraint on the total, the score favours small N, so that thinning is even
    rows = np.unique(np.linspace(0, c.n.shape[0] - 1, keep).astype(np.int64))
    return Candidates(c.n[rows], c.n1[rows], c.score[rows])


def _solve(lists: list[Candidates], weight: Floats) -> Ints | None:
    """Choose one candidate per leaf that maximises score plus log weight of the total."""
    if any(c.n.shape[0] == 0 for c in lists):
        return None
    best, back = _best_totals(lists, len(weight) - 1)
    total = int(np.argmax(best + weight))
    if not np.isfinite(best[total] + weight[total]):
        return None
    chosen = np.zeros(len(lists), dtype=np.int64)
    for j in range(len(lists) - 1, -1, -1):
        chosen[j] = back[j, total]
        # follow the choices back from the last leaf to the first
        total -= int(lists[j].n[chosen[j]])
    return chosen


def _best_totals(lists: list[Candidates], n_max: int) -> tuple[Floats, NDArray[np.int32]]:
    """Return the best log weight for every total, and the chosen candidate of each leaf."""
    offsets = np.concatenate([[0], np.cumsum([c.n.shape[0] for c in lists])]).astype(np.int64)
    n, score = (np.concatenate([getattr(c, part) for c in lists]) for part in ("n", "score"))
    best, back = _forward(offsets, n, score, n_max)
    return best, back


@kernel
def _forward(offsets, n, score, n_max):  # type: ignore[no-untyped-def]
    """Max-plus dynamic programme: best log weight of the first leaves for every total."""
    J = offsets.shape[0] - 1
    best = np.full(n_max + 1, -np.inf)
    best[0] = 0.0
    back = np.zeros((J, n_max + 1), dtype=np.int32)
    reach = 0
    for j in range(J):
        nxt = np.full(n_max + 1, -np.inf)
        top = 0
        for k in range(offsets[j], offsets[j + 1]):
            for total in range(min(reach, n_max - n[k]) + 1):
                value = best[total] + score[k]
                if value > nxt[total + n[k]]:
                    nxt[total + n[k]] = value
                    back[j, total + n[k]] = k - offsets[j]
                    top = max(top, total + n[k])
        best, reach = nxt, top
    return best, back


def _closest(leaves: _Leaves, n_max: int) -> Counts:
    """Return approximate counts if no exact combination exists.

    N follows the prior's shares, and N1 is the nearest integer given N.
    """
    evidence, tree, sums = leaves.evidence, leaves.tree, leaves.sums
    inside = leaves.inside
    local_rows = inside[0] + inside[1]
    if evidence.share < 1 and evidence.row_counts.n_rows is not None:
        n_max = int(local_rows.sum()) + round(evidence.share * max(n_max - leaves.n_own, 0))
    n = largest_remainder(
        np.add(*sums.prior_counts) + DIRICHLET_PRIOR, n_max - int(local_rows.sum())
    )
    params, n_all = evidence.params, n + local_rows
    u = tree.value[tree.leaves].astype(np.float64) / params.learning_rate
    weight = n_all * leaves.h + params.reg_lambda
    exact = n_all * leaves.p + u * weight + params.reg_alpha * np.sign(u) - inside[1]
    if _noisy(sums):
        likely = replace(sums, var_g=sums.var_g + u * u * sums.var_h)
        exact = shrink_positives(exact, n, likely)
    n1 = np.clip(np.rint(exact), 0, n).astype(np.int64)
    return Counts(n - n1, n1, float(np.abs(exact - n1).max(initial=0)))


def _noisy(sums: LeafSums) -> bool:
    """Return whether leaf values come from noisy sums, so that no integers fit them."""
    return max(sums.var_g.max(initial=0.0), sums.var_h.max(initial=0.0)) > NOISE_FLOOR
