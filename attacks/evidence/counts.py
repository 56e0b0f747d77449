"""First-Tree Probing: how many rows of each class are in each leaf of the first tree.

All rows have the same predicted probability before the first tree, so that the two sums of a leaf
are two linear equations in two integers (Di Gennaro et al. 2025, Sec. 5.1, Eqs. 4-9).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.allocation import share_out
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.routing import gradients
from fedtrees.attacks.evidence.sums import LeafSums

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

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


def first_gradient(evidence: Evidence, t: int = 0) -> tuple[float, float]:
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
    among the prior's rows in the leaf (`fedtrees.attacks.evidence.sums`).

    Parameters
    ----------
    sums : LeafSums
        Sums of the victims' rows. ``g`` and ``h`` must be present.
    p, h : float
        Probability and hessian of every row (`first_gradient`).
    n_victims : int or None
        Number of the victims' rows. None means unknown.
    most_rows : int, optional
        Upper bound on the number of rows, used if ``n_victims`` is None.
    """
    assert sums.g is not None
    assert sums.h is not None
    if p == 0:  # numeric targets: rows have no class
        sums = replace(sums, g=np.zeros_like(sums.g), var_g=np.zeros_like(sums.var_g))
    assert sums.g is not None
    raw = sums.h / h
    if float(np.max(sums.var_h, initial=0.0)) <= NOISE_FLOOR:
        n = np.maximum(np.rint(raw), 0).astype(np.int64)
    else:
        n = _noisy_counts(raw, sums, h, n_victims)
    limit = most_rows if n_victims is None else n_victims
    if limit is not None and n.sum() > 2 * limit + 1000:
        # the sums contradict the declared number of rows: use the declared number
        n = share_out(n.astype(np.float64), limit)
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
    return share_out(mean, n_victims)


def counts_bins(evidence: Evidence) -> bool:
    """Return whether the rows of each bin can be counted.

    This requires histograms of all rows whose error is below half a row, without noise on single
    rows.
    """
    if evidence.level != "histograms" or evidence.suppressed or evidence.share < 1:
        return False
    slack = [h.slack.max() for h in evidence.histograms or () if h.slack is not None]
    by_row = any(noise.row_g for noise in evidence.noise or ())
    return max(slack, default=0.0) < 0.5 and not by_row


def reliability_of(evidence: Evidence, rows: int) -> float:
    """Return the share of the variance of the first tree's bin counts that is not noise, 0 to 1.

    It is the reliability of Spearman (1904): the variance N / B that the counts of B equally likely
    bins have, divided by the sum of this variance and that of the noise, averaged over features. If
    small bins are suppressed, it is the share of all rows that are in the remaining bins.
    """
    assert evidence.histograms is not None
    assert evidence.cuts is not None
    hist, (_, h) = evidence.histograms[0], first_gradient(evidence)
    if evidence.suppressed:
        shown = np.add.reduceat(hist.sums[0, :, 1], evidence.cuts.offsets[:-1])
        return float(np.clip(shown.mean() / max(hist.totals[0, 1], h), 0, 1))
    off = 0.0 if evidence.noise is None else np.ravel(evidence.noise[0].cell_h)[0] / h**2
    return float((max(rows, 1) / (max(rows, 1) + evidence.cuts.n_bins * off)).mean())


def sums_of_counts(counts: Counts, sums: LeafSums, ph: tuple[float, float]) -> LeafSums:
    """Return the exact sums that the counted rows contribute to the leaves of a first-round tree.

    Parameters
    ----------
    counts : Counts
        Rows per leaf and class.
    sums : LeafSums
        Supplies all other fields of the result.
    ph : tuple of float
        Probability and hessian of every row (`first_gradient`).
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
