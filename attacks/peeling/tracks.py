"""Tracks: follow one person from tree to tree by the margin.

A row in a node above two leaves has one of two margins in the next tree. A fingerprint there with
this margin and the same label is the same person, except with a probability of one in thousands.
The leaf then shows on which side of the split its value is. The possible values of a person are
those that are possible in every tree in which it was seen: in each feature, the bins of its nodes
that have room for its gradient.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.fingerprints import Sightings
from fedtrees.attacks.peeling.rows import (
    FEATURE,
    LEFT,
    RIGHT,
    BinnedForest,
    Ints,
    Residual,
    fits,
    goes_left,
)
from fedtrees.core.compilation import kernel


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
