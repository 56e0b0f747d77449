"""The victims' columns as sketches or sums on a grid tell them, and rows with these columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Feature, Table
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore
from fedtrees.messages.cuts import FeatureRanges, FeatureSketch, GridCounts, GridRequest
from fedtrees.trees.grid import count_cells
from fedtrees.trees.sketch import POINTS_PER_BIN

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

MOST_LIKELY_ROWS = 2000  # attacks compare every row with every such row in every tree


@dataclass(frozen=True, eq=False)
class Column:
    """What is known of the present values of one column of one owner, or of several."""

    values: Floats  # float32 (k,): values that are there, ascending
    counts: Longs  # int64 (k,): rows they stand for
    # Whether these are all values, each as often as it says; else counts stand for what lies
    # between, too, but the outermost values are there
    exact: bool

    @property
    def present(self) -> int:
        """Number of rows whose value is not missing."""
        return int(self.counts.sum())

    def spread(self, m: int) -> Floats:
        """Return m values, ascending, at even ranks and both ends; at most those present."""
        at = np.arange(m) * (self.present - 1) // max(m - 1, 1)
        every: Floats = np.repeat(self.values, self.counts)[at]
        return every


def columns_in(rows: Table) -> tuple[Column, ...]:
    """Return the columns of some rows."""
    found = (np.unique(c[~np.isnan(c)], return_counts=True) for c in rows.X.T)
    return tuple(Column(values, counts, False) for values, counts in found)


def nearest(X: Floats, values: Floats) -> Floats:
    """Return the nearest of some ascending values to each of X, float32, shape (n,); NaN stays."""
    if not len(values):
        return X
    above = np.clip(np.searchsorted(values, X), 1, max(len(values) - 1, 1))
    low, high = values[above - 1], values[np.minimum(above, len(values) - 1)]
    near: Floats = np.where(X - low <= high - X, low, high)
    return np.where(np.isnan(X), X, near)


def columns_of(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim whose sketch is seen, by owner.

    Where a defense changes sketches, values are what it made of them: nothing is exact.
    """
    altered = any(issubclass(FeatureSketch, p.guards) for p in view.defense.parts)
    # rows held out for early stopping are in no sketch
    some = bool(view.parameters.get("early_stopping_rounds"))
    size = POINTS_PER_BIN * int(view.parameters.get("max_bin", 0))
    found: dict[str, tuple[Column, ...]] = {}
    for item, sketch in view.messages(FeatureSketch):
        owner = sketch.owner or item.sender
        if owner not in view.principals and owner not in found:
            whole = not (altered or some)
            found[owner] = tuple(_column(sketch, f, size, whole) for f in range(len(sketch.low)))
    return found


def _column(sketch: FeatureSketch, f: int, size: int, whole: bool) -> Column:
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    values, counts = sketch.points[part], sketch.weights[part]
    below = len(values) > 0 and sketch.low[f] < values[0]
    exact = whole and not below and holds_all_values(counts, size)
    if below:  # the first point stands for the smallest value, too
        values = np.concatenate([sketch.low[f : f + 1], values])
        counts = np.concatenate([[1], counts[:1] - 1, counts[1:]])
        values, counts = values[counts > 0], counts[counts > 0]
    return Column(values, counts, exact)


def holds_all_values(counts: Longs, size: int) -> bool:
    """Tell whether a summary of at most ``size`` points must be of all values, from its weights.

    Columns of more values are cut into ``size`` groups of equal size, each told by its last value
    (`fedtrees.trees.sketch.local_sketch`). So between two points a group ends, and what is not
    told lies before that end: too little for more than ``size`` values, or no end there at all,
    and the summary is no such one.
    """
    n = int(counts.sum())
    if n <= size:
        return True
    reached = np.cumsum(counts)
    before = reached - counts
    ends = np.linspace(0, n, size + 1).astype(np.int64)[1:]
    first = ends[np.minimum(np.searchsorted(ends, before, side="right"), size - 1)]
    return bool((first > reached).any() or (first - before).sum() <= size)


def ranges_of_owners(view: View) -> dict[str, FeatureRanges]:
    """Return the extremes that every victim told, by owner."""
    return {
        item.sender: m
        for item, m in view.messages(FeatureRanges)
        if item.sender not in view.principals
    }


def pooled(view: View) -> tuple[Column, ...] | None:
    """Return the columns of all victims together.

    None unless every victim's sketch is seen, or the sum of everybody's counts on a grid.
    """
    if not all_sketched(view):
        return _on_grid(view)
    return tuple(_together(parts) for parts in zip(*columns_of(view).values(), strict=True))


def all_sketched(view: View) -> bool:
    """Tell whether the sketches of all victims are seen."""
    clients = {name for name, role in view.roles.items() if role == "client"}
    found = {m.owner or item.sender for item, m in view.messages(FeatureSketch)}
    return bool(found) and found - set(view.principals) == clients - set(view.principals)


def _on_grid(view: View) -> tuple[Column, ...] | None:
    """Return the columns that the last sum of counts on a grid tells, less own rows.

    A cell's rows have the value in it that is written with the fewest decimal places.
    """
    laid = [m for _, m in view.messages(GridRequest)]
    opened = [m for item, m in view.messages(GridCounts) if item.opened]
    if not laid or not opened:
        return None
    borders = np.split(laid[-1].borders, laid[-1].offsets[1:-1])
    own = Table.empty(view.schema) if view.rows is None else view.rows
    counts = np.maximum(opened[-1].counts - count_cells(own.X, borders), 0)
    sizes = [len(inner) + 1 if len(inner) else 0 for inner in borders]
    parts = zip(view.schema.features, borders, np.split(counts, np.cumsum(sizes)[:-1]), strict=True)
    n = victims_rows(view)
    return tuple(
        _in_cells(b.astype(np.float64), c, feature) if len(b) else _unknown(feature, n)
        for feature, b, c in parts
    )


def _in_cells(borders: NDArray[np.float64], counts: Longs, feature: Feature) -> Column:
    gap = [float(np.diff(b).sum()) for b in (borders[:2], borders[-2:])]
    low = borders[0] - gap[0] if feature.low is None else feature.low
    high = borders[-1] + gap[1] if feature.high is None else feature.high
    ends = np.concatenate([[min(low, borders[0])], borders, [max(high, borders[-1])]])
    there = counts > 0
    values, group = np.unique(shortest(ends[:-1], ends[1:])[there], return_inverse=True)
    return Column(values, np.bincount(group, counts[there]).astype(np.int64), False)


def _unknown(feature: Feature, n: int) -> Column:
    """Return n values of a feature that is not counted: every category alike, or the lowest."""
    values = np.arange(max(len(feature.categories), 1), dtype=np.float32)
    if not feature.categories and feature.low is not None:
        values[0] = feature.low
    each = np.diff(np.arange(len(values) + 1) * n // len(values))
    return Column(values[each > 0], each[each > 0], False)


def shortest(low: NDArray[np.float64], high: NDArray[np.float64]) -> Floats:
    """Return the number with the fewest decimal places that is at least low and below high.

    Of several, the middle one; float32, shape (k,).
    """
    out = (low + high) / 2
    for places in range(7, -1, -1):
        first, last = np.ceil(low * 10.0**places), np.ceil(high * 10.0**places) - 1
        out = np.where(first <= last, np.floor((first + last) / 2) / 10.0**places, out)
    return out.astype(np.float32)


def _together(parts: Sequence[Column]) -> Column:
    values, group = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, group, np.concatenate([p.counts for p in parts]))
    return Column(values, counts, all(p.exact for p in parts))


def rows_with(
    columns: Sequence[Column], of: int, own: Table, y: Longs, rng: np.random.Generator
) -> Table:
    """Return rows of these labels whose columns are the victims', and depend as own rows do.

    Own rows of each label are drawn with replacement; in every column the drawn rows keep their
    order (equal values: any) and take the victims' values in that order (a copula, Nelsen 2006). No
    own rows: columns do not depend on one another.

    Parameters
    ----------
    columns : sequence of Column
    of : int
        Rows that these are the columns of.
    own : Table
    y : int64 array, shape (n,)
    rng : numpy.random.Generator
    """
    n = len(y)
    drawn = np.full((n, len(columns)), np.nan, dtype=np.float32)
    for label in np.unique(y) if len(own) else ():
        mine = np.flatnonzero(y == label)
        pool = np.flatnonzero(own.y == label)
        pool = pool if len(pool) else np.arange(len(own))
        drawn[mine] = own.X[rng.choice(pool, len(mine))]
    X = np.full((n, len(columns)), np.nan, dtype=np.float32)
    for f, column in enumerate(columns):
        m = min(round(column.present * n / max(of, 1)), n)
        order = rng.permutation(n)
        # own rows that miss the value come last: theirs are missing first
        told = order[np.argsort(np.isnan(drawn[order, f]), kind="stable")][:m]
        rank = drawn[told, f]
        gaps = np.isnan(rank)
        if gaps.any() and not gaps.all():
            rank[gaps] = rng.choice(rank[~gaps], int(gaps.sum()))
        X[told[np.argsort(rank, kind="stable")], f] = column.spread(m)
    return Table(X, y)


def likely_rows(view: View, rng: np.random.Generator) -> Table | None:
    """Return rows as the victims' may be, by `rows_with`; None unless every sketch is seen.

    They are as many as the victims' rows, but no more than own rows or `MOST_LIKELY_ROWS`.
    """
    columns = pooled(view)
    if columns is None or not view.schema.classes:
        return None
    own = Table.empty(view.schema) if view.rows is None else view.rows
    of = max(_rows(columns), victims_rows(view))
    n = min(of, max(len(own), MOST_LIKELY_ROWS))
    owner = np.zeros(n, dtype=np.int64)
    return rows_with(columns, of, own, labels_of(label_shares(view, own), owner, rng), rng)


def label_shares(view: View, own: Table) -> NDArray[np.float64]:
    """Return the victims' share of every class: by the base score, else as own rows.

    The base score, where it is not a fixed one, is the label mean of all rows.
    """
    classes = max(len(view.schema.classes), 2)
    mine = np.bincount(own.y, minlength=classes).astype(np.float64)
    told = [m for _, m in view.messages(BaseScore)]
    if told and view.parameters.get("base_score") is None:
        margin = told[0].margin.astype(np.float64)
        odds = np.array([1.0, np.exp(margin[0])]) if len(margin) == 1 else np.exp(margin)
        rest = np.maximum(view.n_rows * odds / odds.sum() - mine, 0.0)
        if rest.sum() > 0:
            return np.asarray(rest / rest.sum())
    return mine / mine.sum() if len(own) else np.full(classes, 1 / classes)


def labels_of(share: NDArray[np.float64], owner: Longs, rng: np.random.Generator) -> Longs:
    """Return labels of rows, the same share of every owner's as near as whole rows allow."""
    y = np.empty(len(owner), dtype=np.int64)
    for k in np.unique(owner):
        mine = np.flatnonzero(owner == k)
        ends = np.rint(np.cumsum(share) * len(mine)).astype(np.int64)
        y[rng.permutation(mine)] = np.searchsorted(ends, np.arange(len(mine)), side="right")
    return np.minimum(y, len(share) - 1)


def _rows(columns: Sequence[Column]) -> int:
    """Return how many rows there are at least."""
    return max((c.present for c in columns), default=0)


def victims_rows(view: View) -> int:
    """Return how many rows the victims have together, as declared, less those in no sketch.

    0 where that is not known: rows may be held out.
    """
    if view.parameters.get("early_stopping_rounds"):
        return 0
    return view.n_rows - (0 if view.rows is None else len(view.rows))


def owners_rows(columns: Mapping[str, Sequence[Column]], together: int = 0) -> dict[str, int]:
    """Return how many rows each owner may have: as its fullest column, and a share of the rest.

    ``together`` is how many they have in all, if known; each owner's share of the rest is as its
    share of what is told.
    """
    told = np.array([_rows(parts) for parts in columns.values()], dtype=np.int64)
    rest = max(together - int(told.sum()), 0) if told.sum() else 0
    more = np.diff(np.rint(rest * np.cumsum(told) / max(told.sum(), 1)), prepend=0.0)
    return dict(zip(columns, (told + more.astype(np.int64)).tolist(), strict=True))
