"""Class counts of bins where only sums over several are seen: dealt to whom they are likeliest."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.counts import share_out
from fedtrees.attacks.evidence.replay import cuts_of
from fedtrees.attacks.evidence.sketched import columns_of
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.trees.binning import Cuts, bin_rows

Longs = NDArray[np.int64]


def dealt(
    view: View, told: Mapping[str, Longs], whole: Longs, classes: Mapping[str, Longs]
) -> dict[str, Longs]:
    """Return class counts with what is not told filled in, where the sum over all is known.

    What all have without the principals and those told is the others': if it is one, all of it.
    Where sketches say how many rows each has in the bin, classes are dealt by these, which is the
    likeliest (a multivariate hypergeometric law), else by how many of a class each has at all.

    `told`: int64 array, shape (b, 2), of each of the others; -1: unknown.
    `whole`: int64 array, shape (b, 2). Of all, the principals included; -1: unknown.
    `classes`: int64 array, shape (2,). Rows of each class that each of the others has.
    """
    cuts = cuts_of(view)
    if cuts is None or cuts.total_bins != len(whole):
        return dict(told)
    own = np.zeros_like(whole) if view.rows is None else _counted(view.rows, cuts)
    names = [*told]
    found = np.stack([told[name] for name in names])
    rows = _sketched(view, names, cuts)
    shares = np.stack([classes.get(name, np.ones(2)) for name in names])
    left = whole - own - np.where(found < 0, 0, found).sum(axis=0)
    open_bins = (whole >= 0).all(axis=1) & (left >= 0).all(axis=1) & (found < 0).any(axis=(0, 2))
    for b in np.flatnonzero(open_bins).tolist():
        at = np.flatnonzero(found[:, b, 0] < 0)
        if rows is not None and rows[at, b].sum() == left[b].sum():
            ones = share_out(rows[at, b].astype(np.float64), int(left[b, 1]))
            ones = np.minimum(ones, rows[at, b])
            found[at, b] = np.stack([rows[at, b] - ones, ones], axis=1)
        else:
            dealt_out = [share_out(shares[at, k].astype(float), int(left[b, k])) for k in (0, 1)]
            found[at, b] = np.stack(dealt_out, axis=1)
    return dict(zip(names, found, strict=True))


def _counted(rows: Table, cuts: Cuts) -> Longs:
    """Return the class counts of rows in every bin, int64, shape (b, 2)."""
    bins = bin_rows(rows.X, cuts)
    row, column = np.nonzero(bins.codes != bins.missing)
    at = (bins.offsets[column] + bins.codes[row, column]) * 2 + rows.y[row]
    return np.bincount(at, minlength=2 * cuts.total_bins).reshape(-1, 2)


def _sketched(view: View, names: list[str], cuts: Cuts) -> Longs | None:
    """Return the rows of others in every bin, int64, shape (m, b), None if nobody tells all."""
    columns = columns_of(view)
    if any(name not in columns or not all(c.exact for c in columns[name]) for name in names):
        return None
    found = np.zeros((len(names), cuts.total_bins), np.int64)
    for rows, name in zip(found, names, strict=True):
        most = max(len(c.values) for c in columns[name])
        X = np.full((most, cuts.n_features), np.nan, np.float32)
        for f, c in enumerate(columns[name]):
            X[: len(c.values), f] = c.values
        codes = bin_rows(X, cuts).codes
        for f, c in enumerate(columns[name]):
            np.add.at(rows, cuts.offsets[f] + codes[: len(c.values), f].astype(int), c.counts)
    return found
