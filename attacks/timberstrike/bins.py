"""Rows per bin from histograms that are off: rounded, noisy, or without their small bins.

Every row brings the same p and h to a tree of the first round, so that a bin's sums are two
equations in two integers (Di Gennaro et al. 2025, Eqs. 4-9). Where sums are off, each counts by its
variance, beside all that the bins must agree with: whole rows, the node's rows, the bins of the
node above, the way to the node, and own rows.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import DIRICHLET_PRIOR, Counts, first_gradient, share_out
from fedtrees.attacks.evidence.own_sums import bins_left
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

# Rows that a bin of the node above weighs as, where it says how many of its rows a node has; of the
# split's own feature they are the same rows.
ABOVE, SAME_ROWS = 1.0, 1e4
_LEAST = 1e-3  # rows that a bin of the node above has at least
# Rows that a bin may be off by before it no longer matters that they are whole.
_WHOLE_ROWS = 1.0
# Standard deviations from none at which values are held to be missing.
_DEVIATIONS = 4.5
_HIDDEN = 0.3  # of the rows hidden in a bin that is not shown, so many may be in one that is
_TINY, _SURE = 1e-12, 1e-3


@dataclass(frozen=True, eq=False)
class Seen:
    """The histograms of a tree of the first round, less rows that are known to be in them.

    A histogram has B bins, of all features, and then a column for each feature's missing values.
    """

    tree: Tree
    cuts: Cuts
    p: float
    # by node, float64 (B + d, 2): rows and gradient sums of every column; and their variances,
    # but for the noise on rows' gradients
    sums: dict[int, Floats]
    off: dict[int, Floats]
    total: tuple[Floats, Floats]  # the same of the root, (2,) each
    row: float  # variance of the noise on one row's gradient
    hidden: bool  # whether small bins are not there
    allowed: NDArray[np.bool_]  # bool (n_nodes, B + d): columns that rows of a node can be in

    @property
    def feature(self) -> NDArray[np.intp]:
        """Feature of every column."""
        d = self.cuts.n_features
        return np.concatenate([np.repeat(np.arange(d), self.cuts.n_bins), np.arange(d)])

    def classes(self, sums: Floats) -> Floats:
        """Return rows of other classes than the tree's, and of it, from rows and gradients."""
        n1 = sums[..., 0] * self.p - sums[..., 1]
        return np.stack([sums[..., 0] - n1, n1], axis=-1)


def seen_of(evidence: Evidence, t: int, known: tuple[Ints, NDArray[np.bool_]], own: Ints) -> Seen:
    """Return the histograms of tree ``t``, less known rows.

    `known`: (int32 array of shape (m, d), bool array of shape (m,)). Bins of these rows, and
    whether they are of the tree's class.
    `own`: int32 array, shape (r, d). Bins of rows like the victims': a feature that none of them
    misses has no missing values, unless more are missing than noise explains.
    """
    assert evidence.histograms is not None
    assert evidence.cuts is not None
    tree, cuts, hist = evidence.trees[t], evidence.cuts, evidence.histograms[t]
    p, h = first_gradient(evidence, t)
    members = _members(tree, known[0], cuts)
    noise = None if evidence.noise is None else evidence.noise[t]
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
        here = members[node]
        bins, totals = _rows(hist.sums[k], h), _rows(hist.totals[k], h)
        missing = totals - np.add.reduceat(bins, cuts.offsets[:-1], axis=0)
        taken = _histogram(known[0][here], known[1][here], cuts)
        taken[:, 1] = taken[:, 0] * p - taken[:, 1]
        sums[node] = np.concatenate([bins, missing]) - taken
        rest = every[:2, node] + cuts.n_bins[:, None] * every[2:, node]
        off[node] = np.concatenate([np.tile(every[2:, node], (cuts.total_bins, 1)), rest])
    first = np.append(np.arange(cuts.n_bins[0]), cuts.total_bins)
    total = sums[0][first].sum(axis=0), every[:2, 0]
    may = _may_miss(sums[0], off[0], cuts, own, evidence.suppressed)
    row = 0.0 if noise is None else noise.row_g
    allowed = _allowed(tree, cuts, may)
    return Seen(tree, cuts, p, sums, off, total, row, evidence.suppressed, allowed)


def _rows(gh: Floats, h: float) -> Floats:
    return np.stack([gh[..., 1] / h, gh[..., 0]], axis=-1)


def _members(tree: Tree, bins: Ints, cuts: Cuts) -> list[NDArray[np.intp]]:
    """Return which rows pass every node."""
    out = [np.arange(len(bins))] * len(tree)
    for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
        here = out[node]
        b = bins[here, tree.feature[node]]
        left = np.where(b < 0, tree.default_left[node], bins_left(tree, node, cuts)[b])
        out[int(tree.left[node])], out[int(tree.right[node])] = here[left], here[~left]
    return out


def _histogram(bins: Ints, of_class: NDArray[np.bool_], cuts: Cuts) -> Floats:
    """Count rows, and those of the tree's class, per column, float64, shape (B + d, 2)."""
    d = cuts.n_features
    at = np.where(bins < 0, cuts.total_bins + np.arange(d), cuts.offsets[:-1] + bins)
    size = cuts.total_bins + d
    parts = (np.bincount(rows.ravel(), minlength=size) for rows in (at, at[of_class]))
    return np.stack(list(parts), axis=1).astype(np.float64)


def _may_miss(
    root: Floats, off: Floats, cuts: Cuts, own_bins: Ints, hidden: bool
) -> NDArray[np.bool_]:
    """Tell which features may have missing values, bool (d,)."""
    missed = (own_bins < 0).any(axis=0) if len(own_bins) else np.zeros(cuts.n_features, dtype=bool)
    if hidden:
        return missed
    rest, doubt = root[cuts.total_bins :, 0], off[cuts.total_bins :, 0]
    return missed | (rest > _DEVIATIONS * np.sqrt(doubt) + 0.5)


def _allowed(tree: Tree, cuts: Cuts, may_miss: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which columns rows of every node can be in, bool, shape (n_nodes, B + d)."""
    out = np.ones((len(tree), cuts.total_bins + cuts.n_features), dtype=bool)
    out[0, cuts.total_bins :] = may_miss
    for node in np.flatnonzero(tree.feature >= 0).tolist():
        columns, left = _sides(tree, node, cuts)
        for child, goes in ((int(tree.left[node]), left), (int(tree.right[node]), ~left)):
            out[child] = out[node]
            if (out[node, columns] & goes).any():  # else all that is there is off
                out[child, columns] &= goes
    return out


def _sides(tree: Tree, node: int, cuts: Cuts) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the columns of a split's feature, and which of them go left."""
    f = int(tree.feature[node])
    columns = np.append(np.arange(*cuts.offsets[f : f + 2]), cuts.total_bins + f)
    return columns, np.append(bins_left(tree, node, cuts), tree.default_left[node])


@dataclass(frozen=True, eq=False)
class Likely:
    """What is likely of the rows of either class in every bin of every node."""

    seen: Seen
    # by node, float64 (B + d, 2)
    mean: dict[int, Floats] = field(default_factory=dict)
    variance: dict[int, Floats] = field(default_factory=dict)
    rows: dict[int, Floats] = field(default_factory=dict)  # float64 (2,), of whole nodes

    def leaves(self, total: int | None) -> Counts:
        """Return the rows in every leaf, ``total`` in all if that is known."""
        rows = np.maximum([self.rows[leaf] for leaf in self.seen.tree.leaves.tolist()], 0.0)
        both = share_out(rows.ravel(), round(rows.sum()) if total is None else total)
        n0, n1 = both.reshape(rows.shape).T
        return Counts(n0, n1, float(np.abs(rows.ravel() - both).max(initial=0.0)))

    def bins(self, leaves: Counts) -> dict[int, Longs]:
        """Return whole counts per bin of every node, as many in every feature as its leaves hold.

        Int64 (B + d, 2) by node.
        """
        rows = _rows_per_node(self.seen.tree, leaves)
        bins_of_node = {}
        for node, mean in self.mean.items():
            out = np.zeros(mean.shape, dtype=np.int64)
            for at in _columns(self.seen, node):
                for k in range(2):
                    near = _adding_up(mean[at, k], self.variance[node][at, k], rows[node, k])
                    out[at, k] = share_out(near, round(rows[node, k]))
            bins_of_node[node] = out
        return bins_of_node


def _columns(seen: Seen, node: int) -> list[NDArray[np.intp]]:
    """Return the columns of every feature that rows of a node can be in."""
    can = seen.allowed[node]
    return [np.flatnonzero((seen.feature == f) & can) for f in range(seen.cuts.n_features)]


def likely_bins(
    seen: Seen,
    total: int | None,
    own: tuple[Ints, NDArray[np.bool_]],
    leaves: Counts | None = None,
) -> Likely:
    """Work out what is likely of every node's bins, from the root down.

    `total`: Rows in all, if that is known.
    `own`: (int32 array of shape (r, d), bool array of shape (r,)). Bins of rows like those, and
    whether they are of the tree's class.
    `leaves`: The rows in every leaf, where bins are not to say more of them.
    """
    tree, likely = seen.tree, Likely(seen)
    own_histogram = _histogram(*own, seen.cuts)
    own_histogram[:, 0] -= own_histogram[:, 1]
    fixed = None if leaves is None else _rows_per_node(tree, leaves)
    rows = np.maximum(seen.classes(seen.total[0]), 1.0) if fixed is None else fixed[0]
    part = _likely(seen, 0, own_histogram + DIRICHLET_PRIOR, rows, None)
    if fixed is None:
        rows, doubt = _whole(seen, 0, part, rows, np.full(2, seen.total[1].sum() + _SURE))
        if total is not None:
            rows = rows + (total - rows.sum()) * doubt / doubt.sum()
    _settle(likely, 0, part, rows)
    for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
        _split(likely, node, fixed)
    return likely


def _split(likely: Likely, node: int, fixed: Floats | None) -> None:
    """Go on from a node to its children."""
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
                rows, doubt = _whole(seen, child, parts[child], rows, doubt)
        wholes.append((rows, doubt))
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


def _likely(seen: Seen, node: int, guide: Floats, rows: Floats, above: int | None) -> Moments:
    """Return what is likely of the bins of a node of so many rows.

    ``guide`` is how rows are spread as far as one knows: own ones, or those of the node above,
    which was split by feature ``above``.
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
    """Return by how much means move, and variances, of two normal numbers of such variances.

    What is known are their sum and ``p`` of the first less ``1 - p`` of the second, each off by so
    much. Terms of one sign are added, whatever is exact. All float64, shape (C, 2).
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
    """Return what is likely of the rows of either class of bins, given their sums.

    A priori they are negative binomial: Poisson with rates that are gamma of this ``shape``, as
    shares of a Dirichlet distribution nearly are. All float64, shape (C, 2).
    """
    A = np.array([[1.0, 1.0], [p, p - 1]])
    near, spread = _normal_posterior(raw - mean @ A.T, off, mean + mean**2 / shape, p)
    near = mean + near
    if np.sqrt(spread.max(initial=0.0)) > _WHOLE_ROWS:
        return np.maximum(near, 0.0), spread
    width = int(np.ceil(3 * np.sqrt(spread.max(initial=0.0)))) + 1
    steps = np.arange(-width, width + 1)
    n = np.maximum(np.rint(near), 0)[:, :, None] + steps  # (C, 2, W)
    n = np.where(n < 0, np.nan, n)
    with np.errstate(invalid="ignore"):
        log = gammaln(n + shape[:, :, None]) - gammaln(n + 1)
        log += n * np.log(mean / (mean + shape))[:, :, None]
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


def _with_hidden(seen: Seen, node: int, expected: Floats, rows: Floats) -> Moments:
    """Return the same where small bins are not there: the rest is where rows are expected."""
    shown = np.maximum(seen.classes(seen.sums[node]), 0.0) * seen.allowed[node][:, None]
    more = np.where(shown > 0, _HIDDEN, 1.0) * expected
    mean = shown.copy()
    for at in _columns(seen, node):
        rest = np.maximum(rows - shown[at].sum(axis=0), 0.0)
        mean[at] += rest * more[at] / np.maximum(more[at].sum(axis=0), _TINY)
    return mean, mean + _SURE


def _whole(seen: Seen, node: int, part: Moments, rows: Floats, doubt: Floats) -> Moments:
    """Return a node's rows of either class and their variance, float64 (2,) each.

    ``rows`` and ``doubt`` are what is known of them; every feature's bins add up to them, too.
    """
    if seen.hidden:
        return rows, doubt
    weight, total = 1 / doubt, rows / doubt
    for at in _columns(seen, node):
        off = part[1][at].sum(axis=0)
        near = part[0][at].sum(axis=0)
        if off.max() > _WHOLE_ROWS * len(at):  # no whole rows: as they were seen
            near = seen.classes(seen.sums[node][at].sum(axis=0))
            off = np.full(2, seen.off[node][at].sum())
        weight, total = weight + 1 / (off + _SURE), total + near / (off + _SURE)
    return np.maximum(total / weight, 0.0), 1 / weight


def _settle(likely: Likely, node: int, part: Moments, rows: Floats) -> None:
    """Take a node's bins as they are likely, once they add up to its rows."""
    mean, variance = part[0].copy(), part[1]
    for at in _columns(likely.seen, node):
        for k in range(2):
            mean[at, k] = _adding_up(mean[at, k], variance[at, k], float(rows[k]))
    likely.mean[node], likely.variance[node], likely.rows[node] = mean, variance, rows


def _adding_up(mean: Floats, variance: Floats, total: float) -> Floats:
    """Return the nearest counts of 0 or more, by their variances, that add up."""
    out = np.maximum(mean, 0.0)
    for _ in range(len(mean) + 1):
        rest = total - out.sum()
        part = variance + _TINY if rest > 0 else np.where(out > 0, variance + _TINY, 0.0)
        if abs(rest) < 1e-9 or not part.any():
            break
        out = np.maximum(out + rest * part / part.sum(), 0.0)
    return out


def _rows_per_node(tree: Tree, leaves: Counts) -> Floats:
    """Return the rows of either class in every node, float64, shape (n_nodes, 2)."""
    out = np.zeros((len(tree), 2))
    out[tree.leaves] = np.stack([leaves.n0, leaves.n1], axis=1)
    for node in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        out[node] = out[tree.left[node]] + out[tree.right[node]]
    return out
