"""Follow one person from tree to tree by the margin, and test the possible rows.

A row in a node above two leaves has one of two margins in the next tree. A fingerprint there with
this margin and the same label is the same person, except with a probability of one in thousands.
The leaf then shows on which side of the split its value is. The possible values of a person are
those that are possible in every tree in which it was seen: in each feature, the bins of its nodes
that have room for its gradient. The rows that a track leaves possible are tested against the
histograms of all trees. `doubts` decides whether a row that passes all tests may be a mixture of
two persons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.fingerprints import Sightings
from fedtrees.attacks.peeling.rows import (
    BLOCK,
    CUT,
    DEFAULT_LEFT,
    FEATURE,
    LEFT,
    RIGHT,
    SET,
    BinnedForest,
    Ints,
    Residual,
    Sums,
    fits,
    goes_left,
    has_room,
    log_chance,
)
from fedtrees.core.compilation import inner_kernel, kernel

CHANCE = 1e-3  # probability that any of the rows is shown by accident


def doubts(forest: BinnedForest, left: Residual, bins: Ints, cell: Ints, gh: Sums) -> Ints:
    """Count the features of rows that may belong to another person, int32, shape (m,).

    Two persons with the same path up to a tree have the same fingerprint there, so that a row may
    be a mixture of both. But if a row's fingerprint is the only content of a bin, a person has it,
    and took the row's path in all trees before. Let t be the last such tree. This person's bins are
    among those which leave the path up to t unchanged and have room for the row up to t. (Under
    noise, the content may be another row. Then t is the last tree from which on so many bins show
    it that they cannot all be accidental.)

    A feature is doubtful if this is true of other bins than the row's, with one exception: in some
    tree its bin contains exactly this fingerprint, and some feature shows that the node has no
    other row with this fingerprint, because only one bin has room for it, and only for one.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Remaining sums.
    bins : int32 array, shape (m, d)
        Rows.
    cell : int32 array, shape (m, T)
        Their cells.
    gh : int64 array, shape (m, T, 2)
        Their gradients.
    """
    count = np.empty(len(bins), dtype=np.int32)
    needed = math.log(CHANCE / max(1, len(bins)))
    arrays = (left.sums, left.alone, left.slack, needed, bins, cell, gh, forest.columns(bins))
    _doubts(*arrays, forest.start, forest.nodes, forest.sets, forest.cell, forest.offsets, count)
    return count


@inner_kernel
def _only(sums, slack, c, k, g, h):  # type: ignore[no-untyped-def]
    """Return whether a bin contains this row and nothing else."""
    return abs(sums[c, k, 1] - h) <= 2 * slack[c] and abs(sums[c, k, 0] - g) <= 2 * slack[c]


@inner_kernel
def _one_of_a_kind(sums, single, slack, c, f, k, g, h, offsets):  # type: ignore[no-untyped-def]
    """Return whether only bin k of feature f, which contains only this row, has room for it."""
    missing = offsets[offsets.shape[0] - 1] + f
    for b in range(offsets[f], offsets[f + 1]):
        if b != k and fits(sums, single, slack, c, b, g, h):
            return False
    return missing == k or not fits(sums, single, slack, c, missing, g, h)


@inner_kernel
def _settle(sums, single, slack, needed, cell, columns, gh, offsets, i, is_proven):  # type: ignore[no-untyped-def]
    """Mark the features of row i that a node proves to belong to one person.

    The result is the last tree from which on bins with exactly this row cannot all be accidental,
    at log odds of ``needed`` (nats). It is -1 if there is none.
    """
    last, seen = -1, 0.0
    for f in range(columns.shape[1]):
        is_proven[f] = False
    for t in range(cell.shape[1] - 1, -1, -1):
        c, g, h = cell[i, t], gh[i, t, 0], gh[i, t, 1]
        alone_here, unique = False, False
        for f in range(columns.shape[1]):
            k = np.int64(columns[i, f])
            if c >= 0 and not unique and _only(sums, slack, c, k, g, h):
                alone_here = True
                unique = _one_of_a_kind(sums, single, slack, c, f, k, g, h, offsets)
        if alone_here:
            seen += log_chance(slack[c])
            if seen <= needed and last < 0:
                last = t
        if unique and seen <= needed:
            for f in range(columns.shape[1]):
                is_proven[f] = is_proven[f] or _only(sums, slack, c, np.int64(columns[i, f]), g, h)
    return last


@inner_kernel
def _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut):  # type: ignore[no-untyped-def]
    """Find the bins with which row i takes the same path: ``low`` to ``high``, unless ``shut``.

    In tree ``last`` the path ends at cell ``stop``, where the histogram was seen.
    """
    total = offsets[offsets.shape[0] - 1]
    for f in range(low.shape[0]):
        low[f], high[f] = 0, offsets[f + 1] - offsets[f] - 1
    for k in range(shut.shape[0]):
        shut[k] = False
    for t in range(last + 1):
        node = start[t]
        while nodes[node, FEATURE] >= 0 and not (t == last and cells[node] == stop):
            f = nodes[node, FEATURE]
            left = goes_left(nodes, sets, node, bins[i, f])
            if nodes[node, SET] >= 0:
                for b in range(offsets[f + 1] - offsets[f]):
                    k = offsets[f] + b
                    shut[k] = shut[k] or sets[nodes[node, SET], b] == left
            elif left:
                high[f] = min(high[f], nodes[node, CUT])
            else:
                low[f] = max(low[f], nodes[node, CUT] + 1)
            if (nodes[node, DEFAULT_LEFT] == 1) != left:
                shut[total + f] = True
            node = nodes[node, LEFT if left else RIGHT]


@inner_kernel
def _passes(sums, single, slack, cell, i, last, k, gh):  # type: ignore[no-untyped-def]
    """Return whether column k has room for row i in every tree up to the last."""
    for t in range(last + 1):
        c = cell[i, t]
        if c >= 0 and not fits(sums, single, slack, c, k, gh[i, t, 0], gh[i, t, 1]):
            return False
    return True


@kernel
def _doubts(  # type: ignore[no-untyped-def]
    sums, single, slack, needed, bins, cell, gh, columns, start, nodes, sets, cells, offsets, count
):
    d = bins.shape[1]
    total = offsets[d]
    low, high = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    is_proven, shut = np.empty(d, dtype=np.bool_), np.empty(sums.shape[1], dtype=np.bool_)
    for i in range(bins.shape[0]):
        last = _settle(sums, single, slack, needed, cell, columns, gh, offsets, i, is_proven)
        stop = cell[i, max(last, 0)]
        _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut)
        n = 0
        for f in range(d):
            is_doubtful = is_proven[f]
            # missing values come before the first bin here
            for b in range(low[f] - 1, high[f] + 1):
                k = total + f if b < low[f] else offsets[f] + b
                if not is_doubtful and k != columns[i, f] and not shut[k]:
                    is_doubtful = _passes(sums, single, slack, cell, i, last, k, gh)
            n += is_doubtful and not is_proven[f]
        count[i] = n


@dataclass(frozen=True, eq=False)
class Tracks:
    """Sightings of the same person in consecutive trees.

    Attributes
    ----------
    of : int32 array, shape (s,)
        Track of each sighting.
    masks : bool array, shape (tracks, total_bins + d)
        Possible columns of each track.
    """

    of: Ints  # int32 (s,)
    masks: NDArray[np.bool_]  # bool (tracks, total_bins + d)


def follow(forest: BinnedForest, left: Residual, seen: Sightings, feature_of: Ints) -> Tracks:
    """Link sightings over trees and determine the possible columns of each track.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Remaining sums.
    seen : Sightings
        Fingerprints.
    feature_of : int32 array
        Feature of every column.
    """
    nxt, side = _links(forest, seen)
    of, masks = np.empty(len(seen), np.int32), np.ones((len(seen), left.sums.shape[1]), bool)
    node = forest.node_of[seen.cell]
    first = np.ones(len(seen), dtype=bool)
    first[nxt[nxt >= 0]] = False
    fingerprints = (seen.cell, seen.g, seen.h, seen.columns, node)
    trees = (forest.nodes, forest.sets, forest.offsets, feature_of)
    residual = (left.sums, left.alone, left.slack)
    n = _narrow(residual, fingerprints, (nxt, side, first), trees, of, masks)
    return Tracks(of, masks[:n])


def _links(forest: BinnedForest, seen: Sightings) -> tuple[Ints, NDArray[np.int8]]:
    """Return each sighting's successor in the next tree, -1 if none, and its side of the split.

    The side is 0 for left, 1 for right, and -1 if it is unknown or the node is a leaf.
    """
    nxt = np.full(len(seen), -1, dtype=np.int32)
    side = np.full(len(seen), -1, dtype=np.int8)
    tree = forest.tree_of[seen.cell]
    node = forest.node_of[seen.cell]
    leaf = forest.nodes[node, FEATURE] < 0
    kids = np.stack([np.where(leaf, node, forest.nodes[node, LEFT]), forest.nodes[node, RIGHT]])
    value = np.where(kids >= 0, forest.value[kids], np.nan).astype(np.float64)
    label = seen.g < 0
    for t in range(forest.trees - 1):
        for y in (False, True):
            a = np.flatnonzero((tree == t) & (label == y))
            b = np.flatnonzero((tree == t + 1) & (label == y))
            if not len(a) or not len(b):
                continue
            b = b[np.argsort(seen.margin[b], kind="stable")]
            margins, widest = seen.margin[b], float(np.quantile(seen.error[b], 0.9))
            hit, count = np.zeros((2, len(a)), np.int64), np.zeros((2, len(a)), np.int64)
            for s in (0, 1):
                m = seen.margin[a] + value[s][a]
                reach = seen.error[a] + widest
                lo = np.searchsorted(margins, m - reach)
                count[s] = np.searchsorted(margins, m + reach, side="right") - lo
                count[s][np.isnan(m)] = 0
                hit[s] = lo
            one = np.flatnonzero(count.sum(axis=0) == 1)
            s = count[:, one].argmax(axis=0)
            target = b[hit[s, one]]
            once = np.bincount(target, minlength=len(seen))[target] == 1
            one, s, target = one[once], s[once], target[once]
            agree = (seen.columns[a[one]] == seen.columns[target]) | (
                np.minimum(seen.columns[a[one]], seen.columns[target]) < 0
            )
            agree = agree.all(axis=1) & (seen.copies[a[one]] == seen.copies[target])
            nxt[a[one[agree]]] = target[agree]
            side[a[one[agree]]] = np.where(leaf[a[one[agree]]], -1, s[agree])
    return nxt, side


@kernel
def _narrow(residual, seen, links, trees, of, masks):  # type: ignore[no-untyped-def]
    sums, alone, slack = residual
    cell, g, h, columns, node = seen
    nxt, side, first = links
    nodes, sets, offsets, feature_of = trees
    d, width = columns.shape[1], sums.shape[1]
    trial, wide = np.empty(width, dtype=np.bool_), 2 * slack
    alive = np.empty(d, dtype=np.bool_)
    n = 0
    for i in range(cell.shape[0]):
        if not first[i]:
            continue
        k, track = np.int64(i), np.int64(-1)
        while k >= 0:
            for _ in range(2):
                for f in range(d):
                    alive[f] = False
                for b in range(width):
                    f = feature_of[b]
                    ok = (track < 0 or masks[track, b]) and fits(
                        sums, alone, wide, cell[k], b, g[k], h[k]
                    )
                    if columns[k, f] >= 0:
                        ok = ok and columns[k, f] == b
                    if ok and side[k] >= 0 and nodes[node[k], FEATURE] == f:
                        code = np.int32(-1 if b >= offsets[d] else b - offsets[f])
                        ok = goes_left(nodes, sets, node[k], code) == (side[k] == 0)
                    trial[b] = ok
                    alive[f] = alive[f] or ok
                possible = True
                for f in range(d):
                    possible = possible and alive[f]
                if possible or track < 0:
                    break
                track = np.int64(-1)  # another person from here on
            if track < 0:
                track = np.int64(n)
                n += 1
            of[k] = track
            for b in range(width):
                masks[track, b] = trial[b]
            k = np.int64(nxt[k])
    return n


MOST_CHOICES = 24  # rows tried for one track


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows that pass all tests, if they are the only ones of their track.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 if missing.
    y : int64 array, shape (m,)
        Classes.
    copies : int32 array, shape (m,)
        Number of rows with the same fingerprint.
    doubts : int32 array, shape (m,)
    checks : float64 array, shape (m,)
        As in `confidence_of`.
    tried : int
        Number of tested rows.
    rejected : int
        Number of tracks without a row that passed.
    """

    bins: Ints  # int32 (m, d): -1 where missing
    y: NDArray[np.int64]  # int64 (m,)
    copies: Ints  # int32 (m,)
    # int32 (m,), float64 (m,)
    doubts: Ints
    checks: NDArray[np.float64]
    tried: int
    rejected: int


def complete(
    forest: BinnedForest, left: Residual, seen: Sightings, tracks: Tracks, feature_of: Ints
) -> Candidates:
    """Test all rows of the tracks that leave few of them.

    A row passes if it reaches every node in which it was seen with exactly this fingerprint, and if
    all histograms of all trees have room for it. With subsampling, the histograms of one tree that
    shows it suffice.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Remaining sums.
    seen : Sightings
        Fingerprints.
    tracks : Tracks
        Their division into persons.
    feature_of : int32 array
        Feature of every column.
    """
    columns, track = _choices(tracks.masks, feature_of)
    inside = columns < forest.offsets[-1]
    bins = np.where(inside, columns - forest.offsets[:-1], -1).astype(np.int32)
    label = np.zeros(len(tracks.masks), dtype=np.int64)
    copies = np.ones(len(tracks.masks), dtype=np.int32)
    label[tracks.of], copies[tracks.of] = seen.g < 0, seen.copies
    order = np.argsort(tracks.of, kind="stable")
    start = np.searchsorted(tracks.of[order], np.arange(len(tracks.masks) + 1))
    sighted = seen.where(order)
    tree = forest.tree_of[sighted.cell]
    passed, checks = np.zeros(len(bins), bool), np.zeros(len(bins))
    doubtful = np.zeros(len(bins), np.int32)
    for a in range(0, len(bins), BLOCK):
        part = slice(a, a + BLOCK)
        cell, margin = forest.route(bins[part])
        gh = forest.gradients(margin, label[track[part]])
        good = np.ones(len(cell), dtype=bool)
        seen_there = (sighted.cell, sighted.g, sighted.h, tree)
        _match(track[part], start, *seen_there, cell, gh, 2 * left.slack, good)
        some = np.flatnonzero(good)
        if left.sampled:
            tested = _in_one_tree(forest, left, bins[part][some], cell[some], gh[some])
            good[some], checks[part][some], doubtful[part][some] = tested
        else:
            room = has_room(left, cell[some], columns[part][some], gh[some])
            good[some], checks[part][some] = room
            some = np.flatnonzero(good)
            doubtful[part][some] = doubts(forest, left, bins[part][some], cell[some], gh[some])
        passed[part] = good
    of_track = np.bincount(track[passed], minlength=len(tracks.masks))
    ok = passed & (of_track[track] == 1)
    tracks_tried = np.bincount(track, minlength=len(tracks.masks)) > 0
    return Candidates(
        bins[ok],
        label[track[ok]],
        copies[track[ok]],
        doubtful[ok],
        checks[ok],
        len(bins),
        int((tracks_tried & (of_track == 0)).sum()),
    )


def _in_one_tree(
    forest: BinnedForest, left: Residual, bins: Ints, cell: Ints, gh: Sums
) -> tuple[NDArray[np.bool_], NDArray[np.float64], Ints]:
    """Test rows in each tree separately, as if no other tree had histograms.

    Single rows in two trees may be two persons on the same path, each in one of the trees. Each
    single tree shows one person. The results are which rows a tree shows and has room for, the log
    odds of all these observations by chance, and the smallest number of doubtful features in such a
    tree.
    """
    columns, shape = forest.columns(bins), len(bins)
    good, checks = np.zeros(shape, dtype=bool), np.zeros(shape)
    least = np.full(shape, bins.shape[1], dtype=np.int32)
    for t in range(forest.trees):
        one = np.full_like(cell, -1)
        one[:, t] = cell[:, t]
        room, log_odds = has_room(left, one, columns, gh)
        rows = np.flatnonzero(room & (log_odds < 0))
        checks[rows] += log_odds[rows]
        good[rows] = True
        in_doubt = doubts(forest, left, bins[rows], one[rows], gh[rows])
        least[rows] = np.minimum(least[rows], in_doubt)
    return good, checks, least


def _choices(masks: NDArray[np.bool_], feature_of: Ints) -> tuple[Ints, NDArray[np.int64]]:
    """Return all rows of tracks with at most `MOST_CHOICES`: columns (m, d) and track."""
    d = int(feature_of.max()) + 1
    count = np.ones(len(masks), dtype=np.int64)
    for f in range(d):
        of_feature = masks[:, feature_of == f].sum(axis=1)
        count = np.minimum(count * of_feature, MOST_CHOICES + 1)
    count[count > MOST_CHOICES] = 0
    columns = np.empty((int(count.sum()), d), dtype=np.int32)
    _list_choices(masks, feature_of, count, columns)
    return columns, np.repeat(np.arange(len(masks)), count)


@kernel
def _list_choices(masks, feature_of, count, columns):  # type: ignore[no-untyped-def]
    d = columns.shape[1]
    allowed = np.empty((d, MOST_CHOICES), dtype=np.int32)
    per = np.empty(d, dtype=np.int64)
    row = 0
    for k in range(masks.shape[0]):
        if count[k] == 0:
            continue
        for f in range(d):
            per[f] = 0
        for b in range(masks.shape[1]):
            if masks[k, b]:
                f = feature_of[b]
                allowed[f, per[f]] = b
                per[f] += 1
        for n in range(count[k]):
            for f in range(d):
                columns[row, f] = allowed[f, n % per[f]]
                n //= per[f]
            row += 1


@kernel
def _match(track, start, seen_cell, seen_g, seen_h, tree, cell, gh, near, good):  # type: ignore[no-untyped-def]
    for i in range(track.shape[0]):
        for s in range(start[track[i]], start[track[i] + 1]):
            t = tree[s]
            if (
                cell[i, t] != seen_cell[s]
                or abs(gh[i, t, 0] - seen_g[s]) > near[cell[i, t]]
                or abs(gh[i, t, 1] - seen_h[s]) > near[cell[i, t]]
            ):
                good[i] = False
                break
