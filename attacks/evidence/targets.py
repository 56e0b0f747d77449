"""What is known of numeric targets before rows are sought: their mean, spread, and cells."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedtrees.attacks.evidence.boosted import Evidence, Targets
from fedtrees.attacks.evidence.boxes import Boxes
from fedtrees.attacks.evidence.counts import share_out
from fedtrees.attacks.evidence.routing import at_tree
from fedtrees.attacks.evidence.sums import LeafSums, leaf_sums
from fedtrees.core.guess import Claim, Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View
from fedtrees.guessing.targets import narrow, wide, widened
from fedtrees.messages.boosting import LabelSums

Floats = NDArray[np.float64]

#: Cells that targets are told apart by: a middle one of 12 is about 0.25 standard deviations wide,
#: which a guess within 0.319 of them has right.
CELLS = 12
#: Targets that stand for those of rows of whom no targets are known.
DRAWN = 240
#: Variance of targets over what the leaves of the first tree tell apart, where nothing else tells.
UNEXPLAINED = 2.0


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of targets, None where not told."""

    mean: float | None = None
    deviation: float | None = None

    @property
    def range(self) -> tuple[float, float] | None:
        """Where nearly all targets are."""
        if self.mean is None or self.deviation is None:
            return None
        return self.mean - 2 * self.deviation, self.mean + 2 * self.deviation


def told_moments(view: View) -> Moments:
    """Return what the sums of targets that start boosting tell of others' rows."""
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
    evidence: Evidence, own: Table, schema: Schema, told: Moments, inside: int | None = None
) -> tuple[Evidence, Table, Schema]:
    """Return evidence with cells of the victims' targets, and own rows with theirs as a column.

    The rows of `Evidence.population` in the returned evidence have that column, too.

    `schema`: Returned, too, with that column.
    `told`: What else is known of the victims' targets.
    `inside`: How many of the rows are none of the victims'; default: all own ones.
    """
    moments = moments_of(evidence, own, told)
    n = _victims_in(evidence, len(own) if inside is None else inside)
    targets = targets_of(moments, evidence.prior_rows(own).y.astype(np.float64), n)
    likely = None if evidence.population is None else wide(evidence.population)
    evidence = replace(evidence, targets=targets, sizes=(n, 0), population=likely)
    return evidence, wide(own), widened(schema, moments.range)


def narrowed(guess: Guess) -> Guess:
    """Return a guess of rows whose last column is the target, as one of rows that have targets."""

    def one(claim: Claim) -> Claim:
        if isinstance(claim, LeafCounts):
            return replace(claim, counts=claim.counts.sum(axis=1, keepdims=True))
        return Records(narrow(claim.table)) if isinstance(claim, Records) else claim

    return replace(guess, claims=tuple(map(one, guess.claims)))


def moments_of(evidence: Evidence, rows: Table, told: Moments) -> Moments:
    """Return the most that is known of the victims' targets.

    `evidence`: Its leaf sums are of own rows, too, if ``own_inside``.
    `rows`: Own rows. Without any, the deviation is that of the rows of the population.
    `told`: Of the victims, from elsewhere.
    """
    own, first = rows.y.astype(np.float64), evidence.first_own
    likely = evidence.prior_rows(rows)
    base = float(np.ravel(evidence.base_margin)[0])
    if first and len(likely):  # by what others' trees add to rows of the prior
        base = float(at_tree(evidence, likely.X, first)[1].mean())
    mean, deviation, exact = told.mean, told.deviation, evidence.noise is None
    if deviation is None and len(likely) > 1:
        deviation = float(likely.y.astype(np.float64).std())
    sums = leaf_sums(evidence, first) if evidence.trees else None
    if mean is None:
        mean = base
        if sums is not None and exact and sums[1].sum() >= 1:
            mean = base - float(sums[0].sum() / sums[1].sum())
        n = evidence.n_rows or 0
        if evidence.own_inside and len(own) and n > len(own):
            mean = (n * mean - float(own.sum())) / (n - len(own))
    if deviation is None and sums is not None:
        g, h = sums
        some = h > 0
        between = float((g[some] ** 2 / h[some]).sum() / max(h[some].sum(), 1))
        deviation = np.sqrt(UNEXPLAINED * between)
    elif deviation is None and evidence.trees:
        tree = evidence.trees[first]
        values = tree.value[tree.leaves] / evidence.learning_rate
        deviation = np.sqrt(UNEXPLAINED) * float(values.std())
    return Moments(mean, float(deviation or 0.0))


def targets_of(moments: Moments, own: Floats, n: int) -> Targets:
    """Return cells of n victims' targets: own rows' distribution, tilted to the mean, or a normal.

    `moments`: Of the victims, both known.
    `own`: float64 array, shape (r,).
    """
    assert moments.mean is not None
    assert moments.deviation is not None
    known = own
    if len(own) < 2:
        known = moments.mean + moments.deviation * ndtri((np.arange(DRAWN) + 0.5) / DRAWN)
    known = np.sort(known.astype(np.float32))
    cuts = np.quantile(known, np.arange(1, CELLS) / CELLS, method="nearest")
    edges = np.unique(cuts[cuts > known[0]]).astype(np.float32)
    cell = np.searchsorted(edges, known, side="right")
    count = np.bincount(cell, minlength=len(edges) + 1).astype(np.float64)
    values = np.bincount(cell, known, len(edges) + 1) / np.maximum(count, 1)
    return Targets(edges, values, share_out(_tilted(count, values, moments.mean), n))


def _tilted(share: Floats, values: Floats, mean: float) -> Floats:
    """Return the shares nearest to these (in relative entropy) whose mean is given."""
    spread = float(np.ptp(values))
    if not spread:
        return share
    at = (values - values.min()) / spread
    wanted = float(np.clip((mean - values.min()) / spread, 0.02, 0.98))
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        weight = share * np.exp(middle * (at - 0.5))
        low, high = (middle, high) if weight @ at < wanted * weight.sum() else (low, middle)
    return share * np.exp(low * (at - 0.5))


def _victims_in(evidence: Evidence, own: int) -> int:
    """Return how many victims' rows there are: as declared, or as hessians of 1 have it."""
    rows = evidence.n_rows
    if evidence.sizes is not None:
        return sum(evidence.sizes)
    if rows is None:
        sums = leaf_sums(evidence, evidence.first_own) if evidence.trees else None
        if sums is None:
            return evidence.most_rows or 0
        rows = round(float(sums[1].sum()) / evidence.share)
    return max(rows - (own if evidence.own_inside else 0), 0)


def place_targets(
    boxes: Boxes,
    evidence: Evidence,
    sums: LeafSums | None = None,
    n: NDArray[np.int64] | None = None,
) -> None:
    """Give every row a likely cell of its target, in place.

    ``n``, int64 (J,), are the rows in each leaf of the first tree, one leaf after the other: their
    targets are such that the leaf's ``sums`` have their mean. Those of other rows are as all are.
    """
    targets = evidence.targets
    assert targets is not None
    each, parts = np.arange(len(targets.values)), []
    if n is not None and sums is not None and sums.g is not None:
        means = np.ravel(evidence.base_margin)[0] - sums.g / np.maximum(n, 1)
        for mean, size in zip(means.tolist(), n.tolist(), strict=True):
            shares = _tilted(targets.sizes + 1e-9, targets.values, mean)
            parts.append(np.repeat(each, share_out(shares, size)))
    rest = len(boxes.y) - sum(map(len, parts))
    parts.append(np.repeat(each, share_out(targets.sizes.astype(np.float64), rest)))
    cell = np.concatenate(parts)
    boxes.lo[:, -1], boxes.hi[:, -1] = cell, cell + 1
    boxes.history = boxes.history * len(each) + cell
