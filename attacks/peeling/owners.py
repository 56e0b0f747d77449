"""Determine the owners of rows from a sum, using the marginals of every client."""

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
ANY = 2**40  # room in the bins of a column that is only approximately known


def owners_of(
    bins: Ints, cuts: Cuts, columns: Mapping[str, Sequence[Column]], together: int
) -> Longs:
    """Return the most probable owner of every row, as an index, int64, shape (m,).

    An owner is possible if it has values in all bins of the row. A row with one possible owner is
    assigned and reduces the owner's room for other rows, repeatedly. If all rows are known, rows
    are also assigned if a bin of an owner has room for exactly all its possible rows. The remaining
    rows are assigned one by one to the owner with most room, by the product of shares over the
    bins.

    Parameters
    ----------
    bins : int32 array, shape (m, d)
        Rows, -1 if missing.
    cuts : Cuts
        Bins of the features.
    columns : mapping of str to sequence of Column
        Marginals of each owner.
    together : int
        Number of rows of all owners, 0 if unknown.
    """
    m, d = bins.shape
    at = np.where(bins < 0, cuts.total_bins + np.arange(d), cuts.offsets[:-1] + bins)
    least = owners_rows(columns)
    spare = max(together - sum(least.values()), 0)  # rows that miss values of every full column
    room = np.stack(
        [room_of(cuts, c, n + spare) for c, n in zip(columns.values(), least.values(), strict=True)]
    )
    sizes = np.array(list(owners_rows(columns, together).values()))
    is_complete = spare == 0 and int(sizes.sum()) == m
    owner = np.full(m, -1, dtype=np.int64)
    for _ in range(MOST_ROUNDS):
        open_rows = np.flatnonzero(owner < 0)
        able = (room[:, at[open_rows]] > 0).all(axis=2)
        assigned = np.where(able.sum(axis=0) == 1, able.argmax(axis=0), -1)
        if is_complete:
            assigned = _only_ones(able, at[open_rows], room, assigned)
        now = assigned >= 0
        if not now.any():
            break
        owner[open_rows[now]] = assigned[now]
        np.subtract.at(room, (assigned[now, None], at[open_rows[now]]), 1)
        room = np.maximum(room, 0)
    for i in np.flatnonzero(owner < 0):
        owner[i] = _mostroom_of(room[:, at[i]], sizes)
        room[owner[i], at[i]] = np.maximum(room[owner[i], at[i]] - 1, 0)
    return owner


def room_of(cuts: Cuts, columns: Sequence[Column], n: int) -> Longs:
    """Return the number of an owner's n rows in every bin, missing ones last, (bins + d,).

    Parameters
    ----------
    cuts : Cuts
        Bins of the features.
    columns : sequence of Column
        Marginals of the owner.
    n : int
        Number of rows of the owner.
    """
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

    The product is computed factor by factor, so that the result is the same on every machine.
    """
    likely = np.ones(len(sizes))
    for bin_room in room.T:
        likely = likely * (np.maximum(bin_room, 1e-3) / np.maximum(sizes, 1))
        likely = likely / likely.max()
    return int(likely.argmax())


def _only_ones(able: NDArray[np.bool_], at: Longs, room: Longs, assigned: Longs) -> Longs:
    """Assign rows to an owner if they are the only ones that can fill one of its bins.

    ``assigned`` is not changed for other rows.
    """
    for k in range(len(room)):
        n_possible = np.zeros(room.shape[1], dtype=np.int64)
        is_possible = able[k] & ((assigned < 0) | (assigned == k))
        np.add.at(n_possible, at[is_possible], 1)
        full = (room[k] > 0) & (n_possible == room[k])
        assigned = np.where(is_possible & full[at].any(axis=1) & (assigned < 0), k, assigned)
    return assigned
