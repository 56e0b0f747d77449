"""Score reconstructed rows against the true ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.matching import assign, assign_most_exact, graded_costs, mismatch_counts
from fedtrees.guessing.tolerance import Tolerance

#: A row is close when at least this share of its columns agrees.
CLOSE_SHARE = 0.9
# Steps per column in the Gower matching; finer steps change the mean distance by under 1%.
_GOWER_STEPS = 16


@dataclass(frozen=True, eq=False)
class RecordScores:
    """How much of the true rows a guess reconstructs. Shares lie in [0, 1]."""

    ra: float  # reconstruction accuracy: share of (row, column) cells that agree, label included
    ra_top: float | None  # the same on the named columns and the label, with a matching of its own
    # exact_rows, close_rows: share of true rows whose pair agrees in every column, in at least 90%
    # of the columns
    exact_rows: float
    close_rows: float
    # share of true rows that were guessed to the last bit of every float32, label included
    bit_exact_rows: float
    # share of true rows whose pair agrees in that column; the label under its own name
    per_feature: Mapping[str, float]
    # mean distance of the targets of rows that are matched by their features alone, in parts of the
    # true range and at most 1, which an unmatched row counts; None where rows have classes
    target_error: float | None
    gower: float  # mean Gower distance of matched rows (0 is perfect), with a matching of its own
    hamming: float | None  # share of wrong bits, label included; only for tables of zeros and ones
    # rows, guessed: True rows n and guessed rows m
    rows: int
    guessed: int
    # standard errors of ``ra``, ``exact_rows``, ``close_rows`` and, as ``ra_of COLUMN``, of every
    # column, as estimates from a sample of `most` true rows; 0 where they are all
    errors: Mapping[str, float]


def score_records(
    guess: Table,
    truth: Table,
    schema: Schema,
    top: Sequence[str] = (),
    most: int | None = None,
) -> RecordScores:
    """Match guessed with true rows and score the pairs.

    Raises `DataError`: widths differ, no true rows, an unknown top feature, or too many rows to
    match.

    `guess`: m rows in any order. Where m > n the first n count: the order is the guesser's ranking,
    and handing in more rows than there are must not pay.
    `truth`: n true rows. Where m < n the n - m unmatched rows score 0 (Gower distance 1), so that
    guessing fewer rows never pays either.
    `top`: Features of the top score; () for none.
    `most`: How many guessed rows count, default n; more where the true rows are a sample of so
    many.

    Notes
    -----
    RA and its columns follow Vero et al. Eq. 7 and Di Gennaro et al. Eq. 14: one matching that
    minimises all mismatches. Among equally good matchings the one with most exact rows is taken;
    what ties then remain depend on the values of the rows only, not on their order: both tables
    are sorted first.
    """
    if len(truth) == 0:
        raise DataError("no true rows to score against")
    if guess.X.shape[1] != truth.X.shape[1]:
        raise DataError(
            f"the guess has {guess.X.shape[1]} features, the true rows have {truth.X.shape[1]}"
        )
    tolerance = Tolerance.of(truth, schema)
    counted = min(len(guess), len(truth) if most is None else most)
    A, B = sorted_rows(truth), sorted_rows(guess.take(np.arange(counted)))
    n, names = len(truth), (*schema.names, schema.target)
    agree = _agreement(A, B, tolerance.width, most_exact=True)
    ra = float(agree.sum() / agree.size)
    share = agree.mean(axis=1)
    close = share >= CLOSE_SHARE - 1e-12
    binary = bool(np.isin(A, (0.0, 1.0)).all())
    return RecordScores(
        ra=ra,
        ra_top=_top_score(A, B, schema, top, tolerance) if top else None,
        exact_rows=float(agree.all(axis=1).mean()),
        close_rows=float(close.mean()),
        bit_exact_rows=1.0 - len(_without_equal_rows(A, B)[0]) / n,
        per_feature=dict(zip(names, agree.mean(axis=0).tolist(), strict=True)),
        target_error=None if schema.classes else _target_error(A, B, tolerance),
        gower=gower_distance(A, B, tolerance.range),
        # Differences of bits are 0 or 1 and every tolerance is below 1: the matching is the same.
        hamming=1.0 - ra if binary else None,
        rows=n,
        guessed=len(guess),
        errors=_errors(
            {
                "ra": share,
                "exact_rows": share == 1,
                "close_rows": close,
                **{f"ra_of {name}": right for name, right in zip(names, agree.T, strict=True)},
            },
            n,
            most or n,
        ),
    )


def _errors(by_row: Mapping[str, NDArray[Any]], sampled: int, whole: int) -> dict[str, float]:
    """Return standard errors of means over a sample drawn without replacement."""
    scale = np.sqrt((1 - sampled / whole) / sampled)
    return {name: float(values.std() * scale) for name, values in by_row.items()}


def sorted_rows(table: Table) -> NDArray[np.float64]:
    """Return features and label as one array, shape (n, d + 1), rows in lexicographic order."""
    rows = np.column_stack([table.X.astype(np.float64), table.y.astype(np.float64)])
    return np.ascontiguousarray(rows[np.lexsort(rows.T[::-1])])


def _target_error(
    A: NDArray[np.float64], B: NDArray[np.float64], tolerance: Tolerance
) -> float | None:
    """Return the mean distance of targets in parts of their range, None if all are the same."""
    off, span = np.ones(len(A)), float(tolerance.range[-1])
    if not span:
        return None
    if len(B):
        # both are sorted: among rows with equal features, targets must not decide
        B = B[np.random.default_rng(0).permutation(len(B))]
        mine, guessed = (np.ascontiguousarray(rows[:, :-1]) for rows in (A, B))
        pair = assign(mismatch_counts(mine, guessed, tolerance.width[:-1]))
        matched = np.flatnonzero(pair >= 0)
        off[matched] = np.abs(A[matched, -1] - B[pair[matched], -1]) / span
    return float(np.minimum(off, 1.0).mean())


def _agreement(
    A: NDArray[np.float64],
    B: NDArray[np.float64],
    width: NDArray[np.float64],
    most_exact: bool = False,
) -> NDArray[np.bool_]:
    """Return which columns of every true row agree with its pair, shape (n, c)."""
    agree = np.zeros(A.shape, dtype=bool)
    if len(B) == 0:
        return agree
    pair = (assign_most_exact if most_exact else assign)(mismatch_counts(A, B, width))
    matched = np.flatnonzero(pair >= 0)
    a, b = A[matched], B[pair[matched]]
    with np.errstate(invalid="ignore"):
        agree[matched] = (np.abs(a - b) <= width) | (np.isnan(a) & np.isnan(b))
    return agree


def ra_only(
    guess: NDArray[np.float64], truth: NDArray[np.float64], width: NDArray[np.float64]
) -> float:
    """Return RA alone, of row arrays (m, c) and (n, c) as they are."""
    return float(_agreement(truth, guess, width).mean())


def _top_score(
    A: NDArray[np.float64],
    B: NDArray[np.float64],
    schema: Schema,
    top: Sequence[str],
    tolerance: Tolerance,
) -> float:
    for name in top:
        if name not in schema.names:
            raise DataError(f"unknown top feature {name!r}{did_you_mean(name, schema.names)}")
    columns = [schema.names.index(name) for name in top] + [A.shape[1] - 1]
    return ra_only(B[:, columns], A[:, columns], tolerance.width[columns])


def gower_distance(
    A: NDArray[np.float64], B: NDArray[np.float64], span: NDArray[np.float64]
) -> float:
    """Return the mean Gower distance of the true rows to their matched guesses.

    `A, B`: float64 array, shapes (n, c) and (m, c). True and guessed rows.
    `span`: float64 array, shape (c,). Range of the true column; 0 means comparison by equality.

    Returns: In [0, 1]; an unmatched true row counts 1. Per column ``min(|x - g| / span, 1)``, a
    missing value counts 1 against any value and 0 against another missing one.

    Notes
    -----
    Equal rows are paired first, which an optimal matching may always do since Gower's distance is
    a metric. The rest is matched on distances rounded to 16 steps per column (fewer above 15
    columns, so that a row fits a byte); the distance itself is not rounded. On Stroke and Pima
    the result is under 1% above the optimum.
    """
    left_a, left_b = _without_equal_rows(A, B)
    unmatched = max(len(A) - len(B), 0)
    if len(left_a) == 0 or len(left_b) == 0:
        return unmatched / len(A)
    steps = max(1, min(_GOWER_STEPS, 255 // A.shape[1]))
    weight = np.full(A.shape[1], steps)
    pair = assign(graded_costs(left_a, left_b, span, weight))
    matched = np.flatnonzero(pair >= 0)
    a, b = left_a[matched], left_b[pair[matched]]
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(span > 0, np.abs(a - b) / span, (a != b).astype(float))
    apart = np.where(np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(a) | np.isnan(b), 1, apart))
    total = np.minimum(apart, 1.0).mean(axis=1).sum()
    return float((total + unmatched) / len(A))


def _without_equal_rows(
    A: NDArray[np.float64], B: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Remove as many pairs of equal rows as there are from both arrays."""
    # NaN becomes a value no float32 column can hold, so that missing equals missing.
    both = np.nan_to_num(np.concatenate([A, B]), nan=1e300)
    _, group = np.unique(both, axis=0, return_inverse=True)
    group = group.ravel()
    keep = []
    for mine, other in ((group[: len(A)], group[len(A) :]), (group[len(A) :], group[: len(A)])):
        spare = np.bincount(other, minlength=len(both))
        order = np.argsort(mine, kind="stable")
        starts = np.searchsorted(mine[order], mine[order])
        rank = np.arange(len(mine)) - starts
        kept = np.empty(len(mine), dtype=bool)
        kept[order] = rank >= spare[mine[order]]
        keep.append(kept)
    return A[keep[0]], B[keep[1]]
