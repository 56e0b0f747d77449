"""The victims' columns together, and rows with these columns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.column import Column, filled, fullest, together
from fedtrees.attacks.evidence.gridded import on_grid
from fedtrees.attacks.evidence.rows_held import victims_rows
from fedtrees.attacks.evidence.sketched import all_sketched, are_drawn, columns_of, ranks_told
from fedtrees.core.schema import Schema, Table
from fedtrees.core.view import View
from fedtrees.guessing.imputation import ChainedEquations
from fedtrees.guessing.recipes import FEWEST_ROWS, usual_guess
from fedtrees.messages.boosting import BaseScore

Longs = NDArray[np.int64]
MOST_LIKELY_ROWS = 2000  # attacks compare every row with every such row in every tree
# Of columns, as their mean, for rows made of them to stand in place of own ones.
LEAST_RELIABLE = 0.5


def pooled(view: View) -> tuple[Column, ...] | None:
    """Return the columns of all victims together.

    None unless every victim's sketch is seen, or the sum of everybody's counts on a grid.
    """
    if not all_sketched(view):
        return on_grid(view)
    return tuple(together(parts) for parts in zip(*columns_of(view).values(), strict=True))


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


def likely_rows(
    view: View, rng: np.random.Generator, owner: str | None = None, rows: int = 0
) -> Table | None:
    """Return rows as the victims' may be, by `rows_with`; None unless every sketch is seen.

    Their columns depend on one another as in the rows of the prior (`View.prior_rows`). They are as
    many as the victims' rows, but no more than rows of the prior or `MOST_LIKELY_ROWS`. None, too,
    where these rows, or declared ranges, say more of the victims' columns than noisy sketches do.
    Of one ``owner``, who has so many ``rows``, its own sketch counts.
    """
    columns = columns_of(view).get(owner) if owner is not None else None
    columns, alone = (pooled(view), False) if columns is None else (columns, True)
    if columns is None or not view.schema.classes:
        return None
    likely = view.prior_rows or Table.empty(view.schema)
    drawn = are_drawn(view)
    if (len(likely) or drawn) and ranks_told(view, columns) < LEAST_RELIABLE:
        return None
    most = fullest(columns)
    of = max(most, rows if alone else victims_rows(view))
    n = min(of, max(len(likely), MOST_LIKELY_ROWS))
    of = most if drawn else of  # what is drawn stands for fewer rows than there are
    columns = filled(columns, likely)
    owner = np.zeros(n, dtype=np.int64)
    y = labels_of(label_shares(view), owner, rng)
    return rows_with(columns, of, likely, y, redraws_of(likely, view.schema, rng), rng)


def label_shares(view: View) -> NDArray[np.float64]:
    """Return the victims' share of every class: by the base score, else as in the prior's rows.

    The base score, unless it is a fixed one, is the label mean of all rows. The classes of the
    principals' own rows are subtracted from what it says of all rows.
    """
    classes = max(len(view.schema.classes), 2)
    own = view.rows or Table.empty(view.schema)
    mine = np.bincount(own.y, minlength=classes).astype(np.float64)
    told = [m for _, m in view.messages(BaseScore)]
    if told and view.parameters.get("base_score") is None:
        margin = told[0].margin.astype(np.float64)
        odds = np.array([1.0, np.exp(margin[0])]) if len(margin) == 1 else np.exp(margin)
        rest = np.maximum(view.n_rows * odds / odds.sum() - mine, 0.0)
        if rest.sum() > 0:
            return np.asarray(rest / rest.sum())
    likely = view.prior_rows
    if likely is None or not len(likely):
        return np.full(classes, 1 / classes)
    return np.asarray(np.bincount(likely.y, minlength=classes) / len(likely))


def labels_of(share: NDArray[np.float64], owner: Longs, rng: np.random.Generator) -> Longs:
    """Return labels of rows, the same share of every owner's as near as whole rows allow."""
    y = np.empty(len(owner), dtype=np.int64)
    for k in np.unique(owner):
        mine = np.flatnonzero(owner == k)
        ends = np.rint(np.cumsum(share) * len(mine)).astype(np.int64)
        y[rng.permutation(mine)] = np.searchsorted(ends, np.arange(len(mine)), side="right")
    return np.minimum(y, len(share) - 1)
