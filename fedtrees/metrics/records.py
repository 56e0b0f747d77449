"""Scores of reconstructed rows, errors of rows, and scores of rows that are returned as certain.

The metrics of `fedtrees.metrics.victims_rows` use them. Matching is implemented in
`fedtrees.blind_baselines.matching` and tolerances in `fedtrees.blind_baselines.rows`. The errors of
rows of categorical tables (mean, worst row, inliers and outliers) follow Gorgé et al. (2026), who
reconstruct binary tables from random forests.

A guess that describes the distribution well can have a high score without any information about the
training rows. `specificity` therefore compares it with a reserve of rows that were not used for
training (Gorgé et al. 2026, Appendix D).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.matching import (
    assign,
    assign_most_exact,
    graded_costs,
    matched_accuracy,
    mismatch_counts,
)
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.binning import Cuts, bin_rows

#: Number of fresh samples that the guess is compared with (Gorgé et al. 2026, Appendix D).
FRESH = 100
#: Largest number of rows per sample. 100 matchings of 1,000 rows take seconds.
ROWS = 1000
#: Largest number of rows in each table of the nearest-row test, which compares all pairs of rows.
NEAR_ROWS = 8000
# Number of samples of the training rows, if they are more than the rows of a sample.
_TRAIN_SAMPLES = 10


@dataclass(frozen=True)
class Specificity:
    """Reconstruction accuracy (RA) on the victims' rows, compared with RA on fresh samples.

    Attributes
    ----------
    z : float or None
        (RA on the victims - mean RA on fresh samples) / standard deviation over fresh samples. The
        deviation is corrected for the finite reserve. None if all fresh scores are equal.
    tail : float or None
        Probability of this z or a larger one under a standard normal distribution.
    rank : float
        (1 + number of fresh samples with at least the RA of the victims) / (1 + number of samples).
    victims, fresh : float
        RA on the victims' rows, and mean RA on fresh samples.
    rows : int
        Number of rows per sample.
    """

    z: float | None
    tail: float | None
    rank: float
    victims: float
    fresh: float
    rows: int


def specificity(
    guess: Table,
    truth: Table,
    reserve: Table,
    schema: Schema,
    rng: np.random.Generator,
    *,
    samples: int = FRESH,
) -> Specificity:
    """Compare the reconstruction accuracy of a guess on the victims and on fresh rows.

    Parameters
    ----------
    guess : Table
        m guessed rows.
    truth : Table
        n rows of the victims.
    reserve : Table
        Rows of the same distribution that are in no local data.
    schema : Schema
        Columns of the tables.
    rng : numpy.random.Generator
        Draws the samples.
    samples : int
        Number of fresh samples.

    Returns
    -------
    test : Specificity
        Accuracies and test statistics.

    Raises
    ------
    DataError
        If there are less than 2 reserve rows, less than 2 samples, or no guessed row.

    Notes
    -----
    Gorgé et al. (2026) draw fresh samples of n rows. Here every sample, also of the victims, has
    ``k = min(n, len(reserve) // 2, ROWS)`` rows, drawn without replacement. It is matched with the
    complete guess, because a sample of the guess would lose the matching rows. If k < n, the score
    of the victims is the mean over 10 samples. Fresh samples share rows of the finite reserve,
    which reduces their variance by the factor 1 - k / len(reserve). The deviation is corrected for
    it. All tolerances are those of the victims. To limit the time, only the first 4 k rows of a
    guess are used.
    """
    from scipy.stats import norm

    if len(reserve) < 2 or samples < 2 or len(guess) == 0:
        raise DataError(
            f"specificity needs a guess, 2 reserve rows and 2 samples; got {len(guess)} guessed "
            f"rows, {len(reserve)} reserve rows, {samples} samples"
        )
    width = Tolerance.of(truth, schema).width
    # At most half of the reserve, so that fresh samples differ sufficiently.
    k = max(1, min(len(truth), len(reserve) // 2, ROWS))
    G = sorted_rows(guess.take(np.arange(min(len(guess), 4 * k))))
    T, R = sorted_rows(truth), sorted_rows(reserve)

    def scores(pool: NDArray[np.float64], times: int) -> NDArray[np.float64]:
        samples_of_rows = [rng.choice(len(pool), k, replace=False) for _ in range(times)]
        rows, position = np.unique(np.concatenate(samples_of_rows), return_inverse=True)
        cost = mismatch_counts(pool[rows], G, width)  # a row may be in several samples
        parts = np.split(position.ravel(), times)
        return np.array([matched_accuracy(cost[part], len(width)) for part in parts])

    if k == len(T):
        victims = matched_accuracy(mismatch_counts(T, G, width), len(width))
    else:
        victims = float(np.mean(scores(T, _TRAIN_SAMPLES)))
    fresh = scores(R, samples)
    # Correction for samples without replacement from a finite reserve, see Notes.
    deviation = float(fresh.std(ddof=1) / np.sqrt(1 - k / len(reserve)))
    z = (victims - float(fresh.mean())) / deviation if deviation > 0 else None
    return Specificity(
        z=z,
        tail=None if z is None else float(norm.sf(z)),
        rank=float((1 + (fresh >= victims).sum()) / (1 + samples)),
        victims=victims,
        fresh=float(fresh.mean()),
        rows=k,
    )


def nearest_row(
    guess: Table, truth: Table, reserve: Table, schema: Schema, rng: np.random.Generator
) -> float:
    """Return the share of guessed rows that are closer to a training row than to any reserve row.

    The distance is Gower's, with the ranges of the training rows. A tie counts one half. The larger
    table is sampled to the size of the smaller one, so that chance is 0.5.

    Parameters
    ----------
    guess : Table
        Guessed rows. At most the first `NEAR_ROWS` are used.
    truth : Table
        Training rows of the victims. At most `NEAR_ROWS` are used, drawn at random.
    reserve : Table
        Rows of the same distribution that are in no local data, sampled likewise.
    schema : Schema
        Columns of the tables.
    rng : numpy.random.Generator
        Draws the samples.

    Returns
    -------
    share : float
        Between 0 and 1, where 0.5 is chance.

    Raises
    ------
    DataError
        If one of the tables has no rows.
    """
    if min(len(guess), len(truth), len(reserve)) == 0:
        raise DataError("the nearest-row test needs guessed, true and reserve rows")
    span = Tolerance.of(truth, schema).range
    size = min(len(truth), len(reserve), NEAR_ROWS)
    G = sorted_rows(guess.take(np.arange(min(len(guess), NEAR_ROWS))))
    pools = [sorted_rows(t) for t in (truth, reserve)]
    cut = [p[rng.choice(len(p), size, replace=False)] if len(p) > size else p for p in pools]
    to_truth, to_reserve = (_nearest(G, pool, span) for pool in cut)
    # Sums of floats are rounded, so that equal distances can differ in their last bits.
    tie = np.isclose(to_truth, to_reserve, rtol=0, atol=1e-12)
    return float(np.where(tie, 0.5, to_truth < to_reserve).mean())


@kernel
def _nearest(G: NDArray[Any], P: NDArray[Any], span: NDArray[Any]) -> NDArray[Any]:
    """Return the smallest Gower distance (times c) of every row of G to the rows of P."""
    out = np.empty(G.shape[0])
    for i in range(G.shape[0]):
        best = np.inf
        for j in range(P.shape[0]):
            total = 0.0
            for k in range(G.shape[1]):
                a, b = G[i, k], P[j, k]
                if np.isnan(a) or np.isnan(b):
                    total += 0.0 if np.isnan(a) and np.isnan(b) else 1.0
                elif span[k] > 0:
                    total += min(abs(a - b) / span[k], 1.0)
                else:
                    total += 0.0 if a == b else 1.0
                if total >= best:
                    break
            best = min(best, total)
        out[i] = best
    return out


#: A row is close if at least this share of its columns agrees.
CLOSE_SHARE = 0.9
# Steps per column in the Gower matching. Finer steps change the mean distance by less than 1%.
_GOWER_STEPS = 16


@dataclass(frozen=True, eq=False)
class RecordScores:
    """Scores of guessed rows. All shares are over the n true rows and lie in [0, 1].

    Attributes
    ----------
    ra : float
        Reconstruction accuracy: share of the cells, including the label, that agree.
    ra_top : float or None
        The same for selected columns and the label, after a separate matching. None if no columns
        were selected.
    exact_rows, close_rows : float
        Share of the rows that agree in all columns, and in at least 90% of the columns.
    bit_exact_rows : float
        Share of the rows for which a guessed row has the same float32 values and label.
    per_feature : mapping of str to float
        Share of the rows that agree in a column, including the label under the name of the target.
    target_error : float or None
        Mean error of numeric targets as a share of their range, for rows that were matched by their
        features only. The error of a row is at most 1, and 1 for an unmatched row. None for
        classification, or if all targets are equal.
    gower : float
        Mean Gower distance of matched rows, after a separate matching. 0 is perfect.
    hamming : float or None
        Share of wrong bits, including the label. None unless all true values are 0 or 1.
    rows, guessed : int
        Number of true and of guessed rows.
    errors : mapping of str to float
        Standard errors of ``ra``, ``exact_rows``, ``close_rows`` and of every column (``ra_of
        COLUMN``), if the true rows are a sample. Otherwise 0.
    """

    ra: float
    ra_top: float | None
    exact_rows: float
    close_rows: float
    bit_exact_rows: float
    per_feature: Mapping[str, float]
    target_error: float | None
    gower: float
    hamming: float | None
    rows: int
    guessed: int
    errors: Mapping[str, float]


def score_records(
    guess: Table,
    truth: Table,
    schema: Schema,
    top: Sequence[str] = (),
    limit: int | None = None,
) -> RecordScores:
    """Match guessed with true rows and score the pairs.

    Parameters
    ----------
    guess : Table
        m guessed rows. Only the first `limit` rows are used, so that an attack does not gain by
        guessing more rows than exist.
    truth : Table
        n true rows. Unmatched rows score 0 (Gower distance 1), so that an attack does not gain by
        guessing fewer rows either.
    schema : Schema
        Columns of the tables.
    top : sequence of str
        Features of the score ``ra_top``. Empty: the score is not computed.
    limit : int, optional
        Largest number of guessed rows that are matched. None: n. If `truth` is a random sample of a
        larger table, give the number of rows of that table. For example, the metric scores 2,000 of
        20,000 true rows, and 20,000 guessed rows may be matched with them.

    Returns
    -------
    scores : RecordScores
        Shares over the true rows.

    Raises
    ------
    DataError
        If the numbers of columns differ, there is no true row, a feature in `top` is unknown, or
        there are too many rows to match.

    Notes
    -----
    Reconstruction accuracy follows Vero et al. (2023, Eq. 7) and Di Gennaro et al. (2025, Eq. 14):
    one matching minimises the number of cells that disagree. Among equally good matchings, the one
    with most exact rows is used. Both tables are sorted first, so that the remaining ties depend
    only on the values of the rows and not on their order.
    """
    if len(truth) == 0:
        raise DataError("no true rows to score against")
    if guess.X.shape[1] != truth.X.shape[1]:
        raise DataError(
            f"the guess has {guess.X.shape[1]} features, the true rows have {truth.X.shape[1]}"
        )
    tolerance = Tolerance.of(truth, schema)
    counted = min(len(guess), len(truth) if limit is None else limit)
    A, B = sorted_rows(truth), sorted_rows(guess.take(np.arange(counted)))
    n, names = len(truth), (*schema.names, schema.target)
    agree = _agreement(A, B, tolerance.width)
    ra = float(agree.sum() / agree.size)
    share = agree.mean(axis=1)
    # The margin accepts shares such as 9/10 that are rounded down.
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
        # Differences of bits are 0 or 1 and all tolerances are below 1, so that the same matching
        # minimises the Hamming distance.
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
            limit or n,
        ),
    )


def _errors(
    by_row: Mapping[str, NDArray[Any]], sampled: int, population_size: int
) -> dict[str, float]:
    """Return standard errors of means over a sample drawn without replacement.

    ``1 - sampled / whole`` is the finite population correction.
    """
    scale = np.sqrt((1 - sampled / population_size) / sampled)
    return {name: float(values.std() * scale) for name, values in by_row.items()}


def sorted_rows(table: Table) -> NDArray[np.float64]:
    """Return features and label, float64, shape (n, d + 1), with rows in lexicographic order."""
    rows = np.column_stack([table.X.astype(np.float64), table.y.astype(np.float64)])
    return np.ascontiguousarray(rows[np.lexsort(rows.T[::-1])])


def _target_error(
    A: NDArray[np.float64], B: NDArray[np.float64], tolerance: Tolerance
) -> float | None:
    """Return the mean error of targets as a share of their range, None if all are equal."""
    error, span = np.ones(len(A)), float(tolerance.range[-1])
    if not span:
        return None
    if len(B):
        # Both tables are sorted. Shuffle one, so that rows with equal features are not matched in
        # the order of their targets.
        B = B[np.random.default_rng(0).permutation(len(B))]
        true_features, guessed_features = (np.ascontiguousarray(rows[:, :-1]) for rows in (A, B))
        pair = assign(mismatch_counts(true_features, guessed_features, tolerance.width[:-1]))
        matched = np.flatnonzero(pair >= 0)
        error[matched] = np.abs(A[matched, -1] - B[pair[matched], -1]) / span
    return float(np.minimum(error, 1.0).mean())


def _agreement(
    A: NDArray[np.float64], B: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which columns of every true row agree with its matched guess, bool, shape (n, c)."""
    agree = np.zeros(A.shape, dtype=bool)
    if len(B) == 0:
        return agree
    pair = assign_most_exact(mismatch_counts(A, B, width))
    matched = np.flatnonzero(pair >= 0)
    a, b = A[matched], B[pair[matched]]
    with np.errstate(invalid="ignore"):
        agree[matched] = (np.abs(a - b) <= width) | (np.isnan(a) & np.isnan(b))
    return agree


def _top_score(
    A: NDArray[np.float64],
    B: NDArray[np.float64],
    schema: Schema,
    top: Sequence[str],
    tolerance: Tolerance,
) -> float:
    """Return the reconstruction accuracy of selected features and the label."""
    for name in top:
        if name not in schema.names:
            raise DataError(f"unknown top feature {name!r}{did_you_mean(name, schema.names)}")
    columns = [schema.names.index(name) for name in top] + [A.shape[1] - 1]
    cost = mismatch_counts(A[:, columns], B[:, columns], tolerance.width[columns])
    return matched_accuracy(cost, len(columns))


def gower_distance(
    A: NDArray[np.float64], B: NDArray[np.float64], span: NDArray[np.float64]
) -> float:
    """Return the mean Gower distance of the true rows to their matched guesses (Gower 1971).

    The distance of two rows is the mean of ``min(|x - g| / span, 1)`` over the columns. A missing
    value has the distance 1 to a value and 0 to another missing value.

    Parameters
    ----------
    A : float64 array, shape (n, c)
        True rows.
    B : float64 array, shape (m, c)
        Guessed rows.
    span : float64 array, shape (c,)
        Range of every true column. 0 means that values are compared by equality.

    Returns
    -------
    distance : float
        Between 0 and 1. An unmatched true row counts 1.

    Notes
    -----
    Equal rows are paired first. An optimal matching can always do so, because Gower's distance is a
    metric. The remaining rows are matched with distances rounded to 16 steps per column (fewer for
    more than 15 columns, so that the cost of a pair fits one byte). The distance itself is not
    rounded. On Stroke and Pima the result is less than 1% above the optimum.
    """
    rest_a, rest_b = _without_equal_rows(A, B)
    unmatched = max(len(A) - len(B), 0)
    if len(rest_a) == 0 or len(rest_b) == 0:
        return unmatched / len(A)
    steps = max(1, min(_GOWER_STEPS, 255 // A.shape[1]))
    weight = np.full(A.shape[1], steps)
    # Costs are rounded to steps, and the distances of the pairs are computed exactly below.
    pair = assign(graded_costs(rest_a, rest_b, span, weight))
    matched = np.flatnonzero(pair >= 0)
    a, b = rest_a[matched], rest_b[pair[matched]]
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.where(span > 0, np.abs(a - b) / span, (a != b).astype(float))
    distance = np.where(
        np.isnan(a) & np.isnan(b), 0.0, np.where(np.isnan(a) | np.isnan(b), 1, distance)
    )
    total = np.minimum(distance, 1.0).mean(axis=1).sum()
    return float((total + unmatched) / len(A))


def _without_equal_rows(
    A: NDArray[np.float64], B: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Remove a maximum number of pairs of equal rows from both arrays."""
    # Replace NaN by a value that no float32 column can contain, so that missing values are equal.
    both = np.nan_to_num(np.concatenate([A, B]), nan=1e300)
    _, group = np.unique(both, axis=0, return_inverse=True)
    group = group.ravel()
    unpaired_rows = []
    for groups, other_groups in (
        (group[: len(A)], group[len(A) :]),
        (group[len(A) :], group[: len(A)]),
    ):
        # A row is paired if its rank among equal rows is below the number of equal rows in the
        # other table.
        n_other = np.bincount(other_groups, minlength=len(both))
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], groups[order])
        rank = np.arange(len(groups)) - starts
        unpaired = np.empty(len(groups), dtype=bool)
        unpaired[order] = rank >= n_other[groups[order]]
        unpaired_rows.append(unpaired)
    return A[unpaired_rows[0]], B[unpaired_rows[1]]


def row_errors(
    guess: Table, truth: Table, inlier: NDArray[np.bool_], known_columns: Sequence[int] = ()
) -> dict[str, Any]:
    """Match guessed with true rows by their features (Gorgé et al. 2026), ignoring labels.

    Parameters
    ----------
    guess : Table
        m rows of category codes. Only the first n are used.
    truth : Table
        n true rows. All cells of an unmatched row are wrong.
    inlier : bool array, shape (n,)
        Result of `inliers`.
    known_columns : sequence of int
        Columns that the adversary knew. They are used for the matching, and do not count as errors
        or as cells.

    Returns
    -------
    errors : dict of str to float or None
        ``row_error``: share of wrong cells (Hamming error). ``worst_row``: the same in the worst
        row. ``inlier_error``, ``outlier_error``: the same in inliers and outliers, None if there
        are none. ``right_rows``: share of rows without a wrong cell.

    Raises
    ------
    DataError
        If there is no true row, or the numbers of columns differ.
    """
    if not len(truth):
        raise DataError("no true rows to score against")
    n, d = truth.X.shape
    guessed = guess.X[: min(len(guess), n)]
    cost = mismatch_counts(truth.X, guessed, np.zeros(d))
    pair = assign(cost)
    wrong = np.ones(n)
    matched = pair >= 0
    unknown_columns = np.setdiff1d(np.arange(d), known_columns)
    # Known columns took part in the matching, and only the remaining columns count as errors.
    if len(unknown_columns) < d:
        cost = mismatch_counts(
            truth.X[:, unknown_columns], guessed[:, unknown_columns], np.zeros(len(unknown_columns))
        )
    wrong[matched] = cost[np.flatnonzero(matched), pair[matched]] / len(unknown_columns)
    parts = [float(wrong[m].mean()) if m.any() else None for m in (inlier, ~inlier)]
    return {
        "row_error": float(wrong.mean()), "worst_row": float(wrong.max()),
        "inlier_error": parts[0], "outlier_error": parts[1],
        "right_rows": float((wrong == 0).mean()),
    }  # fmt: skip


def inliers(truth: Table) -> NDArray[np.bool_]:
    """Return which rows are inliers of an isolation forest that is fitted to them, bool (n,).

    As in Gorgé et al. (2026), the forest has the default parameters of scikit-learn and the random
    state 0, and inliers have a positive decision function.
    """
    return np.frombuffer(_inliers(truth.X.tobytes(), *truth.X.shape, truth.X.dtype.str), dtype=bool)


@lru_cache(maxsize=16)
def _inliers(rows: bytes, n: int, width: int, kind: str) -> bytes:
    """Compute `inliers` as bytes. The result is cached, because all attacks use the same rows."""
    from sklearn.ensemble import IsolationForest

    X = np.frombuffer(rows, dtype=kind).reshape(n, width)
    decision = IsolationForest(random_state=0).fit(X).decision_function(X)
    return np.asarray(decision > 0).tobytes()


#: Largest error of a numeric target in a returned row, as a share of the range of true targets.
TARGET_ERROR = 1e-4


def score_returned_rows(
    returned: Table,
    truth: Mapping[str, Table],
    cuts: Cuts,
    owner: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Match returned rows with the victims' rows by all bins and the label.

    Parameters
    ----------
    returned : Table
        m returned rows.
    truth : mapping of str to Table
        True rows by victim.
    cuts : Cuts
        Bins of the training. Missing values form a separate bin.
    owner : sequence of str, length m, optional
        Claimed owner of every returned row.

    Returns
    -------
    scores : dict of str to float or None
        ``returned_rows``: number of returned rows. ``returned_right``: share of the true rows that
        were returned, matched one to one. ``returned_wrong``: share of the returned rows that match
        no true row, or only true rows that are matched already, None if no row was returned.
        ``returned_owned``: share of the true rows that were returned with their owner, None if no
        owners were claimed.

    Raises
    ------
    DataError
        If there is no true row, or the number of owners is not m.
    """
    n = sum(map(len, truth.values()))
    if n == 0:
        raise DataError("no true rows to score against")
    if owner is not None and len(owner) != len(returned):
        raise DataError(f"{len(owner)} owners for {len(returned)} returned rows")
    y = np.unique(np.concatenate([table.y for table in truth.values()]))
    keys = _keys(returned, cuts, y)
    owner_keys = [(name, key) for name, table in truth.items() for key in _keys(table, cuts, y)]
    # The intersection of multisets counts every true row at most once.
    right = (Counter(keys) & Counter(key for _, key in owner_keys)).total()
    owned = None
    if owner is not None:
        owned = (Counter(zip(owner, keys, strict=True)) & Counter(owner_keys)).total() / n
    wrong = 1 - right / len(keys) if keys else None
    return {
        "returned_rows": float(len(keys)), "returned_right": right / n,
        "returned_wrong": wrong, "returned_owned": owned,
    }  # fmt: skip


def _keys(table: Table, cuts: Cuts, labels: NDArray[Any]) -> list[bytes]:
    """Return bins and label of every row as bytes.

    A numeric target is replaced by the index of the true target that it equals.
    """
    codes = bin_rows(table.X, cuts).codes.astype(np.int64)
    # Missing values get the separate bin -1.
    missing = np.isnan(table.X)
    y = table.y if labels.dtype.kind == "i" else _which(table.y.astype(np.float64), labels)
    rows = np.column_stack([np.where(missing, -1, codes), y.astype(np.int64)])
    return [row.tobytes() for row in rows]


def _which(y: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the true target within `TARGET_ERROR` of each number, -1 if none is."""
    # Borders at the midpoints of neighbouring targets give the nearest target of every number.
    nearest = np.searchsorted((targets[1:] + targets[:-1]) / 2, y)
    return np.where(np.abs(y - targets[nearest]) <= TARGET_ERROR * np.ptp(targets), nearest, -1)
