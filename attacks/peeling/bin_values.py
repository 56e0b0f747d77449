"""Convert bins to values and values to bins, and find the owners of rows by clients' columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.columns import Column
from fedtrees.attacks.observations.rows_from_columns import owners_rows
from fedtrees.attacks.peeling.rows import Ints
from fedtrees.attacks.reconstruction.prior import pooled_range
from fedtrees.blind_baselines.rows import SIGMA_SHARE
from fedtrees.core.schema import Schema
from fedtrees.core.view import View
from fedtrees.messages.horizontal import CutsRequest
from fedtrees.trees.binning import Cuts
from fedtrees.trees.cut_points import LARGEST

Floats = NDArray[np.float64]


def bins_of(cuts: Cuts, f: int, values: NDArray[np.float32]) -> Ints:
    """Return the bin of every value of one feature, int32, shape (k,).

    Parameters
    ----------
    cuts : Cuts
        Bins of the features.
    f : int
        The feature.
    values : float32 array, shape (k,)
        Values.
    """
    code = np.searchsorted(cuts.of(f), values, side="right")
    return np.minimum(code, len(cuts.of(f)) - 1).astype(np.int32)


def to_bins(cuts: Cuts, X: NDArray[np.float32]) -> Ints:
    """Return the bin of every value, int32, shape (n, d), -1 if it is missing."""
    out = np.stack([bins_of(cuts, f, X[:, f]) for f in range(X.shape[1])], axis=1)
    out[np.isnan(X)] = -1
    return out


def ranges_of(schema: Schema, local_rows: NDArray[np.float32], cuts: Cuts) -> tuple[Floats, Floats]:
    """Return the lowest and the highest value of each feature.

    They are those that the outermost cuts imply, or else declared ones, or else those of the local
    rows or the cuts.

    Parameters
    ----------
    schema : Schema
        Declared ranges.
    local_rows : float32 array, shape (n, d)
        Values of local rows.
    cuts : Cuts
        Cut points.
    """
    low, high = np.empty(cuts.n_features), np.empty(cuts.n_features)
    for f, feature in enumerate(schema.features):
        present = local_rows[~np.isnan(local_rows[:, f]), f].astype(np.float64)
        upper = cuts.of(f).astype(np.float64)
        first = upper[:1] if upper[0] < LARGEST else np.zeros(1)
        low[f] = feature.low if feature.low is not None else min([*first, *present])
        high[f] = (
            feature.high if feature.high is not None else max([*upper[-2:-1], *present, low[f]])
        )
        if not feature.cuts:
            implied = pooled_range(cuts, f)
            low[f], high[f] = (
                t if t is not None else v for t, v in zip(implied, (low[f], high[f]), strict=True)
            )
        if feature.kind == "categorical":
            low[f] = 0.0
    return low, high


def lower_edges(cuts: Cuts, view: View) -> NDArray[np.bool_]:
    """Return the features whose cut points are their values, bool, shape (d,).

    Sketches of at most `max_bin` different values give a cut for each, so that a bin contains the
    value that is its lower edge.
    """
    of_sketches = any(m.method == "sketch" for _, m in view.messages(CutsRequest))
    few: NDArray[np.bool_] = cuts.n_bins < view.parameters.get("max_bin", 0)
    return few & of_sketches


def values_in(
    cuts: Cuts,
    schema: Schema,
    bins: Ints,
    local_rows: NDArray[np.float32],
    ranges: tuple[Floats, Floats],
    rng: np.random.Generator,
    edges: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Return a value inside every bin.

    It is a local value if there is one in the bin. Otherwise it is the middle of the bin, an
    integer in integer columns, or the lower edge.

    Parameters
    ----------
    cuts : Cuts
        Bins of the features.
    schema : Schema
        Types of the columns.
    bins : int32 array, shape (m, d)
        Bins, -1 if missing.
    local_rows : float32 array, shape (n, d)
        Values of local rows.
    ranges : tuple of float64 array, shape (d,) each
        Lowest and highest values, used for the outer bins.
    rng : numpy.random.Generator
        Choice among local values.
    edges : bool array, shape (d,), optional
        Features with values at the lower edges. None means none.
    """
    out = np.empty(bins.shape, dtype=np.float32)
    own_bins = to_bins(cuts, local_rows)
    for f in range(bins.shape[1]):
        upper = cuts.of(f).astype(np.float64)
        lower = np.concatenate([[-np.inf], upper[:-1]])
        present = local_rows[own_bins[:, f] >= 0, f]
        known_values = upper[:-1] if edges is not None and edges[f] else present
        is_integer = _is_integral(known_values, lower, upper, bins[:, f])
        first, middle = _middle(lower, upper, ranges[0][f], ranges[1][f], is_integer)
        if schema.categorical[f] or (edges is not None and edges[f]):
            middle = np.where(np.isfinite(lower), lower, first)
        if schema.categorical[f]:
            middle = np.ceil(np.where(np.isfinite(lower), lower, ranges[0][f]))
        out[:, f] = np.where(bins[:, f] < 0, np.nan, middle[bins[:, f]])
        u = rng.random(len(bins))
        present_rows = np.flatnonzero(own_bins[:, f] >= 0)
        order = present_rows[np.argsort(own_bins[present_rows, f], kind="stable")]
        first_own = np.searchsorted(own_bins[order, f], bins[:, f], side="left")
        last_own = np.searchsorted(own_bins[order, f], bins[:, f], side="right")
        has = (last_own > first_own) & (bins[:, f] >= 0)
        at = (first_own + u * (last_own - first_own)).astype(np.int64)
        pick = order[at[has]] if has.any() else order[:0]
        out[has, f] = local_rows[pick, f]
    return out


def _is_integral(known_values: NDArray[Any], lower: Floats, upper: Floats, bins: Ints) -> bool:
    """Return whether a column seems to contain only integers.

    This is the case if all known values are integers. Without known values, it is the case if rows
    are only in bins that contain an integer, and some other bin does not contain one.
    """
    if len(known_values):
        return bool((known_values % 1 == 0).all())
    has_one = np.ceil(lower) < upper  # the first bin is open below
    return bool(has_one[bins[bins >= 0]].all()) and not has_one.all()


def _middle(
    lower: Floats, upper: Floats, low: float, high: float, is_integer: bool
) -> tuple[float, Floats]:
    """Return the start of the first bin, and the middle of each bin.

    The range (`low`, `high`) closes the outer bins.
    """
    width = float(np.diff(upper[:2])[0]) if len(upper) > 1 else 0.0
    first = low if low < upper[0] else upper[0] - width
    a = np.where(np.isfinite(lower), lower, first)
    b = upper.copy()
    b[-1] = min(b[-1], max(high, a[-1]))  # the last cut is above every value by construction
    if is_integer:
        # ends that follow from the outermost cuts have rounding errors
        near = 1e-6 * max(1.0, abs(first), abs(float(b[-1])))
        one, last = np.ceil(np.where(np.isfinite(lower), lower, first - near)), np.ceil(upper) - 1
        last[-1] = np.floor(b[-1] + near)
        return first, np.where(one <= last, np.floor((one + last) / 2), (a + b) / 2)
    # never on the upper edge, which belongs to the next bin
    below = np.nextafter(upper.astype(np.float32), np.float32(-np.inf))
    return first, np.minimum((a + b) / 2, below)


def _deviation(values: Floats, counts: NDArray[np.int64]) -> float:
    """Return the standard deviation of values with counts, from exactly rounded sums."""
    n = int(counts.sum())
    mean = math.fsum(values * counts) / n
    return math.sqrt(math.fsum(counts * (values - mean) ** 2) / n)


def sketched_values(
    cuts: Cuts, bins: Ints, columns: Sequence[Column], categorical: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return the most probable value of an owner in every bin, float32, shape (m, d).

    It is NaN if the owner has no value in the bin. Of several values, the one with most of the
    bin's rows within the tolerance of the metric is used, then the most frequent one.

    Parameters
    ----------
    cuts : Cuts
        Bins of the features.
    bins : int32 array, shape (m, d)
        Bins.
    columns : sequence of Column
        Marginals of the owner.
    categorical : bool array, shape (d,)
        Categorical features, which have no tolerance.
    """
    out = np.full(bins.shape, np.nan, dtype=np.float32)
    for f, column in enumerate(columns):
        if not len(column.values):
            continue
        code = bins_of(cuts, f, column.values)
        value = column.values.astype(np.float64)
        width = 0.0 if categorical[f] else SIGMA_SHARE * _deviation(value, column.counts)
        first = np.maximum(
            np.searchsorted(value, value - width, side="left"), np.searchsorted(code, code, "left")
        )
        last = np.minimum(
            np.searchsorted(value, value + width, side="right"),
            np.searchsorted(code, code, "right"),
        )
        up_to = np.concatenate([[0], np.cumsum(column.counts)])
        order = np.lexsort((-column.counts, -(up_to[last] - up_to[first]), code))
        codes, at = np.unique(code[order], return_index=True)
        best = np.full(len(cuts.of(f)), np.nan, dtype=np.float32)
        best[codes] = column.values[order[at]]
        out[:, f] = np.where(bins[:, f] < 0, np.nan, best[bins[:, f]])
    return out


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
        able = np.asarray((room[:, at[open_rows]] > 0).all(axis=2))
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
