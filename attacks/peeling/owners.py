"""Whose rows are those of a sum? Everybody's columns tell, bin by bin."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column
from fedtrees.attacks.evidence.rows_held import owners_rows
from fedtrees.attacks.peeling.rows import Ints
from fedtrees.attacks.peeling.values import bins_of
from fedtrees.trees.binning import Cuts

Longs = NDArray[np.int64]

MOST_ROUNDS = 100
ANY = 2**40  # room in the bins of a column that is not known exactly


def owners_of(
    bins: Ints, cuts: Cuts, columns: Mapping[str, Sequence[Column]], together: int
) -> Longs:
    """Return the likeliest owner of every row, as a position among the owners, int64, shape (m,).

    A row can be an owner's if all its bins hold values of that owner. One that can be nobody
    else's takes its place there, and leaves less room for others, again and again; where all rows
    are known, an owner's bin that as many rows can fill as there is room for is theirs. What is
    open then goes, row by row, to the owner with most room: by the product of shares over the bins.

    `bins`: int32 array, shape (m, d). -1 where missing.
    `together`: Rows that the owners have in all, 0 where that is not known.
    """
    m, d = bins.shape
    at = np.where(bins < 0, cuts.total_bins + np.arange(d), cuts.offsets[:-1] + bins)
    least = owners_rows(columns)
    spare = max(together - sum(least.values()), 0)  # rows that miss values of every full column
    room = np.stack(
        [room_of(cuts, c, n + spare) for c, n in zip(columns.values(), least.values(), strict=True)]
    )
    sizes = np.array(list(owners_rows(columns, together).values()))
    whole = spare == 0 and int(sizes.sum()) == m
    owner = np.full(m, -1, dtype=np.int64)
    for _ in range(MOST_ROUNDS):
        open_rows = np.flatnonzero(owner < 0)
        able = (room[:, at[open_rows]] > 0).all(axis=2)
        found = np.where(able.sum(axis=0) == 1, able.argmax(axis=0), -1)
        if whole:
            found = _only_ones(able, at[open_rows], room, found)
        now = found >= 0
        if not now.any():
            break
        owner[open_rows[now]] = found[now]
        np.subtract.at(room, (found[now, None], at[open_rows[now]]), 1)
        room = np.maximum(room, 0)
    for i in np.flatnonzero(owner < 0):
        owner[i] = _mostroom_of(room[:, at[i]], sizes)
        room[owner[i], at[i]] = np.maximum(room[owner[i], at[i]] - 1, 0)
    return owner


def room_of(cuts: Cuts, columns: Sequence[Column], n: int) -> Longs:
    """Return how many of an owner's n rows are in every bin, missing ones last, (bins + d,)."""
    room = np.zeros(cuts.total_bins + len(columns), dtype=np.int64)
    for f, column in enumerate(columns):
        part = slice(int(cuts.offsets[f]), int(cuts.offsets[f + 1]))
        if not column.exact:
            room[part] = room[cuts.total_bins + f] = ANY
            continue
        room[cuts.total_bins + f] = n - column.present
        code = bins_of(cuts, f, column.values)
        np.add.at(room, part.start + code, column.counts)
    return room


def _mostroom_of(room: Longs, sizes: Longs) -> int:
    """Return the owner with most room for a row, by the product of shares over its bins (k, d).

    Factor by factor, so that the result is the same on every machine.
    """
    likely = np.ones(len(sizes))
    for bin_room in room.T:
        likely = likely * (np.maximum(bin_room, 1e-3) / np.maximum(sizes, 1))
        likely = likely / likely.max()
    return int(likely.argmax())


def _only_ones(able: NDArray[np.bool_], at: Longs, room: Longs, found: Longs) -> Longs:
    """Give an owner the rows that alone can fill one of its bins; ``found`` of others stays."""
    for k in range(len(room)):
        wanted = np.zeros(room.shape[1], dtype=np.int64)
        mine = able[k] & ((found < 0) | (found == k))
        np.add.at(wanted, at[mine], 1)
        full = (room[k] > 0) & (wanted == room[k])
        found = np.where(mine & full[at].any(axis=1) & (found < 0), k, found)
    return found
