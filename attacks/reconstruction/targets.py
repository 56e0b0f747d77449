"""Prior knowledge about numeric targets: their mean, standard deviation, and cells."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedtrees.attacks.counts.leaf_sums import LeafSums, leaf_sums
from fedtrees.attacks.observations.boosting import BoostingObservations, Targets, at_tree
from fedtrees.attacks.reconstruction.boxes import FeatureBoxes
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.blind_baselines.rows import narrow, wide, widened
from fedtrees.core.claims import Claim, Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import LabelSums

Floats = NDArray[np.float64]

#: Number of cells of the targets. A middle one of 12 is about 0.25 standard deviations wide, and
#: the metric accepts an error of 0.319 standard deviations.
CELLS = 12
#: Number of normal quantiles that represent the targets if none are known.
DRAWN = 240
#: Assumed ratio of the variance of targets to the variance between the leaves of the first tree.
UNEXPLAINED = 2.0


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of targets, None if they are unknown."""

    mean: float | None = None
    deviation: float | None = None

    @property
    def range(self) -> tuple[float, float] | None:
        """Mean plus and minus two standard deviations. None if one of the moments is unknown."""
        if self.mean is None or self.deviation is None:
            return None
        return self.mean - 2 * self.deviation, self.mean + 2 * self.deviation


def announced_moments(view: View) -> Moments:
    """Return the moments of the victims' targets from sums that clients send at the start."""
    sums = [
        m.sums
        for item, m in view.messages(LabelSums)
        if len(m.sums) == 4 and item.sender not in view.principals
    ]
    _, weight, first, second = np.sum(sums, axis=0) if sums else np.zeros(4)
    if not weight > 0:
        return Moments()
    mean = first / weight
    return Moments(float(mean), float(np.sqrt(max(second / weight - mean**2, 0.0))))


def with_targets(
    evidence: BoostingObservations,
    local_rows: Table,
    schema: Schema,
    known_moments: Moments,
    inside: int | None = None,
) -> tuple[BoostingObservations, Table, Schema]:
    """Return evidence with cells of the victims' targets, and rows with the target as a column.

    The rows of `BoostingObservations.population` in the returned evidence have this column, too.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees for numeric targets.
    local_rows : Table
        Local rows.
    schema : Schema
        It is returned with the additional column.
    known_moments : Moments
        Known moments of the victims' targets.
    inside : int, optional
        Number of training rows that are not rows of the victims. None means all local rows.
    """
    moments = moments_of(evidence, local_rows, known_moments)
    n = _victims_in(evidence, len(local_rows) if inside is None else inside)
    targets = targets_of(moments, evidence.prior_rows(local_rows).y.astype(np.float64), n)
    likely = None if evidence.columns.population is None else wide(evidence.columns.population)
    evidence = evidence.change(targets=targets, sizes=(n, 0), population=likely)
    return evidence, wide(local_rows), widened(schema, moments.range)


def narrow_targets(guess: Guess) -> Guess:
    """Move the last column of reconstructed rows back to the targets.

    Leaf counts are summed over classes.
    """

    def one(claim: Claim) -> Claim:
        if isinstance(claim, LeafCounts):
            return replace(claim, counts=claim.counts.sum(axis=1, keepdims=True))
        return Records(narrow(claim.table)) if isinstance(claim, Records) else claim

    return replace(guess, claims=tuple(map(one, guess.claims)))


def moments_of(evidence: BoostingObservations, rows: Table, known_moments: Moments) -> Moments:
    """Return the best available moments of the victims' targets.

    Parameters
    ----------
    evidence : BoostingObservations
        Its leaf sums include the local rows if ``own_inside``.
    rows : Table
        Local rows. Without any, the deviation is that of the rows of the population.
    known_moments : Moments
        Moments known from other messages. They take precedence.
    """
    local_targets, first = rows.y.astype(np.float64), evidence.first_own
    likely = evidence.prior_rows(rows)
    base = float(np.ravel(evidence.base_margin)[0])
    if first and len(likely):  # mean prediction of the foreign trees for rows of the prior
        base = float(at_tree(evidence, likely.X, first)[1].mean())
    mean = known_moments.mean
    deviation = known_moments.deviation
    exact = evidence.distortion.noise is None
    if deviation is None and len(likely) > 1:
        deviation = float(likely.y.astype(np.float64).std())
    sums = leaf_sums(evidence, first) if evidence.trees else None
    if mean is None:
        mean = base
        if sums is not None and exact and sums[1].sum() >= 1:
            mean = base - float(sums[0].sum() / sums[1].sum())
        n = evidence.row_counts.n_rows or 0
        if evidence.observed.own_inside and len(local_targets) and n > len(local_targets):
            mean = (n * mean - float(local_targets.sum())) / (n - len(local_targets))
    if deviation is None and sums is not None:
        g, h = sums
        nonempty = h > 0
        between = float((g[nonempty] ** 2 / h[nonempty]).sum() / max(h[nonempty].sum(), 1))
        deviation = np.sqrt(UNEXPLAINED * between)
    elif deviation is None and evidence.trees:
        tree = evidence.trees[first]
        values = tree.value[tree.leaves] / evidence.params.learning_rate
        deviation = np.sqrt(UNEXPLAINED) * float(values.std())
    return Moments(mean, float(deviation or 0.0))


def targets_of(moments: Moments, prior_targets: Floats, n: int) -> Targets:
    """Return cells of the targets of n victims' rows with the given moments.

    Their distribution is that of the prior's targets, tilted to the victims' mean. With fewer than
    two prior targets it is a normal distribution.
    """
    assert moments.mean is not None
    assert moments.deviation is not None
    support = prior_targets
    if len(prior_targets) < 2:
        support = moments.mean + moments.deviation * ndtri((np.arange(DRAWN) + 0.5) / DRAWN)
    support = np.sort(support.astype(np.float32))
    cuts = np.quantile(support, np.arange(1, CELLS) / CELLS, method="nearest")
    edges = np.unique(cuts[cuts > support[0]]).astype(np.float32)
    cell = np.searchsorted(edges, support, side="right")
    count = np.bincount(cell, minlength=len(edges) + 1).astype(np.float64)
    values = np.bincount(cell, support, len(edges) + 1) / np.maximum(count, 1)
    return Targets(edges, values, largest_remainder(_tilt(count, values, moments.mean), n))


def _tilt(share: Floats, values: Floats, mean: float) -> Floats:
    """Return the distribution closest in relative entropy to the shares that has the given mean."""
    spread = float(np.ptp(values))
    if not spread:
        return share
    at = (values - values.min()) / spread
    scaled_mean = float(np.clip((mean - values.min()) / spread, 0.02, 0.98))
    # bisection of the exponential tilt, whose mean is monotone
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        weight = share * np.exp(middle * (at - 0.5))
        low, high = (middle, high) if weight @ at < scaled_mean * weight.sum() else (low, middle)
    return share * np.exp(low * (at - 0.5))


def _victims_in(evidence: BoostingObservations, n_local: int) -> int:
    """Return the number of victims' rows: declared, or the sum of hessians, which are 1."""
    rows = evidence.row_counts.n_rows
    if evidence.row_counts.sizes is not None:
        return sum(evidence.row_counts.sizes)
    if rows is None:
        sums = leaf_sums(evidence, evidence.first_own) if evidence.trees else None
        if sums is None:
            return evidence.row_counts.most_rows or 0
        rows = round(float(sums[1].sum()) / evidence.share)
    return max(rows - (n_local if evidence.observed.own_inside else 0), 0)


def place_targets(
    boxes: FeatureBoxes,
    evidence: BoostingObservations,
    sums: LeafSums | None = None,
    n: NDArray[np.int64] | None = None,
) -> None:
    """Assign a likely target cell to every row, in place.

    Parameters
    ----------
    boxes : FeatureBoxes
        Rows whose last feature is the target.
    evidence : BoostingObservations
        Cells of the targets.
    sums : LeafSums, optional
        Sums of the first tree. The targets of the rows of a leaf get the mean that follows from
        them.
    n : int64 array, shape (J,), optional
        Number of rows in each leaf of the first tree. Rows are ordered by leaf. The targets of all
        remaining rows have the overall distribution.
    """
    targets = evidence.targets
    assert targets is not None
    each, parts = np.arange(len(targets.values)), []
    if n is not None and sums is not None and sums.g is not None:
        means = np.ravel(evidence.base_margin)[0] - sums.g / np.maximum(n, 1)
        for mean, size in zip(means.tolist(), n.tolist(), strict=True):
            shares = _tilt(targets.sizes + 1e-9, targets.values, mean)
            parts.append(np.repeat(each, largest_remainder(shares, size)))
    rest = len(boxes.y) - sum(map(len, parts))
    parts.append(np.repeat(each, largest_remainder(targets.sizes.astype(np.float64), rest)))
    cell = np.concatenate(parts)
    boxes.lo[:, -1], boxes.hi[:, -1] = cell, cell + 1
    boxes.history = boxes.history * len(each) + cell
