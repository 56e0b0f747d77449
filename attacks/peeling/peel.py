"""Peel rows off histograms until nothing more can be told for sure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.candidates import Candidates, complete
from fedtrees.attacks.peeling.fingerprints import Entries, group, singles, within
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual, accept
from fedtrees.attacks.peeling.tracks import follow

Floats = NDArray[np.float64]

MOST_ROUNDS = 60
# Elementary steps of about 20 nanoseconds: bins looked at, sums and rows tried. About a minute.
MOST_WORK = 3e9
# Rows in doubt are taken out only once nothing else is left to find: a wrong one may lead to more.
LEAST_CONFIDENCE = 0.9
# Share of right rows among those with 0, 1, and 2 or more features in doubt, measured on 1,800
# tables made to mislead (8 to 130 rows, coarse values, copies, missing values; 1 to 15 trees of
# depth 1 to 5): 0 of 14,300 were wrong, 28 of 1,700, 1 in 5. The last are below `LEAST_CONFIDENCE`.
_RIGHT = np.array([0.999, 0.98, 0.75])


@dataclass(frozen=True, eq=False)
class Peeled:
    """Rows read off the histograms."""

    bins: Ints  # int32 (m, d): -1 where missing
    y: NDArray[np.int64]  # int64 (m,)
    confidence: Floats  # float64 (m,): probability that a row is right in every bin and the label
    rejected: int  # Complete rows that the histograms had no room for
    work: float  # Elementary steps taken
    finished: bool  # False where the bound on work ended the search


def peel(
    forest: BinnedForest,
    left: Residual,
    most_work: float = MOST_WORK,
    least_confidence: float = LEAST_CONFIDENCE,
) -> Peeled:
    """Read off rows and take them out of ``left``, in place, until nothing more is found.

    ``most_work`` bounds elementary steps, so that large tables give a partial result in bounded
    time; rows below ``least_confidence`` are left where they are.
    """
    d = len(forest.offsets) - 1
    feature_of = np.repeat(np.arange(d), np.diff(forest.offsets))
    feature_of = np.concatenate([feature_of, np.arange(d)]).astype(np.int32)
    parts = [(np.zeros((0, d), np.int32), np.zeros(0, np.int64), np.zeros(0))]
    rejected, work, tried, moved = 0, 0.0, 0, True
    known, weight = Entries.empty(0), 2 if left.sampled or left.slack.any() else 1
    for _ in range(MOST_ROUNDS):
        entries = Entries.join([_still(known, left), singles(left)])
        seen = group(entries, feature_of, left.slack)
        tracks = follow(forest, left, seen, feature_of)
        found = complete(forest, left, seen, tracks, feature_of)
        tried, rejected = tried + found.tried, rejected + found.rejected
        # a row may owe its place to those taken out before, and is no more certain than they are
        sure = confidence_of(weight * found.doubts, found.checks, tried)
        sure = np.minimum(sure, min((p[2].min(initial=1.0) for p in parts), default=1.0))
        now = _due(found, sure >= least_confidence, sure, 0 if moved else d)
        if left.sampled:
            good = _new(found.bins[now], found.y[now], parts)
        else:
            good = accept(forest, left, found.bins[now], found.y[now])
        parts.append((found.bins[now][good], found.y[now][good], sure[now][good]))
        work += left.alone.size + (len(seen) + 1.0) * len(feature_of)
        work += found.tried * forest.trees * d
        if work >= most_work or not (moved or good.any()):
            break
        more, sums_tried = within(left, seen, tracks.masks[tracks.of], feature_of, most_work - work)
        work += sums_tried
        before, known = len(known), Entries.join([entries, more])
        moved = bool(good.any()) or len(known) > before
    bins, y, confidence = (np.concatenate(p) for p in zip(*parts, strict=True))
    return Peeled(bins, y, confidence, rejected, work, work < most_work)


def confidence_of(doubts: Ints, checks: Floats, tried: int) -> Floats:
    """Return the probability that rows are right, float64, shape (m,).

    `doubts`: int32 array, shape (m,). Features that may belong to another person (see
    `fedtrees.attacks.peeling.doubts`). Where sums are off, or rows in some of the trees only, one
    counts as two: bins that have no room may seem to.
    `checks`: float64 array, shape (m,). Log odds of the row's gradients showing by chance wherever
    a bin holds nothing else.
    `tried`: Rows tried so far, each of which might have passed by chance.
    """
    by_chance = tried * np.exp(np.asarray(checks, dtype=np.float64))
    result: Floats = _RIGHT[np.minimum(doubts, len(_RIGHT) - 1)] / (1.0 + by_chance)
    return result


def _new(
    bins: Ints, y: NDArray[np.int64], before: Sequence[tuple[Ints, NDArray[np.int64], Floats]]
) -> NDArray[np.bool_]:
    """Tell which rows were not found before, each once, bool (m,).

    Which trees a sampled row is in is not known, so that it is taken out of none; of equal rows
    one is told.
    """
    known = {(*b.tolist(), c) for old, label, _ in before for b, c in zip(old, label, strict=True)}
    good = np.zeros(len(y), dtype=bool)
    for i, row in enumerate(zip(bins, y, strict=True)):
        name = (*row[0].tolist(), row[1])
        good[i] = name not in known
        known.add(name)
    return good


def _due(
    found: Candidates, able: NDArray[np.bool_], sure: Floats, most_doubts: int
) -> NDArray[np.intp]:
    """Return the rows to take out now: the least doubtful, as each makes others less doubtful."""
    able = able & (found.doubts <= most_doubts)
    least = found.doubts[able].min() if able.any() else 0
    chosen = np.flatnonzero(able & (found.doubts == least))
    chosen = chosen[np.argsort(-sure[chosen], kind="stable")]
    return np.repeat(chosen, found.copies[chosen])


def _still(entries: Entries, left: Residual) -> Entries:
    """Return the entries whose bin still has room for them."""
    rest = left.sums[entries.cell, entries.column]
    g, h = (rest[:, s] - v * entries.copies for s, v in enumerate((entries.g, entries.h)))
    near = 2 * left.slack[entries.cell]
    return entries.where((h > near) | ((np.abs(h) <= near) & (np.abs(g) <= near)))
