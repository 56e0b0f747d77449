"""Convert slots to rows: every row takes one piece of its slot."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.evidence.boxes import FeatureBoxes
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.lattice.paths import Paths

Longs = NDArray[np.int64]

UNLIKELY = 50.0  # nats: cost of a first leaf and label that no piece of the slot has


def rows_of(paths: Paths, first: Counts) -> tuple[FeatureBoxes, Longs]:
    """Assign the rows of all slots to pieces so that the counts of the first tree are correct.

    If a slot has several pieces, the most probable assignment with these counts is chosen for all
    slots together (a linear assignment problem).

    Returns
    -------
    boxes : FeatureBoxes
        Boxes of the n rows. Rows with equal boxes and labels have the same ``history``.
    place : int64 array, shape (n,)
        Number of the pair (leaf of the first tree, label) of each row.
    """
    row_slot = np.repeat(np.arange(len(paths.size)), paths.size)
    place = paths.leaf[:, 0].astype(np.int64) * 2 + paths.label
    n_places = 2 * len(first.n0)
    place_sizes = np.stack([first.n0, first.n1], axis=1).reshape(-1)
    row_place = np.empty(len(row_slot), dtype=np.int64)
    # Slots rarely span several margins after the first tree, so that the problem splits into small
    # blocks.
    for slots, places in _blocks(paths.slot, place, n_places):
        rows = np.flatnonzero(np.isin(row_slot, slots))
        ends = np.repeat(places, place_sizes[places])
        weight = np.zeros((len(paths.size), n_places))
        np.add.at(weight, (paths.slot, place), paths.weight / paths.size[paths.slot])
        share = weight[np.ix_(row_slot[rows], ends)]
        cost = np.where(share > 0, -np.log(np.maximum(share, 1e-300)), UNLIKELY)
        chosen, end = linear_sum_assignment(cost)
        row_place[rows[chosen]] = ends[end]
    piece = _pieces(paths, row_slot, row_place, place)
    box = np.column_stack(
        [paths.lo[piece], paths.hi[piece], paths.label[piece], paths.codes[piece].view(np.int64)]
    )
    _, history = np.unique(box, axis=0, return_inverse=True)
    boxes = FeatureBoxes(
        paths.lo[piece], paths.hi[piece], paths.label[piece], paths.margin[piece, -1].copy(),
        history.reshape(-1).astype(np.int64),
    )  # fmt: skip
    boxes.codes = paths.codes[piece]
    return boxes, row_place


def _blocks(slot: Longs, place: Longs, n_places: int) -> list[tuple[Longs, Longs]]:
    """Return the connected components of slots and places, connected by pieces."""
    name = np.arange(n_places)
    changed = True
    while changed:
        least = np.full(int(slot.max(initial=-1)) + 1, n_places)
        np.minimum.at(least, slot, name[place])
        new = name.copy()
        np.minimum.at(new, place, least[slot])
        changed = bool((new != name).any())
        name = new
    return [
        (np.unique(slot[name[place] == b]), np.unique(place[name[place] == b]))
        for b in np.unique(name[place])
    ]


def _pieces(paths: Paths, row_slot: Longs, row_place: Longs, place: Longs) -> Longs:
    """Return a piece per row: the heaviest of its slot and place.

    The weight of the chosen piece is then reduced by one row. If the slot has no piece of the
    place, all its pieces are considered.
    """
    weight = paths.weight.copy()
    order = np.argsort(paths.slot, kind="stable")
    start = np.searchsorted(paths.slot[order], row_slot)
    stop = start + np.bincount(paths.slot, minlength=len(paths.size))[row_slot]
    out = np.empty(len(row_slot), dtype=np.int64)
    for i, row_target in enumerate(row_place):
        slot_pieces = order[start[i] : stop[i]]
        right = slot_pieces[place[slot_pieces] == row_target]
        slot_pieces = right if len(right) else slot_pieces
        out[i] = slot_pieces[weight[slot_pieces].argmax()]
        weight[out[i]] -= 1.0
    return out
