"""The victims' columns as sketches, or bins of additive models, tell them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.categories import likely_shares
from fedtrees.attacks.evidence.column import Column, reliability, shortest
from fedtrees.attacks.evidence.counts import share_out
from fedtrees.attacks.evidence.merged_shapes import ClientBins, parted
from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.view import View
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.captured import RankedSketch
from fedtrees.messages.cuts import FeatureRanges, FeatureSketch
from fedtrees.trees.lightgbm.midpoints import values_from
from fedtrees.trees.sketch import POINTS_PER_BIN

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


def columns_of(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim whose sketch is seen, by owner.

    Where a defense changes sketches, values are what it made of them: nothing is exact, and as
    reliable as the ranks are known of values that it draws. Of categories it draws numbers between
    their codes, and its law tells their shares.
    """
    altered = any(issubclass(FeatureSketch, p.guards) for p in view.defense.parts)
    changes = view.changes(FeatureSketch, "points", "client")
    noise = sum(c.rank_error**2 for c in changes if isinstance(c, Mechanism))
    likely = len(view.prior_rows or ())
    # rows held out for early stopping are in no sketch
    some = bool(view.parameters.get("early_stopping_rounds"))
    size = POINTS_PER_BIN * int(view.parameters.get("max_bin", 0))
    found: dict[str, tuple[Column, ...]] = {}
    for item, sketch in view.messages(FeatureSketch):
        owner = sketch.owner or item.sender
        if owner not in view.principals and owner not in found:
            whole = not (altered or some)
            known = sketch.whole if isinstance(sketch, RankedSketch) else None
            columns = (
                _column(sketch, f, size, whole, None if known is None else bool(known[f]))
                for f in range(len(sketch.low))
            )
            told = (replace(c, reliability=_of_ranks(c.present, likely, noise)) for c in columns)
            found[owner] = tuple(_categories(view, changes, f, c) for f, c in enumerate(told))
    exact = not view.changes(ClientShapes, "bin_weights", "client")
    for item, shapes in view.messages(ClientShapes):
        if item.sender not in view.principals and len(shapes.bag_weights):
            found[item.sender] = tuple(_between_cuts(shapes, view.schema, exact))
    if not found:
        found = _merged(view, not exact)
    order = [*view.roles, *found]  # not that in which they came: equals tell them in any
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _between_cuts(shapes: ClientShapes, schema: Schema, exact: bool) -> Iterator[Column]:
    """Yield columns by their bins: of the value in each, if it has one, else `_in_bins`.

    Cuts are midway between values: of as many as bins each follows from the one before, from the
    least on.
    """
    for f, bins in enumerate(shapes.bins):
        cuts, low, high = shapes.cuts_of(f), shapes.low[f], shapes.high[f]
        counts = np.rint(shapes.bin_weights[bins][1:-1]).astype(np.int64)
        alone = exact and bool(len(shapes.unique)) and shapes.unique[f] == len(counts)
        if len(followed := values_from(low, cuts) if alone else cuts[:0]):
            there = counts > 0
            yield Column(followed.astype(np.float32)[there], counts[there], True)
        else:
            yield _in_bins(np.concatenate([[low], cuts, [high]]), counts, schema.features[f])


def _in_bins(edges: Doubles, counts: Longs, feature: Feature) -> Column:
    """Return a column of several values a bin: the categories in it, else its `shortest` number."""
    values = shortest(edges[:-1], edges[1:])
    if feature.categories:
        values = np.arange(len(feature.categories), dtype=np.float32)
        bin, group = np.unique(np.searchsorted(edges[1:-1], values, "right"), return_inverse=True)
        each = [
            share_out(np.ones(n), int(counts[b]))
            for b, n in zip(bin, np.bincount(group), strict=True)
        ]
        counts = np.concatenate(each)
    found, group = np.unique(values[counts > 0], return_inverse=True)
    rows = np.bincount(group, counts[counts > 0], len(found)).astype(np.int64)
    return Column(found, rows, False, middles=True)


def _merged(view: View, noisy: bool) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim in a model merged of everybody's, by owner."""
    merged = next((m for _, m in view.messages(MergedShapes)), None)
    clients = [name for name, role in view.roles.items() if role == "client"]
    bags = int(view.parameters.get("outer_bags", 0))
    if merged is None or len(merged.bag_weights) != bags * len(clients):
        return {}
    known = Table.empty(view.schema) if view.candidates is None else view.candidates
    found = parted(merged, len(clients), noisy, known.X)
    columns = [
        [_of_bins(bins, feature) for bins in column]
        for column, feature in zip(found, view.schema.features, strict=True)
    ]
    every = zip(clients, zip(*columns, strict=True), strict=True)
    return {name: parts for name, parts in every if name not in view.principals}


def _of_bins(bins: ClientBins, feature: Feature) -> Column:
    """Return the column that bins are of: of the value in each, if it is known, else `_in_bins`."""
    counts = np.rint(bins.rows).astype(np.int64)
    if not len(bins.values):
        return _in_bins(bins.edges, counts, feature)
    found, group = np.unique(bins.values[counts > 0].astype(np.float32), return_inverse=True)
    rows = np.bincount(group, counts[counts > 0], len(found)).astype(np.int64)
    return Column(found, rows, False)


def _categories(view: View, changes: Sequence[Change], f: int, column: Column) -> Column:
    """Return a column of categories where a mechanism drew numbers between them; else as it is."""
    feature, n = view.schema.features[f], column.present
    laws = [c.log_chance for c in changes if isinstance(c, Mechanism) and c.log_chance]
    if not feature.categories or not laws or not n:
        return column
    codes = np.arange(len(feature.categories), dtype=np.float32)
    x = (view.prior_rows or Table.empty(view.schema)).X[:, f]
    mine = np.bincount(x[np.isfinite(x)].astype(np.int64), minlength=len(codes))
    each = column.counts // np.gcd.reduce(column.counts)
    points = np.repeat(column.values.astype(np.float64), each)
    low, high = (float(end[f]) for end in view.schema.ranges)
    shares, told = likely_shares(
        lambda values, rows: laws[0](points, values, rows, (low, high)),
        mine.astype(np.float64),
        n,
        np.random.default_rng(f),
    )
    rows = share_out(shares, n)
    return Column(codes[rows > 0], rows[rows > 0], False, told)


def _of_ranks(n: int, own: int, noise: float) -> float:
    """Return what share of the variance of n rows' ranks among the prior's rows is not noise.

    Of n rows drawn as m others were, the rank of a value is off by ``n q (1-q) (1 + n/m)``: on
    average over values, n/6 (1 + n/m). Without such rows (``own`` 0) it is off by a tenth of the
    rows: a larger error says no more than the range of the values.
    """
    drawn = n / 6 * (1 + n / (own + 1)) if own else (n / 10) ** 2
    return drawn / (drawn + noise) if noise else 1.0


def _column(
    sketch: FeatureSketch, f: int, size: int, whole: bool, known: bool | None = None
) -> Column:
    """Return a column; `known`: whether the sketch says itself that it is of all values."""
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    values, counts = sketch.points[part], sketch.weights[part]
    below = len(values) > 0 and sketch.low[f] < values[0]
    all_there = holds_all_values(counts, size) if known is None else known
    exact = whole and not below and all_there
    if below:  # the first point stands for the smallest value, too
        values = np.concatenate([sketch.low[f : f + 1], values])
        counts = np.concatenate([[1], counts[:1] - 1, counts[1:]])
        values, counts = values[counts > 0], counts[counts > 0]
    return Column(values, counts, exact, points=not exact)


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


def all_sketched(view: View) -> bool:
    """Tell whether the sketches of all victims are seen."""
    clients = {name for name, role in view.roles.items() if role == "client"}
    found = {m.owner or item.sender for item, m in view.messages(FeatureSketch)}
    found |= {item.sender for item, m in view.messages(ClientShapes) if len(m.bag_weights)}
    return bool(found) and found - set(view.principals) == clients - set(view.principals)


def are_drawn(view: View) -> bool:
    """Tell whether sketches are values that a mechanism drew: bins, if seen, tell columns better.

    Between two values of a column it draws any number.
    """
    changes = view.changes(FeatureSketch, "points", "client")
    return any(isinstance(c, Mechanism) and c.rank_error > 0 for c in changes)


def ranks_told(view: View, columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns; of drawn ones, of those that are not categories."""
    drawn = are_drawn(view)
    parts = zip(columns, view.schema.features, strict=True)
    return reliability([c for c, f in parts if not (drawn and f.categories)] or columns)
