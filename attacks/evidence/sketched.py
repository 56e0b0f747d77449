"""The victims' columns according to their sketches or the bins of their additive models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.allocation import share_out
from fedtrees.attacks.evidence.categories import likely_shares
from fedtrees.attacks.evidence.column import Column, reliability, shortest
from fedtrees.attacks.evidence.merged_shapes import ClientBins, split_bins
from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.view import View
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.captured import RankedSketch
from fedtrees.messages.horizontal import FeatureRanges, FeatureSketch
from fedtrees.trees.cut_points import POINTS_PER_BIN
from fedtrees.trees.lightgbm.bins import values_from

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


def columns_of(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim whose sketch is seen, by owner.

    If a defense changes sketches, the values are the changed ones and not exact. Their reliability
    follows from the error of the ranks. For categories such a mechanism releases numbers between
    their codes, and its distribution is used to estimate the shares of the categories.
    """
    altered = any(issubclass(FeatureSketch, p.guards) for p in view.defense.parts)
    changes = view.changes(FeatureSketch, "points", "client")
    noise = sum(c.rank_error**2 for c in changes if isinstance(c, Mechanism))
    likely = len(view.prior_rows or ())
    # no sketch contains rows that are held out for early stopping
    some = bool(view.parameters.get("early_stopping_rounds"))
    size = POINTS_PER_BIN * int(view.parameters.get("max_bin", 0))
    by_owner: dict[str, tuple[Column, ...]] = {}
    for item, sketch in view.messages(FeatureSketch):
        owner = sketch.owner or item.sender
        if owner not in view.principals and owner not in by_owner:
            complete = not (altered or some)
            is_complete = sketch.whole if isinstance(sketch, RankedSketch) else None
            columns = (
                _column(
                    sketch, f, size, complete, None if is_complete is None else bool(is_complete[f])
                )
                for f in range(len(sketch.low))
            )
            weighted = (
                replace(c, reliability=_of_ranks(c.present, likely, noise)) for c in columns
            )
            by_owner[owner] = tuple(
                _categories(view, changes, f, c) for f, c in enumerate(weighted)
            )
    exact = not view.changes(ClientShapes, "bin_weights", "client")
    for item, shapes in view.messages(ClientShapes):
        if item.sender not in view.principals and len(shapes.bag_weights):
            by_owner[item.sender] = tuple(_between_cuts(shapes, view.schema, exact))
    if not by_owner:
        by_owner = _merged_columns(view, not exact)
    order = [*view.roles, *by_owner]  # independent of the order of the messages
    return dict(sorted(by_owner.items(), key=lambda item: order.index(item[0])))


def _between_cuts(shapes: ClientShapes, schema: Schema, exact: bool) -> Iterator[Column]:
    """Yield a column for each feature, with one value per bin if it is determined.

    Cuts are midway between values. If there are as many distinct values as bins, each value follows
    from the one before, starting at the smallest. Otherwise the column is `_in_bins`.
    """
    for f, bins in enumerate(shapes.bins):
        cuts, low, high = shapes.cuts_of(f), shapes.low[f], shapes.high[f]
        counts = np.rint(shapes.bin_weights[bins][1:-1]).astype(np.int64)
        one_per_bin = exact and bool(len(shapes.unique)) and shapes.unique[f] == len(counts)
        if len(followed := values_from(low, cuts) if one_per_bin else cuts[:0]):
            nonempty = counts > 0
            yield Column(followed.astype(np.float32)[nonempty], counts[nonempty], True)
        else:
            yield _in_bins(np.concatenate([[low], cuts, [high]]), counts, schema.features[f])


def _in_bins(edges: Doubles, counts: Longs, feature: Feature) -> Column:
    """Return a column with the categories in each bin, or else its `shortest` number."""
    values = shortest(edges[:-1], edges[1:])
    if feature.categories:
        values = np.arange(len(feature.categories), dtype=np.float32)
        bin, group = np.unique(np.searchsorted(edges[1:-1], values, "right"), return_inverse=True)
        each = [
            share_out(np.ones(n), int(counts[b]))
            for b, n in zip(bin, np.bincount(group), strict=True)
        ]
        counts = np.concatenate(each)
    unique_values, group = np.unique(values[counts > 0], return_inverse=True)
    rows = np.bincount(group, counts[counts > 0], len(unique_values)).astype(np.int64)
    return Column(unique_values, rows, False, middles=True)


def _merged_columns(view: View, noisy: bool) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim in a model merged from all clients' models, by owner."""
    merged = next((m for _, m in view.messages(MergedShapes)), None)
    clients = [name for name, role in view.roles.items() if role == "client"]
    bags = int(view.parameters.get("outer_bags", 0))
    if merged is None or len(merged.bag_weights) != bags * len(clients):
        return {}
    candidates = Table.empty(view.schema) if view.candidates is None else view.candidates
    client_bins = split_bins(merged, len(clients), noisy, candidates.X)
    columns = [
        [_of_bins(bins, feature) for bins in column]
        for column, feature in zip(client_bins, view.schema.features, strict=True)
    ]
    every = zip(clients, zip(*columns, strict=True), strict=True)
    return {name: parts for name, parts in every if name not in view.principals}


def _of_bins(bins: ClientBins, feature: Feature) -> Column:
    """Return the column of some bins: the known value in each, or else `_in_bins`."""
    counts = np.rint(bins.rows).astype(np.int64)
    if not len(bins.values):
        return _in_bins(bins.edges, counts, feature)
    unique_values, group = np.unique(
        bins.values[counts > 0].astype(np.float32), return_inverse=True
    )
    rows = np.bincount(group, counts[counts > 0], len(unique_values)).astype(np.int64)
    return Column(unique_values, rows, False)


def _categories(view: View, changes: Sequence[Change], f: int, column: Column) -> Column:
    """Return a column of category codes if a mechanism released numbers between them.

    Otherwise the column is returned unchanged.
    """
    feature, n = view.schema.features[f], column.present
    # only mechanisms with a known likelihood allow inference about the categories
    laws = [c.log_chance for c in changes if isinstance(c, Mechanism) and c.log_chance]
    if not feature.categories or not laws or not n:
        return column
    codes = np.arange(len(feature.categories), dtype=np.float32)
    x = (view.prior_rows or Table.empty(view.schema)).X[:, f]
    local_counts = np.bincount(x[np.isfinite(x)].astype(np.int64), minlength=len(codes))
    each = column.counts // np.gcd.reduce(column.counts)
    points = np.repeat(column.values.astype(np.float64), each)
    low, high = (float(end[f]) for end in view.schema.ranges)
    shares, reliability_of_shares = likely_shares(
        lambda values, rows: laws[0](points, values, rows, (low, high)),
        local_counts.astype(np.float64),
        n,
        np.random.default_rng(f),
    )
    rows = share_out(shares, n)
    return Column(codes[rows > 0], rows[rows > 0], False, reliability_of_shares)


def _of_ranks(n: int, n_prior: int, noise: float) -> float:
    """Return the share of the rank variance of n rows among the prior's rows that is not noise.

    The rank of a value has the variance ``n q (1-q) (1 + n/m)`` if m prior rows have the same
    distribution, on average n/6 (1 + n/m). Without prior rows, the standard deviation is set to a
    tenth of the rows, because a larger error reveals only the range of the values.
    """
    drawn = n / 6 * (1 + n / (n_prior + 1)) if n_prior else (n / 10) ** 2
    return drawn / (drawn + noise) if noise else 1.0


def _column(
    sketch: FeatureSketch, f: int, size: int, complete: bool, declared_complete: bool | None = None
) -> Column:
    """Return one column of a sketch, which may declare that it contains all values (else None)."""
    part = slice(sketch.offsets[f], sketch.offsets[f + 1])
    values, counts = sketch.points[part], sketch.weights[part]
    below = len(values) > 0 and sketch.low[f] < values[0]
    all_there = holds_all_values(counts, size) if declared_complete is None else declared_complete
    exact = complete and not below and all_there
    if below:  # the first point also represents the smallest value
        values = np.concatenate([sketch.low[f : f + 1], values])
        # move one row from the first point to the minimum
        counts = np.concatenate([[1], counts[:1] - 1, counts[1:]])
        values, counts = values[counts > 0], counts[counts > 0]
    return Column(values, counts, exact, points=not exact)


def holds_all_values(counts: Longs, size: int) -> bool:
    """Return whether a summary of at most ``size`` points must contain all values.

    Columns with more values are cut into ``size`` groups of equal size, each represented by its
    last value (`fedtrees.trees.cut_points.local_sketch`). A group therefore ends between two
    points, and the values that are left out lie before that end. If they would be too few for more
    than ``size`` values, or if no group ends there, then the summary is complete.
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
    """Return the extreme values that every victim sent, by owner."""
    return {
        item.sender: m
        for item, m in view.messages(FeatureRanges)
        if item.sender not in view.principals
    }


def all_sketched(view: View) -> bool:
    """Return whether the sketches of all victims are seen."""
    clients = {name for name, role in view.roles.items() if role == "client"}
    owners = {m.owner or item.sender for item, m in view.messages(FeatureSketch)}
    owners |= {item.sender for item, m in view.messages(ClientShapes) if len(m.bag_weights)}
    return bool(owners) and owners - set(view.principals) == clients - set(view.principals)


def are_drawn(view: View) -> bool:
    """Return whether sketches contain randomised values.

    Bins, if they are seen, are then more informative. A mechanism may release any number between
    two values of a column.
    """
    changes = view.changes(FeatureSketch, "points", "client")
    return any(isinstance(c, Mechanism) and c.rank_error > 0 for c in changes)


def ranks_told(view: View, columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns, without categories if values are randomised."""
    drawn = are_drawn(view)
    parts = zip(columns, view.schema.features, strict=True)
    return reliability([c for c, f in parts if not (drawn and f.categories)] or columns)
