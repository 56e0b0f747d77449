"""Convert bins to values, and values to bins."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column
from fedtrees.attacks.evidence.prior import pooled_range
from fedtrees.attacks.peeling.rows import Ints
from fedtrees.core.schema import Schema
from fedtrees.core.view import View
from fedtrees.guessing.tolerance import SIGMA_SHARE
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


def told_values(
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
