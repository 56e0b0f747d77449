"""The victims' columns as sketches or sums on a grid tell them, and rows with these columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.categories import likely_shares
from fedtrees.attacks.evidence.counts import share_out
from fedtrees.attacks.evidence.merged_shapes import ClientBins, parted
from fedtrees.attacks.evidence.noisy_counts import likely_counts
from fedtrees.core.channel import Change, Channel, Mechanism, Share, chained
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.view import View
from fedtrees.guessing.imputation import ChainedEquations
from fedtrees.guessing.recipes import FEWEST_ROWS, usual_guess
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.messages.boosting import BaseScore
from fedtrees.messages.captured import RankedSketch
from fedtrees.messages.cuts import FeatureRanges, FeatureSketch, GridCounts, GridRequest
from fedtrees.trees.grid import count_cells
from fedtrees.trees.lightgbm.midpoints import values_from
from fedtrees.trees.sketch import POINTS_PER_BIN

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

MOST_LIKELY_ROWS = 2000  # attacks compare every row with every such row in every tree
# Of columns, as their mean, for rows made of them to stand in place of own ones.
LEAST_RELIABLE = 0.5


@dataclass(frozen=True, eq=False)
class Column:
    """What is known of the present values of one column of one owner, or of several."""

    values: Floats  # float32 (k,): values that are there, ascending
    counts: Longs  # int64 (k,): rows they stand for
    # Whether these are all values, each as often as it says; else counts stand for what lies
    # between, too, but the outermost values are there
    exact: bool
    reliability: float = 1.0  # share of what counts tell that is not noise, 0 to 1
    points: bool = False  # whether values stand for those next to them, too
    middles: bool = False  # whether values are middles of bins, which nobody need have

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

    Where a defense changes sketches, values are what it made of them: nothing is exact, and as
    reliable as the ranks are known of values that it draws. Of categories it draws numbers between
    their codes, and its law tells their shares.
    """
    altered = any(issubclass(FeatureSketch, p.guards) for p in view.defense.parts)
    changes = view.changes(FeatureSketch, "points", "client")
    noise = sum(c.rank_error**2 for c in changes if isinstance(c, Mechanism))
    own = 0 if view.rows is None else len(view.rows)
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
            told = (replace(c, reliability=_of_ranks(c.present, own, noise)) for c in columns)
            found[owner] = tuple(_categories(view, changes, f, c) for f, c in enumerate(told))
    exact = not view.changes(ClientShapes, "bin_weights", "client")
    for item, shapes in view.messages(ClientShapes):
        if item.sender not in view.principals and len(shapes.bag_weights):
            found[item.sender] = tuple(_between_cuts(shapes, exact))
    if not found:
        found = _merged(view, not exact)
    order = [*view.roles, *found]  # not that in which they came: equals tell them in any
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _between_cuts(shapes: ClientShapes, exact: bool) -> Iterator[Column]:
    """Yield columns by their bins: of the value in each, if it has one, else of its middle.

    Cuts are midway between values: of as many as bins each follows from the one before, from the
    least on.
    """
    for f, bins in enumerate(shapes.bins):
        cuts, low, high = shapes.cuts_of(f), shapes.low[f], shapes.high[f]
        counts = np.rint(shapes.bin_weights[bins][1:-1]).astype(np.int64)
        ends = np.concatenate([[low], cuts, [high]])
        values = (ends[:-1] + ends[1:]) / 2
        alone = exact and bool(len(shapes.unique)) and shapes.unique[f] == len(counts)
        followed = values_from(low, cuts) if alone else cuts[:0]
        whole = len(followed) > 0
        values = (followed if whole else values).astype(np.float32)
        there = counts > 0
        yield Column(values[there], counts[there], whole, middles=not whole)


def _merged(view: View, noisy: bool) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim in a model merged of everybody's, by owner."""
    merged = next((m for _, m in view.messages(MergedShapes)), None)
    clients = [name for name, role in view.roles.items() if role == "client"]
    bags = int(view.parameters.get("outer_bags", 0))
    if merged is None or len(merged.bag_weights) != bags * len(clients):
        return {}
    known = Table.empty(view.schema) if view.candidates is None else view.candidates
    found = parted(merged, len(clients), noisy, known.X)
    columns = [[_of_bins(bins) for bins in column] for column in found]
    every = zip(clients, zip(*columns, strict=True), strict=True)
    return {name: parts for name, parts in every if name not in view.principals}


def _of_bins(bins: ClientBins) -> Column:
    """Return the column that bins are of: of middles, if several values are in a bin."""
    values = bins.values if len(bins.values) else (bins.edges[:-1] + bins.edges[1:]) / 2
    counts = np.rint(bins.rows).astype(np.int64)
    found, group = np.unique(values[counts > 0].astype(np.float32), return_inverse=True)
    rows = np.bincount(group, counts[counts > 0], len(found)).astype(np.int64)
    return Column(found, rows, False, middles=not len(bins.values))


def _categories(view: View, changes: Sequence[Change], f: int, column: Column) -> Column:
    """Return a column of categories where a mechanism drew numbers between them; else as it is."""
    feature, n = view.schema.features[f], column.present
    laws = [c.log_chance for c in changes if isinstance(c, Mechanism) and c.log_chance]
    if not feature.categories or not laws or not n:
        return column
    codes = np.arange(len(feature.categories), dtype=np.float32)
    own = Table.empty(view.schema).X[:, f] if view.rows is None else view.rows.X[:, f]
    mine = np.bincount(own[np.isfinite(own)].astype(np.int64), minlength=len(codes))
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
    """Return what share of the variance of n rows' ranks among own rows is not noise.

    Of n rows drawn as m others were, the rank of a value is off by ``n q (1-q) (1 + n/m)``: on
    average over values, n/6 (1 + n/m). Without own rows by a tenth of the rows: more says no more
    than the range of the values.
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
    found |= {item.sender for item, m in view.messages(ClientShapes) if len(m.bag_weights)}
    return bool(found) and found - set(view.principals) == clients - set(view.principals)


def _on_grid(view: View) -> tuple[Column, ...] | None:
    """Return the columns that the last sum of counts on a grid tells, less what principals sent.

    A cell's rows have own rows' values in it, else the one that is written with the fewest decimal
    places. Noisy counts are believed as far as their law allows.
    """
    laid = [m for _, m in view.messages(GridRequest)]
    opened = [m for item, m in view.messages(GridCounts) if item.opened]
    if not laid or not opened:
        return None
    borders = np.split(laid[-1].borders, laid[-1].offsets[1:-1])
    own = Table.empty(view.schema) if view.rows is None else view.rows
    mine, sent = count_cells(own.X, borders), _sent(view)
    others = opened[-1].counts - sum((m.counts for m in sent), start=np.zeros_like(mine))
    variance = _noise_left(view, len(sent))
    sizes = [len(inner) + 1 if len(inner) else 0 for inner in borders]
    ends, n = np.cumsum(sizes)[:-1], victims_rows(view) or _not_held_out(view, len(own))
    columns = []
    parts = (np.split(part, ends) for part in (others, mine))
    for feature, x, b, noisy, held in zip(
        view.schema.features, own.X.T, borders, *parts, strict=True
    ):
        present = round(n * (np.isfinite(x).sum() + 1) / (len(x) + 1))
        if not len(b):
            columns.append(_unknown(feature, present, x))
            continue
        counts, told = np.maximum(noisy, 0), 1.0
        if variance:
            counts, told = likely_counts(noisy, held, present, variance)
        column = _in_cells(b.astype(np.float64), counts, feature, x)
        columns.append(replace(column, reliability=told))
    return tuple(columns)


def _sent(view: View) -> list[GridCounts]:
    """Return what each principal sent of the last grid, its part of the noise included."""
    last = {
        item.sender: m
        for item, m in view.messages(GridCounts)
        if item.sender in view.principals and not item.opened
    }
    return list(last.values())


def _noise_left(view: View, sent: int) -> float:
    """Return the variance of the noise of all clients but so many on a count, in squared rows."""
    clients = sum(role == "client" for role in view.roles.values())
    changes = view.changes(GridCounts, "counts", "client")
    shared = chained(c.whole for c in changes if isinstance(c, Share))
    alone = chained((c for c in changes if isinstance(c, Channel)), clients - sent)
    zero, left = np.zeros(1), 1 - sent / clients
    parts = ((1.0, alone), (left, shared))
    return sum(w * float(law.error(zero)[1][0]) for w, law in parts if law is not None)


def _in_cells(borders: NDArray[np.float64], counts: Longs, feature: Feature, own: Floats) -> Column:
    """Return a column of the values of own rows in each cell, else of its `shortest` number."""
    gap = [float(np.diff(b).sum()) for b in (borders[:2], borders[-2:])]
    low = borders[0] - gap[0] if feature.low is None else feature.low
    high = borders[-1] + gap[1] if feature.high is None else feature.high
    ends = np.concatenate([[min(low, borders[0])], borders, [max(high, borders[-1])]])
    return _of_own(shortest(ends[:-1], ends[1:]), counts, borders, own)


def _of_own(values: Floats, counts: Longs, borders: NDArray[np.float64], own: Floats) -> Column:
    """Return a column of the values of own rows in each cell, else of the value given."""
    known = np.sort(own[np.isfinite(own)])
    cell = np.searchsorted(borders, known, side="right")
    empty = np.setdiff1d(np.flatnonzero(counts), cell)
    each = [share_out(np.ones(k), int(counts[c])) for c, k in enumerate(np.bincount(cell)) if k]
    value = np.concatenate([known, values[empty]]).astype(np.float32)
    rows = np.concatenate([*each, counts[empty]]).astype(np.int64)
    found, group = np.unique(value[rows > 0], return_inverse=True)
    return Column(found, np.bincount(group, rows[rows > 0]).astype(np.int64), False)


def filled(columns: Sequence[Column], own: Table) -> tuple[Column, ...]:
    """Return columns in which own rows' values next to points stand in their place."""
    return tuple(_next_to(c, x) if c.points else c for c, x in zip(columns, own.X.T, strict=True))


def _next_to(column: Column, own: Floats) -> Column:
    at = column.values.astype(np.float64)
    found = _of_own(column.values, column.counts, (at[:-1] + at[1:]) / 2, own)
    return replace(found, reliability=column.reliability)


def _unknown(feature: Feature, n: int, own: Floats) -> Column:
    """Return n values of an uncounted feature: own rows', else categories, or the lowest."""
    values, times = np.unique(own[np.isfinite(own)], return_counts=True)
    if not len(values):
        values = np.arange(max(len(feature.categories), 1), dtype=np.float32)
        times = np.ones(len(values), dtype=np.int64)
        if not feature.categories and feature.low is not None:
            values[0] = feature.low
    each = share_out(times.astype(np.float64), n)
    return Column(values[each > 0], each[each > 0], False, 0.0)


def shortest(low: NDArray[np.float64], high: NDArray[np.float64]) -> Floats:
    """Return the number with the fewest decimal places that is at least low and below high.

    Of several, the middle one; float32, shape (k,).
    """
    out = (low + high) / 2
    for places in range(7, -1, -1):
        first, last = np.ceil(low * 10.0**places), np.ceil(high * 10.0**places) - 1
        out = np.where(first <= last, np.floor((first + last) / 2) / 10.0**places, out)
    return out.astype(np.float32)


def are_drawn(view: View) -> bool:
    """Tell whether sketches are values that a mechanism drew: bins, if seen, tell columns better.

    Between two values of a column it draws any number.
    """
    changes = view.changes(FeatureSketch, "points", "client")
    return any(isinstance(c, Mechanism) and c.rank_error > 0 for c in changes)


def _together(parts: Sequence[Column]) -> Column:
    values, group = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, group, np.concatenate([p.counts for p in parts]))
    told = reliability(parts)
    exact = all(p.exact for p in parts)
    return Column(values, counts, exact, told, any(p.points for p in parts))


def redraws_of(own: Table, schema: Schema, rng: np.random.Generator) -> ChainedEquations | None:
    """Return what redraws cells of rows like own ones, None where that makes rows less alike.

    Redrawn, `rows_with` and their consensus gain 0.4 (Pima, breast cancer) to 3 points of RA
    (wine; three clients, three seeds).
    """
    if len(own) < FEWEST_ROWS or not usual_guess(own).startswith(("imputed", "frequent")):
        return None
    return ChainedEquations(own, schema, rng)


def rows_with(
    columns: Sequence[Column],
    of: int,
    own: Table,
    y: Longs,
    redraws: ChainedEquations | None,
    rng: np.random.Generator,
) -> Table:
    """Return rows of these labels whose columns are the victims', and depend as own rows do.

    Own rows of each label are drawn with replacement and partly redrawn; in every column the drawn
    rows keep their order (equal values: any) and take the victims' values in that order (a copula,
    Nelsen 2006). No own rows: columns do not depend on one another.

    `of`: Rows that these are the columns of.
    `y`: int64 array, shape (n,).
    `redraws`: Of own rows, as `redraws_of` says.
    """
    n = len(y)
    drawn = np.full((n, len(columns)), np.nan, dtype=np.float32)
    for label in np.unique(y) if len(own) else ():
        mine = np.flatnonzero(y == label)
        pool = np.flatnonzero(own.y == label)
        pool = pool if len(pool) else np.arange(len(own))
        drawn[mine] = own.X[rng.choice(pool, len(mine))]
    if redraws is not None:
        drawn = redraws.redraw(Table(drawn, y), rng).X
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


def reliability(columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns."""
    return float(np.mean([c.reliability for c in columns]))


def ranks_told(view: View, columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns; of drawn ones, of those that are not categories."""
    drawn = are_drawn(view)
    parts = zip(columns, view.schema.features, strict=True)
    return reliability([c for c, f in parts if not (drawn and f.categories)] or columns)


def likely_rows(
    view: View, rng: np.random.Generator, owner: str | None = None, rows: int = 0
) -> Table | None:
    """Return rows as the victims' may be, by `rows_with`; None unless every sketch is seen.

    They are as many as the victims' rows, but no more than own rows or `MOST_LIKELY_ROWS`. None,
    too, where own rows, or declared ranges, say more of the victims' columns than noisy sketches
    do. Of one ``owner``, who has so many ``rows``, its own sketch counts.
    """
    columns = columns_of(view).get(owner) if owner is not None else None
    columns, alone = (pooled(view), False) if columns is None else (columns, True)
    if columns is None or not view.schema.classes:
        return None
    own = Table.empty(view.schema) if view.rows is None else view.rows
    drawn = are_drawn(view)
    if (len(own) or drawn) and ranks_told(view, columns) < LEAST_RELIABLE:
        return None
    most = fullest(columns)
    of = max(most, rows if alone else victims_rows(view))
    n = min(of, max(len(own), MOST_LIKELY_ROWS))
    of = most if drawn else of  # what is drawn stands for fewer rows than there are
    columns = filled(columns, own)
    owner = np.zeros(n, dtype=np.int64)
    y = labels_of(label_shares(view, own), owner, rng)
    return rows_with(columns, of, own, y, redraws_of(own, view.schema, rng), rng)


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


def _not_held_out(view: View, own: int) -> int:
    """Return how many rows of the victims are counted, about."""
    return round((view.n_rows - own) * (1 - float(view.parameters["validation_fraction"])))


def fullest(columns: Sequence[Column]) -> int:
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
    told = np.array([fullest(parts) for parts in columns.values()], dtype=np.int64)
    rest = max(together - int(told.sum()), 0) if told.sum() else 0
    more = np.diff(np.rint(rest * np.cumsum(told) / max(told.sum(), 1)), prepend=0.0)
    return dict(zip(columns, (told + more.astype(np.int64)).tolist(), strict=True))
