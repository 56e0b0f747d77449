"""Peel rows off histograms until nothing more can be told for sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.fingerprints import Entries, Sightings, group, singles, within
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual, accept, has_room, room
from fedtrees.attacks.peeling.tracks import Tracks, follow

MOST_ROUNDS = 40
MOST_CHOICES = 24  # rows tried for one track


@dataclass(frozen=True, eq=False)
class Peeled:
    """Rows read off the histograms.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 where missing.
    y : int64 array, shape (m,)
    confirmed : int64 array, shape (m,)
        Trees in which the row's fingerprint was seen.
    rejected : int
        Complete rows that the histograms had no room for.
    """

    bins: Ints
    y: NDArray[np.int64]
    confirmed: NDArray[np.int64]
    rejected: int


def peel(forest: BinnedForest, left: Residual, most: int) -> Peeled:
    d = len(forest.offsets) - 1
    feature_of = np.concatenate(
        [np.repeat(np.arange(d), np.diff(forest.offsets)), np.arange(d)]
    ).astype(np.int32)
    bins, y, seen_in = [np.zeros((0, d), np.int32)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    rejected = 0
    entries = None
    for r in range(MOST_ROUNDS):
        now = singles(left)
        if entries is not None:
            now = Entries.join([_still(entries, left), now])
        seen = group(now, feature_of, left.slack)
        tracks = follow(forest, left, seen, feature_of)
        b, labels, confirmed, bad = _decode(forest, left, seen, tracks, feature_of)
        rejected += bad
        good = accept(forest, left, b, labels)
        got = int(good.sum())
        most -= got
        bins.append(b[good]); y.append(labels[good]); seen_in.append(confirmed[good])
        more, used = within(left, seen, tracks.masks[tracks.of], feature_of, 1e8)
        print(r, "entries", len(now), "seen", len(seen), "tracks", len(tracks.masks), "cand", len(b), "got", got, "more", len(more), used)
        before = 0 if entries is None else len(entries)
        entries = Entries.join([now, more])
        if most <= 0 or (got == 0 and len(entries) <= before):
            break
    return Peeled(np.concatenate(bins), np.concatenate(y), np.concatenate(seen_in), rejected)


def _still(entries: Entries, left: Residual) -> Entries:
    rest = left.sums[entries.cell, entries.column]
    G, H = rest[:, 0] - entries.g * entries.copies, rest[:, 1] - entries.h * entries.copies
    near = 2 * left.slack
    ok = (H > near) | ((H >= -near) & (np.abs(G) <= near))
    return entries.where(ok)


def _decode(forest, left, seen: Sightings, tracks: Tracks, feature_of):
    d = len(forest.offsets) - 1
    counts = np.stack([tracks.masks[:, feature_of == f].sum(axis=1) for f in range(d)], axis=1)
    size = np.prod(np.minimum(counts, MOST_CHOICES + 1).astype(float), axis=1)
    rows, owner = [], []
    for k in np.flatnonzero((size <= MOST_CHOICES) & (size > 0)):
        options = [np.flatnonzero(tracks.masks[k] & (feature_of == f)) for f in range(d)]
        grid = np.stack(np.meshgrid(*options, indexing="ij"), axis=-1).reshape(-1, d)
        rows.append(grid)
        owner.append(np.full(len(grid), k))
    if not rows:
        return np.zeros((0, d), np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    columns, owner = np.concatenate(rows), np.concatenate(owner)
    total = forest.offsets[-1]
    bins = np.where(columns >= total, -1, columns - forest.offsets[:-1]).astype(np.int32)
    label = np.zeros(len(tracks.masks), np.int64)
    label[tracks.of] = seen.g < 0
    y = label[owner]
    cell, margin = forest.route(bins)
    gh = forest.gradients(margin, y)
    good = has_room(left, cell, forest.columns(bins), gh)
    # fingerprints
    tree = forest.tree_of[seen.cell]
    T = forest.trees
    want_cell = np.full((len(tracks.masks), T), -1, np.int32)
    want = np.zeros((len(tracks.masks), T, 2), np.int64)
    want_cell[tracks.of, tree] = seen.cell
    want[tracks.of, tree, 0] = seen.g
    want[tracks.of, tree, 1] = seen.h
    w = want_cell[owner]
    agree = (w == cell) & (np.abs(gh - want[owner]) <= 2 * left.slack).all(axis=2)
    confirmed = agree.sum(axis=1)
    good &= (agree | (w < 0)).all(axis=1) & (confirmed > 0)
    unique = np.bincount(owner[good], minlength=len(tracks.masks))[owner] == 1
    copies = np.ones(len(tracks.masks), np.int64)
    copies[tracks.of] = seen.copies
    take = good & unique
    bad = len(np.unique(owner)) - len(np.unique(owner[good]))
    idx = np.repeat(np.flatnonzero(take), copies[owner[take]])
    order = np.argsort(-confirmed[idx], kind="stable")
    idx = idx[order]
    return bins[idx], y[idx], confirmed[idx], bad
