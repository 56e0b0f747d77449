"""Choose a point of the box of every row: the guess of its values.

After the trees have been followed, each row of the reconstruction is a box of feature ranges with a
label. Di Gennaro et al. (2025) guess the middle of the box. With local data, or sketches of the
victims, values are drawn from these, which keeps the dependence between features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.columns import nearest
from fedtrees.attacks.reconstruction.boxes import ANY, FeatureBoxes, Grid, allowed, stack_boxes
from fedtrees.attacks.reconstruction.prior import (
    UNIFORM_SHARE,
    Prior,
    RowPool,
    count_violations,
    mass_of,
)
from fedtrees.core.compilation import kernel
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.jit import place

Floats = NDArray[np.float64]

MOST_CELLS = 2**21  # cells of boxes that are converted to rows at once, to limit memory


def points(
    rule: str,
    boxes: FeatureBoxes,
    grid: Grid,
    prior: Prior,
    schema: Schema,
    rng: np.random.Generator,
) -> Table:
    """Return one row per box.

    Parameters
    ----------
    rule : {"auto", "prior", "joint", "mid", "published"}
        How values are chosen, see below.
    boxes : FeatureBoxes
        n boxes with labels.
    grid : Grid
        Thresholds that separate the cells of the boxes.
    prior : Prior
        Local rows, or likely rows of the victims, and value ranges.
    schema : Schema
        Types of the columns.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    Table
        n rows.

    Notes
    -----
    The rules are:

    - ``prior``: draw each feature from local values of the same label inside the box, mixed with a
      uniform distribution. A value is missing by its odds in the local data, if the box allows it.
    - ``joint``: take the local (or redrawn) row of the label that violates the box least. Values
      outside the box are moved to its nearest edge (measured against a new draw of these features:
      +0.4 points on Pima at 20 trees, equal on Stroke). They are missing by the same odds as above.
      A missing value of the local row is kept if the box allows it, else it is drawn as by
      ``prior``. In addition, a share ``prior.recipe.share`` of all cells is drawn as by ``prior``.
    - ``mid``: the middle of the box, or a random allowed code for a categorical feature.
    - ``published``: ``mid`` with two rules of the authors' code. A categorical feature that no
      split constrains is NaN, and the last code of an open interval is never guessed.
    - ``auto``: ``joint`` if there are local or likely rows, else ``prior``.

    Except for the NaN of ``published``, the rules ``mid`` and ``published`` guess no missing
    values.
    """
    if rule == "auto":
        rule = "joint" if len(prior.rows) else "prior"
    low, high = grid.bounds(boxes.lo, boxes.hi)
    n, d = low.shape
    X = np.empty((n, d), dtype=np.float32)
    for f in range(d):
        box = _clip(low[:, f], high[:, f], prior.low[f], prior.high[f])
        if schema.categorical[f]:
            X[:, f] = _codes(rule, f, boxes, (low[:, f], high[:, f]), prior, rng)
        elif rule in ("mid", "published"):
            X[:, f] = (box[0] + box[1]) / 2
        else:
            X[:, f] = _draw(f, boxes.y, (low[:, f], high[:, f]), box, prior, rng)
    if rule not in ("prior", "joint"):
        return Table(X, boxes.y)
    missing = _missing(boxes, prior, rng)
    X[missing] = np.nan
    if rule == "joint" and len(prior.rows) and n:
        pool, pool_cells = (prior.rows, prior.row_cells) if prior.pool is None else prior.pool
        near = nearest_rows(boxes, pool_cells, pool.y, rng.random(n))
        cell = pool_cells[near]
        inside = (cell >= boxes.lo) & (cell < boxes.hi) & allowed(boxes.codes, np.maximum(cell, 0))
        inside |= (cell < 0) & boxes.missing
        # A share of the cells ignores the nearest row and keeps the draw from the marginal prior.
        uses_nearest = (near >= 0)[:, None] & (rng.random(cell.shape) >= prior.recipe.share)
        inside &= uses_nearest
        moved = ~inside & uses_nearest & (cell >= 0) & ~missing & (boxes.codes == ANY)
        X = np.where(inside, pool.X[near], X)
        edge = _into(pool.X[near], low, high, prior, schema)
        X = np.where(
            moved, nearest_known_values(edge, low, high, prior) if prior.from_sketches else edge, X
        )
    return Table(X, boxes.y)


def nearest_rows(
    boxes: FeatureBoxes, cells: NDArray[np.int32], y: NDArray[np.int64], u: Floats
) -> NDArray[np.int64]:
    """Return, for each box, a row of its label with the fewest violations.

    Of several such rows, the one that was chosen least often so far is returned. If a row were
    chosen twice, another would be left out, and a table with fewer different rows matches the
    victims' rows worse. Remaining ties go to the first row from a random place on.

    Parameters
    ----------
    boxes : FeatureBoxes
        n boxes.
    cells : int32 array, shape (m, d)
        Cells of the rows of the pool, -1 if a value is missing.
    y : int64 array, shape (m,)
        Labels of the rows of the pool.
    u : float64 array, shape (n,)
        Uniform random numbers in [0, 1) for the ties.

    Returns
    -------
    int64 array, shape (n,)
        Index of the row, -1 if the pool has no row of the label.
    """
    if not len(y) or not len(boxes.y):
        return np.full(len(boxes.y), -1, dtype=np.int64)
    pool = RowPool.of(cells, y, 1 + int(max(y.max(), boxes.y.max())))
    first = (u * len(y)).astype(np.int64)
    box = boxes.lo, boxes.hi, boxes.y, boxes.missing, boxes.codes
    return _nearest_rows(*box, pool, first)


@kernel
def _nearest_rows(lo, hi, y, missing, codes, pool, first):  # type: ignore[no-untyped-def]
    """Return the chosen row of each box, int64 (n,). Ties go to the first row from `first` on."""
    out = np.full(y.shape[0], -1)
    uses = np.zeros(pool.rows.shape[0], dtype=np.int64)
    violations = np.empty(pool.rows.shape[0], dtype=np.int32)
    for i in range(y.shape[0]):
        start, stop = pool.begin[y[i]], pool.begin[y[i] + 1]
        count_violations(pool, start, stop, lo[i], hi[i], missing[i], codes[i], violations)
        fewest = np.int32(lo.shape[1] + 1)
        for count in violations[start:stop]:
            fewest = min(fewest, count)
        begin = place(pool.rows, start, stop, first[i])
        nearest = -1
        for low, high in ((begin, stop), (start, begin)):
            for r in range(low, high):
                if violations[r] == fewest and (nearest < 0 or uses[r] < uses[nearest]):
                    nearest = r
        if nearest >= 0:
            uses[nearest] += 1
            out[i] = pool.rows[nearest]
    return out


def fill_boxes(
    boxes_of_sample: Sequence[FeatureBoxes],
    draw: Callable[[FeatureBoxes, np.random.Generator], Table],
    rng: np.random.Generator,
) -> list[Table]:
    """Return one table for the boxes of each sample. All samples have the same number of rows.

    ``draw(boxes, rng)`` returns one row per box, as `points` does.
    """
    at_once = max(1, MOST_CELLS // max(boxes_of_sample[0].lo.size, 1))
    tables = []
    for first in range(0, len(boxes_of_sample), at_once):
        some = boxes_of_sample[first : first + at_once]
        rows = draw(stack_boxes(some), rng)
        tables += [rows.take(part) for part in np.split(np.arange(len(rows)), len(some))]
    return tables


def _clip(
    low: NDArray[np.float32], high: NDArray[np.float32], bottom: float, top: float
) -> tuple[Floats, Floats]:
    """Return the part of boxes inside the value range, or the box if they do not intersect."""
    a, b = low.astype(np.float64), high.astype(np.float64)
    a = np.where(np.isfinite(a), a, np.minimum(bottom, np.where(np.isfinite(b), b, bottom)))
    b = np.where(np.isfinite(b), b, np.maximum(top, a))
    inner_a, inner_b = np.maximum(a, bottom), np.minimum(b, top)
    meets = inner_a <= inner_b
    return np.where(meets, inner_a, a), np.where(meets, inner_b, b)


def _into(
    X: NDArray[np.float32],
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    prior: Prior,
    schema: Schema,
) -> NDArray[np.float32]:
    """Move values to the nearest point of their half-open boxes."""
    top = np.nextafter(high, np.float32(-np.inf))
    moved = np.minimum(np.maximum(X, low), top)
    codes = np.minimum(np.ceil(moved), np.ceil(high) - 1)
    codes = np.clip(codes, prior.low, prior.high)
    return np.where(schema.categorical, codes, moved).astype(np.float32)


def rows_with_known_values(rows: Table, prior: Prior) -> Table:
    """Move every value to the nearest value of the victims, if sketches reveal these values."""
    if not prior.from_sketches:
        return rows
    X = rows.X.copy()
    for f in range(X.shape[1]):
        X[:, f] = nearest(X[:, f], np.unique(_values(prior, f)))
    return Table(X, rows.y)


def nearest_known_values(
    X: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32], prior: Prior
) -> NDArray[np.float32]:
    """Replace values by neighbouring values of the victims inside the same boxes.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Guessed values.
    low, high : float32 array, shape (n, d)
        Boxes ``low <= value < high``.
    prior : Prior
        Contains the values of the victims, as sketches reveal them.

    Returns
    -------
    float32 array, shape (n, d)
        A value is unchanged if neither neighbour lies inside its box.
    """
    out = X.copy()
    values, begin = prior.values
    _move_to_known_values(X, low, high, values, begin, out)
    return out


@kernel
def _move_to_known_values(
    X: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32],
    values: NDArray[np.float32], begin: NDArray[np.int64], out: NDArray[np.float32],
) -> None:  # fmt: skip
    """Write the neighbouring value inside a box, the upper one if both neighbours are inside."""
    for f in range(X.shape[1]):
        start, end = begin[f, 0], begin[f, 1]
        for i in range(X.shape[0]):
            above = end if np.isnan(X[i, f]) else place(values, start, end, X[i, f])
            for at in (above - 1, above):
                if start <= at < end and low[i, f] <= values[at] < high[i, f]:
                    out[i, f] = values[at]


def _missing(boxes: FeatureBoxes, prior: Prior, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which values are missing, bool, shape (n, d).

    The odds are the prior mass of a missing value against that of the box. No random numbers are
    used for features that cannot be missing in any box.
    """
    out = np.zeros(boxes.missing.shape, dtype=bool)
    for f in np.flatnonzero(boxes.missing.any(axis=0)):
        box = (boxes.lo[:, f], boxes.hi[:, f], boxes.codes[:, f])
        mass = _masses(prior.cumulative, f, boxes.y, *box)
        odds = np.where(boxes.missing[:, f], prior.missing[boxes.y, f], 0.0)
        out[:, f] = rng.random(len(boxes.y)) * (odds + mass) < odds
    return out


def _values(prior: Prior, f: int, c: int = -1) -> NDArray[np.float32]:
    """Return sorted values of feature ``f`` in the prior, of all rows or of class ``c``."""
    values, begin = prior.values
    return values[begin[f, c + 1] : begin[f, c + 2]]


def _draw(
    f: int,
    y: NDArray[np.int64],
    edges: tuple[NDArray[np.float32], NDArray[np.float32]],
    box: tuple[Floats, Floats],
    prior: Prior,
    rng: np.random.Generator,
) -> Floats:
    """Draw values inside boxes: local values, or uniform ones, by their prior masses.

    If sketches reveal the values of the victims, one of these values is drawn if the box contains
    one. It is one of the same label, except with probability `UNIFORM_SHARE` or if there is none.
    """
    low, high = box
    out = low + rng.random(len(y)) * (high - low)
    u, pick = rng.random(len(y)), rng.random(len(y))
    values, begin = prior.values
    if prior.from_sketches:
        _draw_known_values(y, *edges, values, begin[f], u, pick, out)
    else:
        span = float(prior.high[f] - prior.low[f])
        _draw_own(y, *edges, low, high, values, begin[f], u, pick, span, bool(prior.whole[f]), out)
    return out


@kernel
def _draw_own(
    y: NDArray[np.int64], lo: NDArray[np.float32], hi: NDArray[np.float32], low: Floats,
    high: Floats, values: NDArray[np.float32], begin: NDArray[np.int64], u: Floats, pick: Floats,
    span: float, integer_valued: bool, out: Floats,
) -> None:  # fmt: skip
    """Write local values of the label, or keep the uniform draws, in proportion to their mass."""
    for i in range(y.shape[0]):
        start, end = begin[y[i] + 1], begin[y[i] + 2]
        if start == end:
            continue
        if integer_valued and np.floor(out[i]) >= low[i]:
            out[i] = np.floor(out[i])
        first, last = place(values, start, end, lo[i]), place(values, start, end, hi[i])
        # masses of the local values and of the uniform distribution inside the box
        own_density = (1 - UNIFORM_SHARE) * (last - first) / (end - start)
        flat = UNIFORM_SHARE * ((high[i] - low[i]) / span if span > 0 else 0.0)
        if last > first and u[i] * (own_density + flat) < own_density:
            out[i] = values[min(first + int(pick[i] * (last - first)), end - 1)]


@kernel
def _draw_known_values(
    y: NDArray[np.int64], lo: NDArray[np.float32], hi: NDArray[np.float32],
    values: NDArray[np.float32], begin: NDArray[np.int64], u: Floats, pick: Floats, out: Floats,
) -> None:  # fmt: skip
    """Write a value inside the box, mostly one of the same label, else one of any label."""
    for i in range(y.shape[0]):
        for k in (0, y[i] + 1):
            if k > 0 and u[i] < UNIFORM_SHARE:
                break
            start, end = begin[k], begin[k + 1]
            first, last = place(values, start, end, lo[i]), place(values, start, end, hi[i])
            if last > first:
                out[i] = values[min(first + int(pick[i] * (last - first)), end - 1)]


@kernel
def _masses(cumulative, f, y, lo, hi, codes):  # type: ignore[no-untyped-def]
    """Return the mass of every box in feature f, float64, shape (n,)."""
    out = np.empty(y.shape[0])
    for i in range(y.shape[0]):
        out[i] = mass_of(cumulative, y[i], f, lo[i], hi[i], codes[i])
    return out


def _codes(
    rule: str,
    f: int,
    boxes: FeatureBoxes,
    edges: tuple[NDArray[np.float32], NDArray[np.float32]],
    prior: Prior,
    rng: np.random.Generator,
) -> Floats:
    """Choose a category code inside the box."""
    n = len(boxes.y)
    codes = np.arange(np.floor(prior.low[f]), np.floor(prior.high[f]) + 1)
    inside = (codes >= edges[0][:, None]) & (codes < edges[1][:, None])
    inside &= allowed(boxes.codes[:, f, None], codes.astype(np.int64)[None])
    weight = np.ones((n, codes.size))
    if rule == "published":  # the last code of an open interval is never guessed
        several = inside.sum(axis=1) > 1
        inside[:, -1] &= ~(several & ~np.isfinite(edges[1]))
    elif rule != "mid":
        for c in range(prior.classes):
            values = _values(prior, f, c)
            if values.size:
                share = (values[:, None] == codes).mean(axis=0)
                weight[boxes.y == c] = (1 - UNIFORM_SHARE) * share + UNIFORM_SHARE / codes.size
    weight = np.where(inside.any(axis=1, keepdims=True), weight * inside, weight)
    total = np.cumsum(weight, axis=1)
    u = rng.random(n) * total[:, -1]
    out = codes[np.minimum((total <= u[:, None]).sum(axis=1), codes.size - 1)]
    if rule == "published":
        free = np.isinf(edges[0]) & np.isinf(edges[1]) & (boxes.codes[:, f] == ANY)
        out = np.where(free, np.nan, out)
    return np.asarray(out, dtype=np.float64)
