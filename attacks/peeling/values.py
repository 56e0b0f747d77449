"""Bins as values, and values as bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import Ints
from fedtrees.core.schema import Schema
from fedtrees.trees.binning import Cuts

Floats = NDArray[np.float64]


def to_bins(cuts: Cuts, X: NDArray[np.float32]) -> Ints:
    """Return the bin of every value, int32, shape (n, d); -1 where it is missing."""
    out = np.empty(X.shape, dtype=np.int32)
    for f in range(X.shape[1]):
        out[:, f] = np.searchsorted(cuts.of(f), X[:, f], side="right")
    out = np.minimum(out, cuts.n_bins - 1, dtype=np.int32)
    out[np.isnan(X)] = -1
    return out


def ranges_of(schema: Schema, own: NDArray[np.float32], cuts: Cuts) -> tuple[Floats, Floats]:
    """Return a lowest and a highest value per feature: declared, of own rows, or from the cuts."""
    low, high = np.empty(cuts.n_features), np.empty(cuts.n_features)
    for f, feature in enumerate(schema.features):
        present = own[~np.isnan(own[:, f]), f].astype(np.float64)
        upper = cuts.of(f).astype(np.float64)
        low[f] = feature.low if feature.low is not None else min([upper[0], *present])
        high[f] = (
            feature.high if feature.high is not None else max([*upper[-2:-1], *present, low[f]])
        )
        if feature.kind == "categorical":
            low[f] = 0.0
    return low, high


def values_in(
    cuts: Cuts,
    schema: Schema,
    bins: Ints,
    own: NDArray[np.float32],
    low: Floats,
    high: Floats,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return a value inside every bin (-1: missing): an own value if there is one, else its middle.

    ``low`` and ``high``, float64 (d,), stand in for open ends; ``rng`` chooses among own values.
    """
    out = np.empty(bins.shape, dtype=np.float32)
    own_bins = to_bins(cuts, own)
    for f in range(bins.shape[1]):
        upper = cuts.of(f).astype(np.float64)
        lower = np.concatenate([[-np.inf], upper[:-1]])
        middle = _middle(lower, upper, low[f], high[f])
        if schema.categorical[f]:
            middle = np.ceil(np.where(np.isfinite(lower), lower, low[f]))
        out[:, f] = np.where(bins[:, f] < 0, np.nan, middle[bins[:, f]])
        u = rng.random(len(bins))
        known = np.flatnonzero(own_bins[:, f] >= 0)
        order = known[np.argsort(own_bins[known, f], kind="stable")]
        first = np.searchsorted(own_bins[order, f], bins[:, f], side="left")
        last = np.searchsorted(own_bins[order, f], bins[:, f], side="right")
        has = (last > first) & (bins[:, f] >= 0)
        pick = order[(first + u * (last - first)).astype(np.int64)[has]] if has.any() else order[:0]
        out[has, f] = own[pick, f]
    return out


def _middle(lower: Floats, upper: Floats, low: float, high: float) -> Floats:
    """Return the middle of each bin, the range standing in for open ends."""
    width = float(np.diff(upper[:2])[0]) if len(upper) > 1 else 0.0
    first = low if low < upper[0] else upper[0] - width
    a = np.where(np.isfinite(lower), lower, first)
    b = upper.copy()
    b[-1] = min(b[-1], max(high, a[-1]))  # the last cut lies above every value by construction
    # never on the upper edge, which belongs to the next bin
    below = np.nextafter(upper.astype(np.float32), np.float32(-np.inf))
    return np.minimum((a + b) / 2, below)
