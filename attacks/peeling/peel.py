"""Remove rows from histograms repeatedly, until no further row is certain."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.fingerprints import Entries, group, singles, within
from fedtrees.attacks.peeling.row_trajectories import Candidates, complete, follow
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, ReadRows, Residual, accept

Floats = NDArray[np.float64]

MOST_ROUNDS = 60
# Elementary steps of about 20 nanoseconds: bins, sums and rows that are tested. About a minute.
MOST_WORK = 3e9
# Doubtful rows are removed last, because a wrong one may lead to more.
LEAST_CONFIDENCE = 0.9
# Share of right rows among those with 0, 1, and 2 or more features in doubt, measured on 1,800
# tables made to mislead (8 to 130 rows, coarse values, copies, missing values, and 1 to 15 trees
# of depth 1 to 5): 0 of 14,300 were wrong, 28 of 1,700, and 1 in 5. The last are below
# `LEAST_CONFIDENCE`.
_RIGHT = np.array([0.999, 0.98, 0.75])


def peel(
    forest: BinnedForest,
    left: Residual,
    most_work: float = MOST_WORK,
    least_confidence: float = LEAST_CONFIDENCE,
) -> ReadRows:
    """Read rows and subtract them from ``left``, in place, until no more are found.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Sums that no known row explains.
    most_work : float
        Limit on elementary steps, so that large tables give a partial result in bounded time.
    least_confidence : float
        Rows with a smaller probability of being correct are not removed.
    """
    d = len(forest.offsets) - 1
    feature_of = np.repeat(np.arange(d), np.diff(forest.offsets))
    feature_of = np.concatenate([feature_of, np.arange(d)]).astype(np.int32)
    parts = [(np.zeros((0, d), np.int32), np.zeros(0, np.int64), np.zeros(0))]
    rejected, work, tried, moved = 0, 0.0, 0, True
    known_entries, weight = Entries.empty(0), 2 if left.sampled or left.slack.any() else 1
    for _ in range(MOST_ROUNDS):
        entries = Entries.join([_still(known_entries, left), singles(left)])
        seen = group(entries, feature_of, left.slack)
        tracks = follow(forest, left, seen, feature_of)
        candidates = complete(forest, left, seen, tracks, feature_of)
        tried, rejected = tried + candidates.tried, rejected + candidates.rejected
        # a row may only fit because of rows that were removed before, and is no more certain than
        # these
        sure = confidence_of(weight * candidates.doubts, candidates.checks, tried)
        sure = np.minimum(sure, min((p[2].min(initial=1.0) for p in parts), default=1.0))
        now = _due(candidates, sure >= least_confidence, sure, 0 if moved else d)
        if left.sampled:
            good = _new(candidates.bins[now], candidates.y[now], parts)
        else:
            good = accept(forest, left, candidates.bins[now], candidates.y[now])
        parts.append((candidates.bins[now][good], candidates.y[now][good], sure[now][good]))
        work += left.alone.size + (len(seen) + 1.0) * len(feature_of)
        work += candidates.tried * forest.trees * d
        if work >= most_work or not (moved or good.any()):
            break
        more, sums_tried = within(left, seen, tracks.masks[tracks.of], feature_of, most_work - work)
        work += sums_tried
        before, known_entries = len(known_entries), Entries.join([entries, more])
        moved = bool(good.any()) or len(known_entries) > before
    bins, y, confidence = (np.concatenate(p) for p in zip(*parts, strict=True))
    return ReadRows(bins, y, confidence, work, work < most_work, rejected)


def confidence_of(doubts: Ints, checks: Floats, tried: int) -> Floats:
    """Return the probability that rows are correct, float64, shape (m,).

    Parameters
    ----------
    doubts : int32 array, shape (m,)
        Number of features that may belong to another person
        (`fedtrees.attacks.peeling.row_trajectories`). With inexact sums or subsampling, one counts
        twice, because bins may only seem to have no room.
    checks : float64 array, shape (m,)
        Log odds that the row's gradients appear by accident in all bins that contain nothing else.
    tried : int
        Number of rows tested so far, each of which could have passed by accident.
    """
    by_chance = tried * np.exp(np.asarray(checks, dtype=np.float64))
    result: Floats = _RIGHT[np.minimum(doubts, len(_RIGHT) - 1)] / (1.0 + by_chance)
    return result


def _new(
    bins: Ints, y: NDArray[np.int64], before: Sequence[tuple[Ints, NDArray[np.int64], Floats]]
) -> NDArray[np.bool_]:
    """Return which rows were not found before, each once, bool (m,).

    The trees that contain a subsampled row are unknown, so that it is subtracted from none of them.
    Therefore only one of several equal rows is returned.
    """
    known_rows = {
        (*b.tolist(), c) for old, label, _ in before for b, c in zip(old, label, strict=True)
    }
    good = np.zeros(len(y), dtype=bool)
    for i, row in enumerate(zip(bins, y, strict=True)):
        name = (*row[0].tolist(), row[1])
        good[i] = name not in known_rows
        known_rows.add(name)
    return good


def _due(
    candidates: Candidates, able: NDArray[np.bool_], sure: Floats, most_doubts: int
) -> NDArray[np.intp]:
    """Return the rows to remove now: the least doubtful, because removal reduces other doubts."""
    able = able & (candidates.doubts <= most_doubts)
    least = candidates.doubts[able].min() if able.any() else 0
    chosen = np.flatnonzero(able & (candidates.doubts == least))
    chosen = chosen[np.argsort(-sure[chosen], kind="stable")]
    return np.repeat(chosen, candidates.copies[chosen])


def _still(entries: Entries, left: Residual) -> Entries:
    """Return the entries whose bin still has room for them."""
    rest = left.sums[entries.cell, entries.column]
    g, h = (rest[:, s] - v * entries.copies for s, v in enumerate((entries.g, entries.h)))
    near = 2 * left.slack[entries.cell]
    return entries.where((h > near) | ((np.abs(h) <= near) & (np.abs(g) <= near)))
