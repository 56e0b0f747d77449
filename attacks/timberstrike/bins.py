"""Estimate class counts per bin from inexact histograms: rounded, noisy, or without small bins.

Every row has the same p and h in a tree of the first round, so that the sums of a bin are two
equations in two integers (Di Gennaro et al. 2025, Eqs. 4-9). If the sums are inexact, each equation
is weighted by its variance, and combined with the other constraints on the counts: they are
integers, they add up to the rows of the node, they are distributed like the bins of the parent (at
the root: like local rows), and all rows of a node fulfil the splits on its path.

The estimation proceeds from the root to the leaves (`likely_bins`). `histograms` uses the result if
rows cannot be decoded exactly.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.counts.leaf_sums import DIRICHLET_PRIOR, Counts, initial_gradient
from fedtrees.attacks.counts.sum_bounds import members
from fedtrees.attacks.observations.boosting import BoostingObservations, sums_below
from fedtrees.attacks.observations.replay import bins_left
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

# Prior weight, in rows, of the shares of the parent's bins. In bins of the feature that splits the
# parent, the rows of the child are the same rows as in the parent, so that the weight is large.
ABOVE, SAME_ROWS = 1.0, 1e4
_LEAST = 1e-3  # smallest number of rows in a bin of the parent
# Standard deviation of a count, in rows, above which it is not treated as an integer.
_WHOLE_ROWS = 1.0
# Standard deviations from zero above which a column is assumed to have missing values.
_DEVIATIONS = 4.5
# Weight of a visible bin, relative to a suppressed bin, when suppressed rows are distributed.
_HIDDEN = 0.3
_TINY, _SURE = 1e-12, 1e-3


@dataclass(frozen=True, eq=False)
class BinObservations:
    """The histograms of a tree of the first round, without rows that the adversary knows.

    A histogram has B bins of all d features, followed by one bin per feature for missing values.

    Attributes
    ----------
    tree : Tree
    cuts : Cuts
        Borders of the bins.
    p : float
        Probability that the base score gives to the class of the tree.
    sums : dict of int to float64 array, shape (B + d, 2)
        Number of rows and gradient sum of every bin, by node.
    off : dict of int to float64 array, shape (B + d, 2)
        Variance of `sums`, without the noise on the gradients of single rows.
    total : pair of float64 array, shape (2,)
        Sums over the root, and their variance.
    row : float
        Variance of the noise on the gradient of one row.
    hidden : bool
        Whether a defense suppresses small bins.
    allowed : bool array, shape (n_nodes, B + d)
        Bins in which rows of a node can be, given the splits on its path.
    """

    tree: Tree
    cuts: Cuts
    p: float
    sums: dict[int, Floats]
    off: dict[int, Floats]
    total: tuple[Floats, Floats]
    row: float
    hidden: bool
    allowed: NDArray[np.bool_]

    @property
    def feature(self) -> NDArray[np.intp]:
        """Feature of every bin."""
        d = self.cuts.n_features
        return np.concatenate([np.repeat(np.arange(d), self.cuts.n_bins), np.arange(d)])

    def classes(self, sums: Floats) -> Floats:
        """Solve for the rows of other classes and of the tree's class, given rows and gradients."""
        n1 = sums[..., 0] * self.p - sums[..., 1]
        return np.stack([sums[..., 0] - n1, n1], axis=-1)


def seen_of(
    evidence: BoostingObservations,
    t: int,
    known_bins: tuple[Ints, NDArray[np.bool_]],
    prior_bins: Ints,
) -> BinObservations:
    """Collect the histograms of a tree and subtract known rows from them.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with histograms.
    t : int
        Number of a tree of the first round.
    known_bins : (int32 array, shape (m, d), bool array, shape (m,))
        Bins of rows that are known to be in the sums, and whether they belong to the class of the
        tree.
    prior_bins : int32 array, shape (r, d)
        Bins of rows of the prior. A feature that is complete in these rows is assumed to have no
        missing values, unless the number of missing values is larger than noise explains.

    Returns
    -------
    BinObservations
    """
    assert evidence.observed.histograms is not None
    assert evidence.observed.cuts is not None
    tree, cuts, hist = evidence.trees[t], evidence.observed.cuts, evidence.observed.histograms[t]
    p, h = initial_gradient(evidence, t)
    rows_of = dict(members(tree, cuts, known_bins[0]))
    noise = None if evidence.distortion.noise is None else evidence.distortion.noise[t]
    every = np.zeros((4, len(tree)))  # variances of nodes' sums and of their bins
    if noise is not None:
        every = np.stack(
            [
                np.broadcast_to(v, len(tree))
                for v in (noise.h / h**2, noise.g, noise.cell_h / h**2, noise.cell_g)
            ]
        )
    sums, off = {}, {}
    for k, node in enumerate(hist.nodes.tolist()):
        here = rows_of[node]
        bins, totals = _rows(hist.sums[k], h), _rows(hist.totals[k], h)
        missing = totals - np.add.reduceat(bins, cuts.offsets[:-1], axis=0)
        taken = _histogram(known_bins[0][here], known_bins[1][here], cuts)
        taken[:, 1] = taken[:, 0] * p - taken[:, 1]
        sums[node] = np.concatenate([bins, missing]) - taken
        rest = every[:2, node] + cuts.n_bins[:, None] * every[2:, node]
        off[node] = np.concatenate([np.tile(every[2:, node], (cuts.total_bins, 1)), rest])
    first = np.append(np.arange(cuts.n_bins[0]), cuts.total_bins)
    total = sums[0][first].sum(axis=0), every[:2, 0]
    hidden = evidence.distortion.hides_small_bins
    may = _may_miss(sums[0], off[0], cuts, prior_bins, hidden)
    row = 0.0 if noise is None else noise.row_g
    allowed = _allowed_bins(tree, cuts, may)
    return BinObservations(tree, cuts, p, sums, off, total, row, hidden, allowed)


def _rows(gh: Floats, h: float) -> Floats:
    return np.stack([gh[..., 1] / h, gh[..., 0]], axis=-1)


def _histogram(bins: Ints, of_class: NDArray[np.bool_], cuts: Cuts) -> Floats:
    """Count the rows, and those of the tree's class, per bin, float64, shape (B + d, 2)."""
    d = cuts.n_features
    at = np.where(bins < 0, cuts.total_bins + np.arange(d), cuts.offsets[:-1] + bins)
    size = cuts.total_bins + d
    parts = (np.bincount(rows.ravel(), minlength=size) for rows in (at, at[of_class]))
    return np.stack(list(parts), axis=1).astype(np.float64)


def _may_miss(
    root: Floats, off: Floats, cuts: Cuts, own_bins: Ints, hidden: bool
) -> NDArray[np.bool_]:
    """Return which features may have missing values, bool (d,)."""
    missed = np.zeros(cuts.n_features, dtype=bool)
    if len(own_bins):
        missed |= (own_bins < 0).any(axis=0)
    if hidden:
        return missed
    # the number of missing values follows from the total minus all bins of the feature
    rest, doubt = root[cuts.total_bins :, 0], off[cuts.total_bins :, 0]
    return missed | (rest > _DEVIATIONS * np.sqrt(doubt) + 0.5)


def _allowed_bins(tree: Tree, cuts: Cuts, may_miss: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return in which bins the rows of each node can be, bool, shape (n_nodes, B + d)."""
    out = np.ones((len(tree), cuts.total_bins + cuts.n_features), dtype=bool)
    out[0, cuts.total_bins :] = may_miss
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        columns, left = _sides(tree, node, cuts)
        for child, goes in ((int(tree.left[node]), left), (int(tree.right[node]), ~left)):
            out[child] = out[node]
            # A child without any bin on its side can only result from noise. It keeps all bins.
            if (out[node, columns] & goes).any():
                out[child, columns] &= goes
    return out


def _sides(tree: Tree, node: int, cuts: Cuts) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the bins of the feature of a split, and which of them go left."""
    f = int(tree.feature[node])
    columns = np.append(np.arange(*cuts.offsets[f : f + 2]), cuts.total_bins + f)
    return columns, np.append(bins_left(tree, node, cuts), tree.default_left[node])


@dataclass(frozen=True, eq=False)
class BinCountEstimate:
    """Posterior mean and variance of the rows of both classes in every bin of every node.

    Attributes
    ----------
    seen : BinObservations
        The histograms.
    mean, variance : dict of int to float64 array, shape (B + d, 2)
        By node. The classes are "other than the tree's", and the tree's.
    rows : dict of int to float64 array, shape (2,)
        Rows of each class in a node, by node.
    """

    seen: BinObservations
    mean: dict[int, Floats] = field(default_factory=dict)
    variance: dict[int, Floats] = field(default_factory=dict)
    rows: dict[int, Floats] = field(default_factory=dict)

    def leaves(self, total: int | None) -> Counts:
        """Return integer counts of the rows in every leaf.

        They add up to ``total``, or to the rounded sum of the estimates if ``total`` is None.
        """
        rows = np.maximum([self.rows[leaf] for leaf in self.seen.tree.leaves.tolist()], 0.0)
        both = largest_remainder(rows.ravel(), round(rows.sum()) if total is None else total)
        n0, n1 = both.reshape(rows.shape).T
        return Counts(n0, n1, float(np.abs(rows.ravel() - both).max(initial=0.0)))

    def bins(self, leaves: Counts) -> dict[int, Longs]:
        """Return integer counts per bin, int64, shape (B + d, 2), by node.

        The counts of each feature add up to the rows in the leaves below the node.
        """
        rows = _rows_per_node(self.seen.tree, leaves)
        bins_of_node = {}
        for node, mean in self.mean.items():
            out = np.zeros(mean.shape, dtype=np.int64)
            for at in _columns(self.seen, node):
                for k in range(2):
                    near = _adding_up(mean[at, k], self.variance[node][at, k], rows[node, k])
                    out[at, k] = largest_remainder(near, round(rows[node, k]))
            bins_of_node[node] = out
        return bins_of_node


def _columns(seen: BinObservations, node: int) -> list[NDArray[np.intp]]:
    """Return, for every feature, the bins in which rows of a node can be."""
    can = seen.allowed[node]
    return [np.flatnonzero((seen.feature == f) & can) for f in range(seen.cuts.n_features)]


def likely_bins(
    seen: BinObservations,
    total: int | None,
    prior_bins: tuple[Ints, NDArray[np.bool_]],
    leaves: Counts | None = None,
) -> BinCountEstimate:
    """Estimate the class counts of the bins of all nodes, from the root to the leaves.

    Parameters
    ----------
    seen : BinObservations
        Inexact histograms of a tree of the first round.
    total : int or None
        Number of unknown rows in the histograms, None if it is not declared.
    prior_bins : (int32 array, shape (r, d), bool array, shape (r,))
        Bins of rows of the prior, and whether they belong to the class of the tree.
    leaves : Counts or None
        Rows in every leaf, if these are determined by other evidence. None: they are estimated from
        the bins, too.

    Returns
    -------
    BinCountEstimate
    """
    tree, likely = seen.tree, BinCountEstimate(seen)
    own_histogram = _histogram(*prior_bins, seen.cuts)
    own_histogram[:, 0] -= own_histogram[:, 1]
    fixed = None if leaves is None else _rows_per_node(tree, leaves)
    rows = np.maximum(seen.classes(seen.total[0]), 1.0) if fixed is None else fixed[0]
    part = _likely(seen, 0, own_histogram + DIRICHLET_PRIOR, rows, None)
    if fixed is None:
        rows, doubt = _node_rows(seen, 0, part, rows, np.full(2, seen.total[1].sum() + _SURE))
        if total is not None:  # distribute the difference in proportion to the variances
            rows = rows + (total - rows.sum()) * doubt / doubt.sum()
    _settle(likely, 0, part, rows)
    for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
        _split(likely, node, fixed)
    return likely


def _split(likely: BinCountEstimate, node: int, fixed: Floats | None) -> None:
    """Estimate the bins of both children of a node, so that their rows add up to its rows."""
    seen, tree = likely.seen, likely.seen.tree
    sides = (int(tree.left[node]), int(tree.right[node]))
    columns, left = _sides(tree, node, seen.cuts)
    of, off = likely.mean[node][columns], likely.variance[node][columns]
    parts, wholes = {}, []
    for child, goes in zip(sides, (left, ~left), strict=True):
        rows, doubt = of[goes].sum(axis=0), off[goes].sum(axis=0) + _SURE
        rows = rows if fixed is None else fixed[child]
        if child in seen.sums:
            guide, above = likely.mean[node] + _LEAST, int(tree.feature[node])
            parts[child] = _likely(seen, child, guide, rows, above)
            if fixed is None:
                rows, doubt = _node_rows(seen, child, parts[child], rows, doubt)
        wholes.append((rows, doubt))
    # Make the children add up to the parent, and change the more uncertain child more.
    (a, doubt_a), (b, doubt_b) = wholes
    if fixed is None:
        a = a + (likely.rows[node] - a - b) * doubt_a / (doubt_a + doubt_b)
        a = np.clip(a, 0, likely.rows[node])
        b = likely.rows[node] - a
    for child, rows in zip(sides, (a, b), strict=True):
        likely.rows[child] = rows
        if child in parts:
            _settle(likely, child, parts[child], rows)


Moments = tuple[Floats, Floats]  # mean and variance, float64 (B + d, 2) each


def _likely(
    seen: BinObservations, node: int, guide: Floats, rows: Floats, above: int | None
) -> Moments:
    """Return posterior mean and variance of the bins of a node with the given number of rows.

    ``guide`` is the prior distribution over bins: that of local rows for the root (``above`` is
    None), else that of the parent, which was split by feature ``above``.
    """
    can = seen.allowed[node]
    guide = np.where(can[:, None], guide, 0.0)
    feature_sums = np.zeros((seen.cuts.n_features, 2))
    np.add.at(feature_sums, seen.feature, guide)
    share = guide / np.maximum(feature_sums, _TINY)[seen.feature]
    if seen.hidden:
        return _with_hidden(seen, node, share * rows, rows)
    shape = guide if above is None else np.full(guide.shape, ABOVE)
    shape = np.where((seen.feature == above)[:, None], SAME_ROWS, shape)
    mean, variance = np.zeros_like(guide), np.zeros_like(guide)
    off = seen.off[node][can] + _TINY
    off[:, 1] += seen.row * np.maximum(seen.sums[node][can, 0], 1.0)
    prior = np.maximum(share * rows, 1e-6)[can], np.maximum(shape, 1e-3)[can]
    mean[can], variance[can] = _posterior(seen.sums[node][can], off, *prior, seen.p)
    return mean, variance


def _normal_posterior(surprise: Floats, off: Floats, prior: Floats, p: float) -> Moments:
    """Return the shift of the means, and the variances, of two normal variables given two sums.

    The variables a, b have variances ``prior``. Their sum a + b and p a - (1 - p) b are observed
    with errors of variance ``off`` and differ from their expected values by ``surprise``. The
    closed form adds only terms of one sign, so that it is accurate for exact sums, too. All arrays
    are float64, shape (C, 2).
    """
    (v, w), (a, b) = prior.T, off.T
    q = 1 - p
    determinant = v * w + a * (p**2 * v + q**2 * w) + b * (v + w) + a * b
    gain = np.array([[v * (b + q * w), v * (w + p * a)], [w * (b + p * v), -w * (v + q * a)]])
    spread = np.stack([v * (a * b + w * b + q**2 * w * a), w * (a * b + v * b + p**2 * v * a)], -1)
    return np.einsum("ikc,ck->ci", gain, surprise) / determinant[:, None], spread / determinant[
        :, None
    ]


def _posterior(raw: Floats, off: Floats, mean: Floats, shape: Floats, p: float) -> Moments:
    """Return posterior mean and variance of the class counts of C bins, given their sums.

    A priori the counts are negative binomial: Poisson with gamma rates of the given ``shape``,
    which approximates Dirichlet-distributed shares. If the standard deviation of the normal
    approximation exceeds `_WHOLE_ROWS`, that approximation is returned. Otherwise the posterior is
    summed over integers. All arrays are float64, shape (C, 2).
    """
    A = np.array([[1.0, 1.0], [p, p - 1]])
    near, spread = _normal_posterior(raw - mean @ A.T, off, mean + mean**2 / shape, p)
    near = mean + near
    if np.sqrt(spread.max(initial=0.0)) > _WHOLE_ROWS:
        return np.maximum(near, 0.0), spread
    # Enumerate all pairs of integers within three standard deviations of the normal approximation.
    width = int(np.ceil(3 * np.sqrt(spread.max(initial=0.0)))) + 1
    steps = np.arange(-width, width + 1)
    n = np.maximum(np.rint(near), 0)[:, :, None] + steps  # (C, 2, W)
    n = np.where(n < 0, np.nan, n)
    with np.errstate(invalid="ignore"):
        log = gammaln(n + shape[:, :, None]) - gammaln(n + 1)
        log += n * np.log(mean / (mean + shape))[:, :, None]
    # standardised squared deviations of both sums, for every pair of counts
    gap = [
        (raw[:, k, None, None] - A[k, 0] * n[:, 0, :, None] - A[k, 1] * n[:, 1, None, :]) ** 2
        / off[:, k, None, None]
        for k in range(2)
    ]
    log = log[:, 0, :, None] + log[:, 1, None, :] - (gap[0] + gap[1]) / 2
    log = np.where(np.isnan(log), -np.inf, log)
    weight = np.exp(log - log.max(axis=(1, 2), keepdims=True))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    n = np.nan_to_num(n)
    marginal = np.stack([weight.sum(axis=2), weight.sum(axis=1)], axis=1)  # (C, 2, W)
    expected = (marginal * n).sum(axis=2)
    return expected, (marginal * (n - expected[:, :, None]) ** 2).sum(axis=2)


def _with_hidden(seen: BinObservations, node: int, expected: Floats, rows: Floats) -> Moments:
    """Return mean and variance if small bins are suppressed.

    The rows that no visible bin contains are distributed in proportion to their expected counts.
    """
    shown = np.maximum(seen.classes(seen.sums[node]), 0.0) * seen.allowed[node][:, None]
    more = np.where(shown > 0, _HIDDEN, 1.0) * expected
    mean = shown.copy()
    for at in _columns(seen, node):
        rest = np.maximum(rows - shown[at].sum(axis=0), 0.0)
        mean[at] += rest * more[at] / np.maximum(more[at].sum(axis=0), _TINY)
    return mean, mean + _SURE


def _node_rows(
    seen: BinObservations, node: int, part: Moments, rows: Floats, doubt: Floats
) -> Moments:
    """Return the rows of both classes in a node and their variance, float64 (2,) each.

    The estimate ``rows`` with variance ``doubt`` is combined with the sum over the bins of each
    feature, weighted by the inverse variances.
    """
    if seen.hidden:
        return rows, doubt
    weight, total = 1 / doubt, rows / doubt
    for at in _columns(seen, node):
        off = part[1][at].sum(axis=0)
        near = part[0][at].sum(axis=0)
        # Clipping at 0 biases the posterior means if the noise is larger than a row. The unclipped
        # sums are used then.
        if off.max() > _WHOLE_ROWS * len(at):
            near = seen.classes(seen.sums[node][at].sum(axis=0))
            off = np.full(2, seen.off[node][at].sum())
        weight, total = weight + 1 / (off + _SURE), total + near / (off + _SURE)
    return np.maximum(total / weight, 0.0), 1 / weight


def _settle(likely: BinCountEstimate, node: int, part: Moments, rows: Floats) -> None:
    """Store the estimates of a node, adjusted so that the bins add up to its rows."""
    mean, variance = part[0].copy(), part[1]
    for at in _columns(likely.seen, node):
        for k in range(2):
            mean[at, k] = _adding_up(mean[at, k], variance[at, k], float(rows[k]))
    likely.mean[node], likely.variance[node], likely.rows[node] = mean, variance, rows


def _adding_up(mean: Floats, variance: Floats, total: float) -> Floats:
    """Return the nearest non-negative counts, weighted by their variances, that add up."""
    out = np.maximum(mean, 0.0)
    for _ in range(len(mean) + 1):
        rest = total - out.sum()
        part = variance + _TINY if rest > 0 else np.where(out > 0, variance + _TINY, 0.0)
        if abs(rest) < 1e-9 or not part.any():
            break
        out = np.maximum(out + rest * part / part.sum(), 0.0)
    return out


def _rows_per_node(tree: Tree, leaves: Counts) -> Floats:
    """Return the rows of both classes in every node, float64, shape (n_nodes, 2)."""
    return sums_below(tree, np.stack([leaves.n0, leaves.n1], axis=1))
