"""Leaf sums of the victims' rows, and the class counts of the first tree that follow from them.

The sums of the victims are the broadcast sums less the contribution of the local rows. In the first
tree all rows have the same predicted probability (First-Tree Probing), so that the two sums of a
leaf are two linear equations in two integers (Di Gennaro et al. 2025, Sec. 5.1, Eqs. 4-9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    add_values,
    gradients,
    gradients_of,
)
from fedtrees.attacks.observations.replay import bins_left
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LeafSums:
    """Sums over the leaves of one tree, in ascending node order.

    Attributes
    ----------
    g, h : float64 array, shape (J,), or None
        Victims' sums of gradients and hessians. None if only leaf values are visible.
    var_g, var_h : float64 array, shape (J,)
        Variance of the noise on these sums, 0 if they are exact.
    own_g, own_h : float64 array, shape (J,)
        Sums over the adversary's rows. They are already subtracted from `g` and `h`. If only leaf
        values are visible, `fedtrees.attacks.reconstruction.context.equations` subtracts them. 0 if
        the sums are those of all rows.
    own_n0, own_n1 : int64 array, shape (J,)
        Number of the adversary's rows of other classes than the tree's, and of that class.
    prior_leaf : int32 array, shape (n_own,)
        Position (not node number) of the leaf of each row of the prior.
    prior_n0, prior_n1 : int64 array, shape (J,), or None
        Number of rows from which leaf shares and class rates are estimated: local rows, else rows
        of the population. None means that they are the local rows.
    """

    g: Floats | None
    h: Floats | None
    var_g: Floats
    var_h: Floats
    own_g: Floats
    own_h: Floats
    own_n0: NDArray[np.int64]
    own_n1: NDArray[np.int64]
    prior_leaf: NDArray[np.int32]
    prior_n0: NDArray[np.int64] | None = None
    prior_n1: NDArray[np.int64] | None = None

    @property
    def prior_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The prior's rows in each leaf outside and inside the tree's class, shape (J,) each."""
        if self.prior_n0 is None or self.prior_n1 is None:
            return self.own_n0, self.own_n1
        return self.prior_n0, self.prior_n1


def victim_sums(
    evidence: BoostingObservations, local_rows: Table, n_trees: int, subtract: bool = True
) -> list[LeafSums]:
    """Return the sums of the victims' rows for each tree.

    The local rows are routed with their float32 margins, as in training. With ``subtract=False``
    the sums are those of all rows, which Di Gennaro et al. (2025) reconstruct.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and sums.
    local_rows : Table
        Local rows.
    n_trees : int
        Number of trees.
    subtract : bool, default True
        Whether to subtract the contribution of the local rows.
    """
    # float32 margins reproduce the gradients of the training exactly
    margin = evidence.start(len(local_rows))
    out = []
    nodes = Routes.of(evidence.trees[:n_trees]).apply(local_rows.X)
    likely = evidence.prior_rows(local_rows)
    placed = None if likely is local_rows else Routes.of(evidence.trees[:n_trees]).apply(likely.X)
    for t in range(n_trees):
        tree, node, k = evidence.trees[t], nodes[:, t], t % evidence.outputs
        if k == 0:
            before = margin.copy()
        g, h = gradients_of(evidence, before, local_rows.y, local_rows.X[:, -1], k)
        positive = local_rows.y == evidence.class_of(t)
        sums = _one_tree(evidence, t, positive, node, (g, h), subtract)
        if placed is not None:
            of_class = likely.y == evidence.class_of(t)
            n0, n1 = (_per_leaf(tree, placed[part, t]) for part in (~of_class, of_class))
            sums = replace(sums, prior_n0=n0, prior_n1=n1)
        out.append(sums)
        add_values(margin, k, tree.value[node])
    return out


def _per_leaf(tree: Tree, node: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the number of rows in each leaf of a tree, given the leaf nodes of the rows."""
    return np.bincount(node, minlength=len(tree))[tree.leaves]


def with_leaves_of(
    rows: Table, evidence: BoostingObservations, sums: list[LeafSums]
) -> list[LeafSums]:
    """Return the sums with ``prior_leaf`` for other prior rows.

    Parameters
    ----------
    rows : Table
        Rows of the prior.
    evidence : BoostingObservations
        The trees.
    sums : list of LeafSums
        Sums of the first trees.
    """
    trees = evidence.trees[: len(sums)]
    nodes = Routes.of(trees).apply(rows.X).T
    return [
        replace(s, prior_leaf=np.searchsorted(tree.leaves, node).astype(np.int32))
        for s, tree, node in zip(sums, trees, nodes, strict=True)
    ]


def _one_tree(
    evidence: BoostingObservations,
    t: int,
    positive: NDArray[np.bool_],
    node: NDArray[np.int32],
    own_gh: tuple[Floats, Floats],
    subtract: bool,
) -> LeafSums:
    tree = evidence.trees[t]
    leaves, n = tree.leaves, len(tree)
    own_g, own_h = (np.bincount(node, part, n)[leaves].astype(np.float64) for part in own_gh)
    own_n0, own_n1 = (np.bincount(node[of], minlength=n)[leaves] for of in (~positive, positive))
    variance = np.zeros((2, len(leaves)))
    if not subtract:
        own_g, own_h = np.zeros_like(own_g), np.zeros_like(own_h)
    elif evidence.observed.own_sums is not None:
        sent_sums = evidence.observed.own_sums[t].T
        # rows of small bins count in wrong leaves, also those of the victims
        if evidence.distortion.hides_small_bins:
            rows_ratio = (evidence.row_counts.n_rows or 0) / max(len(node), 1) - 1
            variance = (max(rows_ratio, 0.0) * (sent_sums - np.stack([own_g, own_h]))) ** 2
        own_g, own_h = sent_sums
    elif evidence.share < 1:  # each row takes part with this probability
        spread = evidence.share * (1 - evidence.share)
        variance = np.stack([spread * np.bincount(node, part**2, n)[leaves] for part in own_gh])
        own_g, own_h = evidence.share * own_g, evidence.share * own_h
    seen = leaf_sums(evidence, t)
    noise = None if evidence.distortion.noise is None else evidence.distortion.noise[t]
    if not evidence.observed.own_inside and evidence.params.reg_alpha:  # a value of 0 leaves G open
        variance[0] += np.where(tree.value[leaves] == 0, evidence.params.reg_alpha**2 / 3, 0.0)
    return LeafSums(
        g=None if seen is None else seen[0] - own_g,
        h=None if seen is None else seen[1] - own_h,
        var_g=variance[0] + (0.0 if noise is None else np.maximum(noise.g[leaves], 0.0)),
        var_h=variance[1] + (0.0 if noise is None else np.maximum(noise.h[leaves], 0.0)),
        own_g=own_g,
        own_h=own_h,
        own_n0=own_n0,
        own_n1=own_n1,
        prior_leaf=np.searchsorted(leaves, node).astype(np.int32),
    )


def leaf_sums(evidence: BoostingObservations, t: int) -> tuple[Floats, Floats] | None:
    """Return the broadcast sums (G, H) of each leaf, float64, shape (J,) each.

    They are taken from the nodes. If only hessians are visible, G follows from the leaf value (Di
    Gennaro et al. 2025, Eq. 7). If only histograms are visible, both are computed from the parent's
    bins. The result is None if none of these determines the sums.
    """
    if evidence.observed.level == "values":
        return None
    tree = evidence.trees[t]
    leaves = tree.leaves
    if tree.h is not None:
        h = np.nan_to_num(tree.h[leaves].astype(np.float64))
        if tree.g is not None:
            return np.nan_to_num(tree.g[leaves].astype(np.float64)), h
        u = tree.value[leaves].astype(np.float64) / evidence.params.learning_rate
        return -u * (h + evidence.params.reg_lambda) - evidence.params.reg_alpha * np.sign(u), h
    if evidence.observed.histograms is None or evidence.observed.cuts is None:
        return None
    sums = _sums_from_histograms(evidence, t, tree)
    return None if sums is None else (sums[leaves, 0], sums[leaves, 1])


def _sums_from_histograms(evidence: BoostingObservations, t: int, tree: Tree) -> Floats | None:
    assert evidence.observed.histograms is not None
    assert evidence.observed.cuts is not None
    hist, cuts = evidence.observed.histograms[t], evidence.observed.cuts
    sums = np.full((len(tree), 2), np.nan)
    sums[hist.nodes] = hist.totals
    for k, node in enumerate(hist.nodes):
        f = tree.feature[node]
        if f < 0:
            continue
        a, b = int(cuts.offsets[f]), int(cuts.offsets[f + 1])
        left = hist.sums[k, a:b][bins_left(tree, int(node), cuts)].sum(axis=0)
        if tree.default_left[node]:
            left = left + hist.totals[k] - hist.sums[k, a:b].sum(axis=0)
        for child, part in ((tree.left[node], left), (tree.right[node], hist.totals[k] - left)):
            # totals that were sent take precedence over derived ones
            if np.isnan(sums[child, 0]):
                sums[child] = part
    return None if np.isnan(sums[tree.leaves]).any() else sums


Ints = NDArray[np.int64]

DIRICHLET_PRIOR = 0.5  # Jeffreys' pseudo-count per cell
NOISE_FLOOR = 1e-9  # below this variance, sums are exact up to float32


@dataclass(frozen=True, eq=False)
class Counts:
    """Number of victims' rows per leaf and class.

    Attributes
    ----------
    n0, n1 : int64 array, shape (J,)
        Rows of other classes than the tree's, and rows of that class.
    residual : float
        Largest distance of a solved count from the integer it was rounded to, in rows.
    """

    n0: Ints
    n1: Ints
    residual: float


def initial_gradient(evidence: BoostingObservations, t: int = 0) -> tuple[float, float]:
    """Return (p, h) of every row before tree ``t`` of the first round.

    p is the probability of the tree's class and h the hessian (Di Gennaro et al. 2025, Eqs. 2-3,
    17-18). For numeric targets the result is (0, 1), because rows have no class.
    """
    if evidence.targets is not None:
        return 0.0, 1.0
    other = np.array([0 if evidence.class_of(t) else 1])
    g, h = gradients(evidence.start(1), other, evidence.constant_hessian, t)
    return float(g[0]), float(h[0])


def counts_from_sums(
    sums: LeafSums, p: float, h: float, n_victims: int | None, most_rows: int | None = None
) -> Counts:
    """Solve Eqs. 6 and 9 of Di Gennaro et al. (2025) for the victims of every leaf.

    With exact sums, N = H / (p(1-p)) and N1 = N p - G, rounded. With noise of known variance (not
    in the paper), both are shrunk towards the prior: N towards the share of the prior's rows in the
    leaf, under the constraint that leaves add up to ``n_victims``, and N1 towards the class rate
    among the prior's rows in the leaf (`fedtrees.attacks.counts.leaf_sums`).

    Parameters
    ----------
    sums : LeafSums
        Sums of the victims' rows. ``g`` and ``h`` must be present.
    p, h : float
        Probability and hessian of every row (`initial_gradient`).
    n_victims : int or None
        Number of the victims' rows. None means unknown.
    most_rows : int, optional
        Upper bound on the number of rows, used if ``n_victims`` is None.
    """
    assert sums.g is not None
    assert sums.h is not None
    raw = np.asarray(sums.h / h)
    if p == 0:  # numeric targets: rows have no class
        sums = replace(sums, g=np.zeros_like(sums.g), var_g=np.zeros_like(sums.var_g))
    assert sums.g is not None
    if float(np.max(sums.var_h, initial=0.0)) <= NOISE_FLOOR:
        n = np.maximum(np.rint(raw), 0).astype(np.int64)
    else:
        n = _noisy_counts(raw, sums, h, n_victims)
    limit = most_rows if n_victims is None else n_victims
    if limit is not None and n.sum() > 2 * limit + 1000:
        # the sums contradict the declared number of rows: use the declared number
        n = largest_remainder(n.astype(np.float64), limit)
    n1_raw = n * p - sums.g
    if float(np.max(sums.var_g, initial=0.0)) > NOISE_FLOOR:
        n1_raw = shrink_positives(n1_raw, n, sums)
    # a leaf cannot contain more positives than rows
    n1 = np.clip(np.rint(n1_raw), 0, n).astype(np.int64)
    off = np.concatenate([np.abs(raw - n), np.abs(n1_raw - n1), [0.0]])
    return Counts(n - n1, n1, float(off.max()))


def _noisy_counts(raw: Floats, sums: LeafSums, h: float, n_victims: int | None) -> Ints:
    """Combine noisy counts with a Dirichlet-multinomial prior, at a fixed total.

    The parameters of the prior are the counts of its rows per leaf, plus `DIRICHLET_PRIOR`.
    """
    total = float(n_victims) if n_victims is not None else max(float(raw.sum()), 0.0)
    likely = np.add(*sums.prior_counts) + DIRICHLET_PRIOR
    share, weight = likely / likely.sum(), float(likely.sum())
    prior_var = total * share * (1 - share) * (total + weight) / (weight + 1) + 1e-9
    noise_var = sums.var_h / h**2
    gain = prior_var / (prior_var + noise_var)
    mean = total * share + gain * (raw - total * share)
    if n_victims is None:
        return np.maximum(np.rint(mean), 0).astype(np.int64)
    left_var = gain * noise_var + 1e-12
    # condition the independent posteriors on the known total (Gaussian approximation)
    mean = mean + (total - mean.sum()) * left_var / left_var.sum()
    return largest_remainder(mean, n_victims)


def counts_bins(evidence: BoostingObservations) -> bool:
    """Return whether the rows of each bin can be counted.

    This requires histograms of all rows whose error is below half a row, without noise on single
    rows.
    """
    observed, distortion = evidence.observed, evidence.distortion
    if observed.level != "histograms" or distortion.hides_small_bins or evidence.share < 1:
        return False
    slack = [h.slack.max() for h in observed.histograms or () if h.slack is not None]
    return max(slack, default=0.0) < 0.5 and not distortion.marks_rows


def reliability_of(evidence: BoostingObservations, rows: int) -> float:
    """Return the share of the variance of the first tree's bin counts that is not noise, 0 to 1.

    It is the reliability of Spearman (1904): the variance N / B that the counts of B equally likely
    bins have, divided by the sum of this variance and that of the noise, averaged over features. If
    small bins are suppressed, it is the share of all rows that are in the remaining bins.
    """
    assert evidence.observed.histograms is not None
    assert evidence.observed.cuts is not None
    hist, (_, h) = evidence.observed.histograms[0], initial_gradient(evidence)
    if evidence.distortion.hides_small_bins:
        shown = np.add.reduceat(hist.sums[0, :, 1], evidence.observed.cuts.offsets[:-1])
        return float(np.clip(shown.mean() / max(hist.totals[0, 1], h), 0, 1))
    noise = evidence.distortion.noise
    off = 0.0 if noise is None else np.ravel(noise[0].cell_h)[0] / h**2
    return float((max(rows, 1) / (max(rows, 1) + evidence.observed.cuts.n_bins * off)).mean())


def sums_of_counts(counts: Counts, sums: LeafSums, ph: tuple[float, float]) -> LeafSums:
    """Return the exact sums that the counted rows contribute to the leaves of a first-round tree.

    Parameters
    ----------
    counts : Counts
        Rows per leaf and class.
    sums : LeafSums
        Supplies all other fields of the result.
    ph : tuple of float
        Probability and hessian of every row (`initial_gradient`).
    """
    n = (counts.n0 + counts.n1).astype(np.float64)
    exact = np.zeros(len(n))
    return replace(sums, g=n * ph[0] - counts.n1, h=n * ph[1], var_g=exact, var_h=exact.copy())


def shrink_positives(n1_raw: Floats, n: Ints, sums: LeafSums) -> Floats:
    """Shrink the noisy number of positives per leaf towards an expected rate.

    The prior is beta-binomial. Its rate is the one among the prior's rows in the leaf, shrunk
    towards the base rate. The base rate is the rate among all rows of the prior, corrected by the
    noisy total.

    Parameters
    ----------
    n1_raw : float64 array, shape (J,)
        Noisy number of positives.
    n : int64 array, shape (J,)
        Number of rows.
    sums : LeafSums
        Supplies the variance of the gradient sums and the prior's rows per leaf.
    """
    total = float(n.sum())
    if total <= 0:
        return n1_raw
    in_leaf = np.add(*sums.prior_counts)
    positives = sums.prior_counts[1]
    rows = float(in_leaf.sum())
    rate = (float(positives.sum()) + 1) / (rows + 2)
    rate_var = rate * (1 - rate) / (rows + 3) + 1e-12
    seen_var = float(sums.var_g.sum()) / total**2 + 1e-12
    gain = rate_var / (rate_var + seen_var)
    rate = float(np.clip(rate + gain * (n1_raw.sum() / total - rate), 0.0, 1.0))
    # leaves of a fitted tree differ more than binomially: rows of the prior show by how much
    spread = _between_leaf_variance(sums)
    weight = max(rate * (1 - rate) / spread, 1e-6)  # of the base rate, in rows of the prior
    rows_j = in_leaf.astype(np.float64)
    rate_j = (positives + weight * rate) / (rows_j + weight)
    var = n * rate_j * (1 - rate_j) * (1 + (n - 1) / (rows_j + weight + 1))
    gain_j = np.divide(var, var + sums.var_g, out=np.zeros_like(var), where=var + sums.var_g > 0)
    return n * rate_j + gain_j * (n1_raw - n * rate_j)


def _between_leaf_variance(sums: LeafSums) -> float:
    """Estimate the variance of the positive rate between leaves from the prior's rows."""
    positives = sums.prior_counts[1]
    n = np.add(*sums.prior_counts).astype(np.float64)
    used = n > 0
    if n.sum() < 2 or used.sum() < 2:
        return 0.02
    rate = positives.sum() / n.sum()
    leaf = positives[used] / n[used]
    between = float((n[used] * (leaf - rate) ** 2).sum() / n.sum())
    within = float(rate * (1 - rate) * used.sum() / n.sum())
    return max(between - within, 0.002)
