"""What the adversary knows of the values of the victims' columns.

`Column` describes one column. `columns_of` reads the columns of every victim from sketches or from
the bins of additive models. If `merge_ebms` merged an additive model from those of the clients,
`split_bins` recovers the bins of each client. If a mechanism released numbers instead of category
codes, `likely_shares` estimates the share of each category.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import gammaln, softmax

from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.channel import Change, Mechanism
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.view import View
from fedtrees.messages.additive import ClientShapes, MergedShapes, ShapeFunctions
from fedtrees.messages.captured import RankedSketch
from fedtrees.messages.horizontal import FeatureRanges, FeatureSketch
from fedtrees.trees.cut_points import POINTS_PER_BIN
from fedtrees.trees.lightgbm.bins import values_from

Doubles = NDArray[np.float64]
#: Weight of even counts of rows, relative to counts that add up to the merged weights.
_EVEN = 1e-3
#: Precision of double and single floats, relative to the largest value of a column.
_DOUBLE, _SINGLE = 1e-9, 1e-7
#: Number of value chains that are searched together, and of end values tried per precision.
_CHAINS, _ENDS = 64, 50
#: Largest number of decimal places that are distinguished. A column that people wrote has on
#: average at least 0.7 places fewer than arbitrary numbers.
_PLACES, _FEWER = 8, 0.7


@dataclass(frozen=True, eq=False)
class ClientBins:
    """Estimated bins of one column of one client.

    Candidates with fewer decimal places are preferred, so that no entry is certain.

    Attributes
    ----------
    values : float64 array, shape (b,)
        Value in each bin. Empty if the values are not known.
    edges : float64 array, shape (b + 1,)
        Borders of the bins.
    rows : float64 array, shape (b,)
        Number of rows in each bin.
    """

    values: Doubles
    edges: Doubles
    rows: Doubles


def split_bins(
    m: ShapeFunctions, clients: int, noisy: bool, known_values: NDArray[np.float32]
) -> Iterator[list[ClientBins]]:
    """Yield, for every column, the bins of every client.

    The bags of the merged model are in the order of the clients, and the scores of a bag change
    only at cuts of its client. The rows of a merged bin are distributed to the clients' bins by
    width, such that every client bin contains at least one row.

    Parameters
    ----------
    m : ShapeFunctions
        The merged model.
    clients : int
        Number of clients whose models were merged.
    noisy : bool
        If True, cuts are not midway between values, and counts are not integers.
    known_values : float32 array, shape (k, d)
        Rows of which some may be rows of a client.
    """
    for f, bins in enumerate(m.bins):
        cuts, ends = m.cuts_of(f), (float(m.low[f]), float(m.high[f]))
        changes = np.diff(m.scores[:, bins][:, 1:-1], axis=1) != 0
        own_cuts = changes.reshape(clients, -1, len(cuts)).any(axis=1)
        # a cut at which no score changes may belong to any client
        unused = ~own_cuts.any(axis=0)
        client_columns = []
        for is_own in own_cuts:
            values, client_cuts = np.zeros(0), cuts[is_own]
            if not noisy:
                values, client_cuts = _chain(cuts, is_own, unused, ends, known_values[:, f])
            low, high = (values[0], values[-1]) if len(values) else ends
            client_columns.append((values, np.concatenate([[low], client_cuts, [high]])))
        rows = _rows(
            m.bin_weights[bins][1:-1],
            np.concatenate([ends[:1], cuts, ends[1:]]),
            [edges for _, edges in client_columns],
            0.0 if noisy else 1.0,
        )
        yield [ClientBins(*column, n) for column, n in zip(client_columns, rows, strict=True)]


def _rows(
    weights: Doubles, merged: Doubles, client_edges: Sequence[Doubles], least: float
) -> list[Doubles]:
    """Return the number of rows in each client's bins, at least `least` in each."""
    shares = np.concatenate([_overlap(merged, edges) for edges in client_edges], axis=1)
    even = _EVEN * np.eye(shares.shape[1])  # prefers the most even solution
    # every bin of a client contains at least `least` rows, so that only the excess is solved for
    rest = np.append(weights - least * shares.sum(axis=1), np.zeros(len(even)))
    more, _ = nnls(np.concatenate([shares, even]), rest)
    return np.split(more + least, np.cumsum([len(edges) - 1 for edges in client_edges])[:-1])


def _overlap(merged: Doubles, client_edges: Doubles) -> Doubles:
    """Return the share of every client bin that lies in each merged bin, shape (m, b)."""
    low = np.maximum(merged[:-1, None], client_edges[None, :-1])
    high = np.minimum(merged[1:, None], client_edges[None, 1:])
    return np.maximum(high - low, 0) / np.maximum(np.diff(client_edges), np.finfo(float).tiny)


def _chain(
    cuts: Doubles,
    is_client: NDArray[np.bool_],
    nobodys: NDArray[np.bool_],
    ends: tuple[float, float],
    known_values: NDArray[np.float32],
) -> tuple[Doubles, Doubles]:
    """Return values with the client's cuts midway between them, and these cuts.

    The range of a value gives the range of the next one. Cuts at which no bag changes may belong to
    any client. Among the possible end values in the best range, known values or values with the
    fewest decimal places are chosen. The values are empty if no candidate is plausible.
    """
    near = _DOUBLE * max(map(abs, ends))
    chains: list[tuple[float, float, tuple[int, ...]]] = [(ends[0], np.inf, ())]
    for k in np.flatnonzero(is_client | nobodys).tolist():
        cut, grown = float(cuts[k]), []
        for low, high, taken in chains:
            if nobodys[k]:
                grown.append((low, high, taken))
            if low <= min(high, cut) + near:
                grown.append((2 * cut - min(high, cut), 2 * cut - low, (*taken, k)))
        chains = sorted(grown, key=lambda chain: chain[0] - chain[1])[:_CHAINS]
    best, best_chain = np.inf, (np.zeros(0), cuts[is_client])
    for low, high, taken in chains:
        last = min(high, ends[1])
        tried = _within(low, last, _SINGLE * max(map(abs, ends)))
        for value in tried + known_values[(known_values >= low) & (known_values <= last)].tolist():
            values = _values_of_cuts(float(np.float32(value)), cuts[list(taken)])
            x = values.astype(np.float32)
            places = float(np.where(np.isin(x, known_values), 0, _places(x)).mean())
            if places < min(best, float(_places_of_any(x).mean()) - _FEWER):
                best, best_chain = places, (values, cuts[list(taken)])
    return best_chain


def _values_of_cuts(last: float, cuts: Doubles) -> Doubles:
    """Return the values with the given cuts midway between them, from the largest value."""
    values = np.empty(len(cuts) + 1)
    values[-1] = last
    for k in range(len(cuts) - 1, -1, -1):
        values[k] = 2 * cuts[k] - values[k + 1]
    return values


def _within(low: float, high: float, near: float) -> list[float]:
    """Return the middle of a range and the numbers with few decimal places in it."""
    if low > high + near:
        return []
    candidates = [(low + high) / 2]
    for unit in 10.0 ** np.arange(_PLACES):
        first, last = np.ceil((low - near) * unit), np.floor((high + near) * unit)
        if last - first > _ENDS:
            break
        candidates += (np.arange(first, last + 1) / unit).tolist()
    return candidates


def _places(x: NDArray[np.float32]) -> Doubles:
    """Return the number of decimal places of each number."""
    exact, decimals = x.astype(np.float64), np.full(len(x), float(_PLACES))
    for places in range(_PLACES - 1, -1, -1):
        decimals[np.abs(np.round(exact, places) - exact) <= _SINGLE * np.abs(exact)] = places
    return decimals


def _places_of_any(x: NDArray[np.float32]) -> Doubles:
    """Return the number of decimal places that distinguish numbers of this size in float32."""
    size = np.maximum(np.abs(x.astype(np.float64)), 10.0**-_PLACES)
    return np.asarray(np.clip(np.ceil(-np.log10(2 * _SINGLE * size)), 0, _PLACES))


Floats = NDArray[np.float32]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one column of one party, or of several parties, without missing values.

    Attributes
    ----------
    values : float32 array, shape (k,)
        Ascending values.
    counts : int64 array, shape (k,)
        Number of rows that each value represents.
    exact : bool
        True if these are all values and their exact frequencies. Otherwise a count includes rows
        with values in between, but the smallest and the largest value do occur.
    reliability : float
        Share of the information in the counts that is not noise, 0 to 1.
    points : bool
        Whether each value also represents values close to it.
    middles : bool
        Whether values represent bins, so that no row need have exactly this value.
    """

    values: Floats  # ascending
    counts: Longs
    # Quantile sketches give some of the values only.
    exact: bool
    reliability: float = 1.0
    points: bool = False
    middles: bool = False

    @property
    def present(self) -> int:
        """Number of rows whose value is not missing."""
        return int(self.counts.sum())

    def spread(self, m: int) -> Floats:
        """Return m ascending values at evenly spaced ranks, both ends included.

        m must not exceed `present`.
        """
        at = np.arange(m) * (self.present - 1) // max(m - 1, 1)
        every: Floats = np.repeat(self.values, self.counts)[at]
        return every


def columns_in(rows: Table) -> tuple[Column, ...]:
    """Return the columns of a table. They are not exact, because the rows are a sample."""
    unique_values = (np.unique(c[~np.isnan(c)], return_counts=True) for c in rows.X.T)
    return tuple(Column(values, counts, False) for values, counts in unique_values)


def nearest(X: Floats, values: Floats) -> Floats:
    """Return, for each element of X, the nearest of the ascending values. NaN remains NaN.

    The result is a float32 array of shape (n,).
    """
    if not len(values):
        return X
    above = np.clip(np.searchsorted(values, X), 1, max(len(values) - 1, 1))
    low, high = values[above - 1], values[np.minimum(above, len(values) - 1)]
    # ties go to the smaller value
    near: Floats = np.where(X - low <= high - X, low, high)
    return np.where(np.isnan(X), X, near)


def of_own(
    values: Floats, counts: Longs, borders: NDArray[np.float64], local_values: Floats
) -> Column:
    """Return a column with the local values in each cell, or else the given value.

    Parameters
    ----------
    values : float32 array, shape (k,)
        Value of each cell, used if the cell contains no local value.
    counts : int64 array, shape (k,)
        Rows in each cell. They are shared out evenly among the local values in it.
    borders : float64 array, shape (k - 1,)
        Borders between the cells.
    local_values : float32 array
        Local values. May contain NaN.
    """
    sorted_values = np.sort(local_values[np.isfinite(local_values)])
    cell = np.searchsorted(borders, sorted_values, side="right")
    empty = np.setdiff1d(np.flatnonzero(counts), cell)
    each = [
        largest_remainder(np.ones(k), int(counts[c])) for c, k in enumerate(np.bincount(cell)) if k
    ]
    value = np.concatenate([sorted_values, values[empty]]).astype(np.float32)
    rows = np.concatenate([*each, counts[empty]]).astype(np.int64)
    return _added_up(value, rows)


def _added_up(values: Floats, counts: Longs, middles: bool = False) -> Column:
    """Return the inexact column of some values, with the counts of equal values added."""
    unique_values, group = np.unique(values[counts > 0], return_inverse=True)
    rows = np.bincount(group, counts[counts > 0], len(unique_values)).astype(np.int64)
    return Column(unique_values, rows, False, middles=middles)


def replace_points(columns: Sequence[Column], local_rows: Table) -> tuple[Column, ...]:
    """Replace the values of columns marked `points` by nearby values of the local rows."""
    return tuple(
        _next_to(c, x) if c.points else c for c, x in zip(columns, local_rows.X.T, strict=True)
    )


def _next_to(column: Column, local_values: Floats) -> Column:
    at = column.values.astype(np.float64)
    filled_column = of_own(column.values, column.counts, (at[:-1] + at[1:]) / 2, local_values)
    return replace(filled_column, reliability=column.reliability)


def unknown(feature: Feature, n: int, local_values: Floats) -> Column:
    """Return a column of n rows for a feature without counts, with reliability 0.

    If there are local values (`local_values`, float32), they determine the distribution. Otherwise
    all categories are equally likely, or all rows have the lowest declared value or 0.
    """
    values, times = np.unique(local_values[np.isfinite(local_values)], return_counts=True)
    if not len(values):
        values = np.arange(max(len(feature.categories), 1), dtype=np.float32)
        times = np.ones(len(values), dtype=np.int64)
        if not feature.categories and feature.low is not None:
            values[0] = feature.low
    each = largest_remainder(times.astype(np.float64), n)
    return Column(values[each > 0], each[each > 0], False, 0.0)


def shortest(low: NDArray[np.float64], high: NDArray[np.float64]) -> Floats:
    """Return the number with the fewest decimal places in each interval ``low <= x < high``.

    If several numbers qualify, the middle one is returned. The result is float32, shape (k,). For
    example, the interval from 0.37 to 0.52 gives 0.4 or 0.5.
    """
    out = (low + high) / 2
    for places in range(7, -1, -1):
        first, last = np.ceil(low * 10.0**places), np.ceil(high * 10.0**places) - 1
        # fewer places overwrite more, so that the fewest remain
        out = np.where(first <= last, np.floor((first + last) / 2) / 10.0**places, out)
    return out.astype(np.float32)


def together(parts: Sequence[Column]) -> Column:
    """Merge the columns of several parties into one, adding the counts of equal values."""
    values, group = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, group, np.concatenate([p.counts for p in parts]))
    mean_reliability = reliability(parts)
    exact = all(p.exact for p in parts)
    return Column(values, counts, exact, mean_reliability, any(p.points for p in parts))


def reliability(columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns."""
    return float(np.mean([c.reliability for c in columns]))


def fullest(columns: Sequence[Column]) -> int:
    """Return the largest number of present values of any column.

    It is a lower bound on the number of rows.
    """
    return max((c.present for c in columns), default=0)


ROUNDS, DRAWS = 5, 30  # importance sampling: rounds, and draws of the shares per round
NARROWER = 5.0  # largest concentration step: a sharp law would leave one draw with weight
STAND_FOR_ALL = 100  # number of values for which the likelihood is computed


def likely_shares(
    log_chance: Callable[[Doubles, float], float],
    known_counts: Doubles,
    n: int,
    rng: np.random.Generator,
) -> tuple[Doubles, float]:
    """Return posterior mean shares of categories and how strongly the data determine them.

    The prior of the shares is a Dirichlet distribution. Draws are weighted by the likelihood of the
    released values, and drawn again around their weighted mean (adaptive importance sampling, Cappe
    et al. 2008).

    Parameters
    ----------
    log_chance : callable
        ``log_chance(values, rows_per_value)`` returns the log probability of the released values
        (nats) for a column with these codes.
    known_counts : float64 array, shape (k,)
        Known number of rows of each category. The prior adds one row to each.
    n : int
        Number of rows of the column.
    rng : numpy.random.Generator
        Randomness of the draws.

    Returns
    -------
    shares : float64 array, shape (k,)
        Posterior means, sum 1.
    reliability : float
        Share of the prior variance that the released values removed, 0 to 1.
    """
    k, fewer = len(known_counts), min(n, STAND_FOR_ALL)
    if k < 2 or n < 1:
        return np.full(k, 1.0 / max(k, 1)), 1.0
    before = known_counts + 1.0
    codes = np.arange(k, dtype=np.float64)
    around = before
    for _ in range(ROUNDS):
        p = np.maximum(rng.dirichlet(around, DRAWS), 1e-9)
        log_likelihood = [
            log_chance(np.repeat(codes, largest_remainder(x, fewer)), n / fewer) for x in p
        ]
        weight = softmax(np.array(log_likelihood) + _density(p, before) - _density(p, around))
        # the share 0 is excluded, because no later draw could recover the category
        mean = np.maximum(weight @ p, 1e-9)
        posterior_variance = float(weight @ ((p - mean) ** 2).sum(axis=1))
        # concentration of the Dirichlet distribution with this mean and variance
        rows = float(mean @ (1 - mean)) / max(posterior_variance, 1e-12) - 1
        around = np.maximum(mean * np.clip(rows, 0.5, NARROWER * around.sum()), 0.02)
    total = before.sum()
    prior_variance = float((before / total) @ (1 - before / total)) / (total + 1)
    return mean / mean.sum(), float(np.clip(1 - posterior_variance / prior_variance, 0.0, 1.0))


def _density(p: Doubles, rows: Doubles) -> Doubles:
    """Return the log density of shares, shape (m, k), in a Dirichlet distribution."""
    constant = gammaln(rows.sum()) - gammaln(rows).sum()
    return np.asarray(constant + np.log(p) @ (rows - 1))


def columns_of(view: View) -> dict[str, tuple[Column, ...]]:
    """Return the columns of every victim whose sketch is seen, by owner.

    If a defense changes sketches, the values are the changed ones and not exact. Their reliability
    follows from the error of the ranks. For categories such a mechanism releases numbers between
    their codes, and its distribution is used to estimate the shares of the categories.
    """
    altered = any(issubclass(FeatureSketch, p.handled_types) for p in view.defense.parts)
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
            largest_remainder(np.ones(n), int(counts[b]))
            for b, n in zip(bin, np.bincount(group), strict=True)
        ]
        counts = np.concatenate(each)
    return _added_up(values, counts, middles=True)


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
    return _added_up(bins.values.astype(np.float32), counts)


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
    rows = largest_remainder(shares, n)
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


def reliability_of_ranks(view: View, columns: Sequence[Column]) -> float:
    """Return the mean reliability of columns, without categories if values are randomised."""
    drawn = are_drawn(view)
    parts = zip(columns, view.schema.features, strict=True)
    return reliability([c for c, f in parts if not (drawn and f.categories)] or columns)
