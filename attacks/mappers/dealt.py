"""Distribute the class counts of bins among workers if only sums over several workers are known."""

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
    """Fill in unknown class counts of workers from the sum over all workers.

    The total minus the counts of the principals and of the workers with known counts belongs to the
    remaining workers. If there is one such worker, its counts are exact. If the sketches contain
    the rows of each worker in a bin, the classes are distributed in proportion to these, which is
    the mode of the multivariate hypergeometric distribution. Otherwise they are distributed in
    proportion to the class counts of the workers.

    Parameters
    ----------
    view : View
        Provides cut points, sketches, and the rows of the principals.
    told : mapping of str to int64 array, shape (b, 2)
        Class counts in every bin of each other worker, -1 if unknown.
    whole : int64 array, shape (b, 2)
        Class counts of all workers including the principals, -1 if unknown.
    classes : mapping of str to int64 array, shape (2,)
        Number of rows of each class of each other worker.

    Returns
    -------
    counts : dict of str to int64 array, shape (b, 2)
        Copies of `told` with fewer unknown counts.
    """
    cuts = cuts_of(view)
    if cuts is None or cuts.total_bins != len(whole):
        return dict(told)
    local_counts = np.zeros_like(whole) if view.rows is None else _counted(view.rows, cuts)
    names = [*told]
    counts = np.stack([told[name] for name in names])
    rows = _sketched(view, names, cuts)
    shares = np.stack([classes.get(name, np.ones(2)) for name in names])
    remaining = whole - local_counts - np.where(counts < 0, 0, counts).sum(axis=0)
    # Only bins with a known and consistent total can be filled in.
    open_bins = (
        (whole >= 0).all(axis=1) & (remaining >= 0).all(axis=1) & (counts < 0).any(axis=(0, 2))
    )
    for b in np.flatnonzero(open_bins).tolist():
        unknown = np.flatnonzero(counts[:, b, 0] < 0)
        # Sketches are used only if they agree with the remaining total of the bin.
        if rows is not None and rows[unknown, b].sum() == remaining[b].sum():
            ones = share_out(rows[unknown, b].astype(np.float64), int(remaining[b, 1]))
            ones = np.minimum(ones, rows[unknown, b])
            counts[unknown, b] = np.stack([rows[unknown, b] - ones, ones], axis=1)
        else:
            dealt_out = [
                share_out(shares[unknown, k].astype(float), int(remaining[b, k])) for k in (0, 1)
            ]
            counts[unknown, b] = np.stack(dealt_out, axis=1)
    return dict(zip(names, counts, strict=True))


def _counted(rows: Table, cuts: Cuts) -> Longs:
    """Return the class counts of rows in every bin, int64, shape (b, 2)."""
    bins = bin_rows(rows.X, cuts)
    row, column = np.nonzero(bins.codes != bins.missing)
    at = (bins.offsets[column] + bins.codes[row, column]) * 2 + rows.y[row]
    return np.bincount(at, minlength=2 * cuts.total_bins).reshape(-1, 2)


def _sketched(view: View, names: list[str], cuts: Cuts) -> Longs | None:
    """Return the rows of workers in every bin, int64, shape (m, b).

    The result is None unless the exact values of all workers are known from sketches.
    """
    columns = columns_of(view)
    if any(name not in columns or not all(c.exact for c in columns[name]) for name in names):
        return None
    counts = np.zeros((len(names), cuts.total_bins), np.int64)
    for rows, name in zip(counts, names, strict=True):
        n_values = max(len(c.values) for c in columns[name])
        X = np.full((n_values, cuts.n_features), np.nan, np.float32)
        for f, c in enumerate(columns[name]):
            X[: len(c.values), f] = c.values
        codes = bin_rows(X, cuts).codes
        for f, c in enumerate(columns[name]):
            np.add.at(rows, cuts.offsets[f] + codes[: len(c.values), f].astype(int), c.counts)
    return counts
