"""From slots of rows to rows: each takes one of its slot's pieces."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.evidence.boxes import Boxes
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.lattice.paths import Paths

Longs = NDArray[np.int64]

UNLIKELY = 50.0  # nats: cost of a first leaf and label that no piece of the slot has


def rows_of(paths: Paths, first: Counts) -> tuple[Boxes, Longs]:
    """Return the rows, and a number for every pair of first leaf and label, int64, shape (n,).

    They are as many per such pair as the first tree's counts say: where a slot has several
    pieces, the likeliest are taken under that condition, slots all at once. ``history`` tells
    rows apart that are in different boxes or have different labels.
    """
    row_slot = np.repeat(np.arange(len(paths.size)), paths.size)
    place = paths.leaf[:, 0].astype(np.int64) * 2 + paths.label
    n_places = 2 * len(first.n0)
    wanted = np.stack([first.n0, first.n1], axis=1).reshape(-1)
    row_place = np.empty(len(row_slot), dtype=np.int64)
    # pieces of one first margin, as a rule: slots do not reach beyond
    for slots, places in _blocks(paths.slot, place, n_places):
        rows = np.flatnonzero(np.isin(row_slot, slots))
        ends = np.repeat(places, wanted[places])
        weight = np.zeros((len(paths.size), n_places))
        np.add.at(weight, (paths.slot, place), paths.weight / paths.size[paths.slot])
        share = weight[np.ix_(row_slot[rows], ends)]
        cost = np.where(share > 0, -np.log(np.maximum(share, 1e-300)), UNLIKELY)
        mine, end = linear_sum_assignment(cost)
        row_place[rows[mine]] = ends[end]
    piece = _pieces(paths, row_slot, row_place, place)
    box = np.column_stack(
        [paths.lo[piece], paths.hi[piece], paths.label[piece], paths.codes[piece].view(np.int64)]
    )
    _, history = np.unique(box, axis=0, return_inverse=True)
    boxes = Boxes(
        paths.lo[piece], paths.hi[piece], paths.label[piece], paths.margin[piece, -1].copy(),
        history.reshape(-1).astype(np.int64),
    )  # fmt: skip
    boxes.codes = paths.codes[piece]
    return boxes, row_place


def _blocks(slot: Longs, place: Longs, n_places: int) -> list[tuple[Longs, Longs]]:
    """Return slots and places that pieces connect, block by block."""
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
    """Return a piece per row: the heaviest of its slot and place, which then weighs a row less."""
    weight = paths.weight.copy()
    order = np.argsort(paths.slot, kind="stable")
    start = np.searchsorted(paths.slot[order], row_slot)
    stop = start + np.bincount(paths.slot, minlength=len(paths.size))[row_slot]
    out = np.empty(len(row_slot), dtype=np.int64)
    for i, wanted in enumerate(row_place):
        mine = order[start[i] : stop[i]]
        right = mine[place[mine] == wanted]
        mine = right if len(right) else mine
        out[i] = mine[weight[mine].argmax()]
        weight[out[i]] -= 1.0
    return out
