"""Redraw the cells of rows, and choose rows that are probably exact.

`ChainedEquations` redraws every cell given the remaining cells of its row. `frequent_rows` returns
each row as often as samples of the table contain it. The blind guesses ``imputed+refined`` and
``frequent`` (`fedtrees.blind_baselines.guesses`) use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.compilation import kernel
from fedtrees.core.schema import Schema, Table

#: Share of the cells that are redrawn. At 0.7, numeric tables gain 0.1 points of reconstruction
#: accuracy, while tables of categories and near-copies (Obesity) lose one point.
REDRAWN = 0.5
#: Number of rows with the nearest predictions, one of which donates its value. 5 and 20 donors are
#: 0.1 points worse.
DONORS = 10
# Largest number of background rows, and smallest share of a category that gets an indicator. Both
# limit the computing time.
_MOST_ROWS, _RARE = 1000, 0.05
# Coefficients are rounded to multiples of 1 / 4096. The choice of a donor must not depend on the
# last bits of the solution of a linear system, which differ between processors.
_STEPS = 4096


class ChainedEquations:
    """Redraw cells given the rest of their row (predictive mean matching).

    A column is predicted from all other columns by ridge regression. Numeric columns are encoded
    as ranks, categorical columns and the label as indicators. A redrawn cell takes the value of a
    background row with a similar prediction.

    Parameters
    ----------
    background : Table
        Background rows, which determine the regression and donate values.
    schema : Schema
        Distinguishes categorical and numeric columns.
    rng : numpy.random.Generator
        Chooses 1,000 background rows if there are more.

    Notes
    -----
    The method is a compromise. Resampling repeats the background rows, and drawing cells given only
    the label loses the dependence between columns.

    References
    ----------
    Little (1988), J. Bus. Econ. Stat. 6(3). Van Buuren and Groothuis-Oudshoorn (2011), J. Stat.
    Softw. 45(3).
    """

    def __init__(self, background: Table, schema: Schema, rng: np.random.Generator) -> None:
        rows = np.sort(rng.permutation(len(background))[:_MOST_ROWS])
        self._X, self._y = background.X[rows], background.y[rows]
        kinds = [f.kind == "categorical" for f in schema.features]
        # Indicators of categorical columns, and values of numeric ones with the rows below each.
        self._values = [
            _frequent(column) if categorical else np.unique(_lowest(column))
            for column, categorical in zip(self._X.T, kinds, strict=True)
        ]
        self._below = [
            np.searchsorted(np.sort(_lowest(column)), np.append(values, np.nan))
            for column, values in zip(self._X.T, self._values, strict=True)
        ]
        self._labels = _frequent(self._y.astype(np.float64))
        self._categorical = np.array(kinds, dtype=bool)
        self._begin = np.cumsum([0, *(self._encode(k, self._X[:1]).shape[1] for k in self._all)])
        Z = self._design(self._X, self._y)
        self._mean = Z.sum(axis=0) // len(Z)
        self._Z = Z - self._mean
        m, p = Z.shape
        # Ranks have variance m^2 / 3. The ridge penalty has the weight of 0.1 m + 0.3 p rows, so
        # that it grows with the number of columns.
        shrunk = (0.1 * m + 0.3 * p) * max(m, 1) ** 2 / 3
        gram = (self._Z.T @ self._Z).astype(np.float64)
        self._precision = np.linalg.inv(gram + shrunk * np.eye(p))

    @property
    def _all(self) -> range:
        return range(self._X.shape[1])

    def redraw(self, table: Table, rng: np.random.Generator) -> Table:
        """Redraw each cell with probability `REDRAWN`, column by column in random order.

        The values of `table` should occur in the background rows. An unknown category is encoded
        like the most frequent one. Labels remain unchanged, and sample weights are dropped.
        """
        X, n = table.X.copy(), len(table)
        Z = self._design(X, table.y) - self._mean
        donors = min(DONORS, len(self._X))
        for k in rng.permutation(X.shape[1]):
            rows = np.flatnonzero(rng.random(n) < REDRAWN)
            beta = self._coefficients(k, rng)
            donor_prediction, prediction = self._Z @ beta, Z[rows] @ beta
            order = np.argsort(donor_prediction, kind="stable")
            low = np.searchsorted(donor_prediction[order], prediction)
            high = np.searchsorted(donor_prediction[order], prediction, side="right")
            # A random position among equal predictions, so that none of them is preferred.
            position = low + rng.integers(0, high - low + 1) - donors // 2
            position = np.clip(position, 0, len(donor_prediction) - donors) + rng.integers(
                0, donors, len(rows)
            )
            donor = order[position]
            X[rows, k] = self._X[donor, k]
            span = slice(self._begin[k], self._begin[k + 1])
            Z[rows, span] = self._Z[donor, span]
        return Table(X, table.y)

    def _coefficients(self, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the regression coefficients of all encoded columns for column k, in fixed point.

        A categorical column is predicted as a random mixture of its indicators. The mixture is
        drawn anew each time, so that similar predictions imply similar probabilities of all values.
        """
        span = slice(self._begin[k], self._begin[k + 1])
        block = self._precision[span, span]
        mixture = rng.normal(size=len(block)) if self._categorical[k] else np.ones(len(block))
        beta = -self._precision[:, span] @ np.linalg.solve(block, mixture)
        beta[span] = 0.0
        return np.asarray(np.rint(_STEPS * beta), dtype=np.int64)

    def _design(self, X: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.int64]:
        label = len(self._X) * (y[:, None] == self._labels)
        return np.column_stack([*(self._encode(k, X) for k in self._all), label]).astype(np.int64)

    def _encode(self, k: int, X: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return ranks among the m background rows, -m to m, or m times an indicator per value."""
        x, values, m = _lowest(X[:, k]), self._values[k], len(self._X)
        if self._categorical[k]:
            return np.asarray(m * (x[:, None] == values), dtype=np.int64)
        at, below = np.searchsorted(values, x), self._below[k]
        occurs = np.append(values, np.nan)[at] == x
        ranks = below[at] + below[at + occurs] - m  # rows below the value, and rows up to it
        return np.asarray(ranks[:, None], dtype=np.int64)


def _lowest(column: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return a column with missing values replaced by minus infinity, below all other values."""
    return np.nan_to_num(column.astype(np.float64), nan=-np.inf)


def _frequent(column: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the values with a share of at least `_RARE`, without the most frequent value.

    The most frequent value needs no indicator, because it is implied if all indicators are 0.
    """
    values, counts = np.unique(_lowest(column), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return values[order[1:][counts[order[1:]] >= _RARE * len(column)]]


#: A row is guessed once more while at least this share of the samples has an unused copy of it. The
#: remaining rows are filled by a consensus, which scores higher for them.
LEAST = 0.2
# Number of rows that are guessed together. The time grows with its square.
_BLOCK = 1000


@kernel
def _agreements(A: NDArray[Any], B: NDArray[Any], width: NDArray[Any]) -> NDArray[Any]:
    """Return whether each pair of rows agrees in all columns, bool, shape (len(A), len(B))."""
    agree = np.zeros((len(A), len(B)), dtype=np.bool_)
    for i in range(len(A)):
        for j in range(len(B)):
            same = True
            for k in range(A.shape[1]):
                x, y = A[i, k], B[j, k]
                if not (abs(x - y) <= width[k] or (np.isnan(x) and np.isnan(y))):
                    same = False
                    break
            agree[i, j] = same
    return agree


@kernel
def _cover(agree: NDArray[Any], samples: int, least: int, free: NDArray[Any]) -> NDArray[Any]:
    """Choose candidates greedily, and mark one agreeing row per sample as used (not `free`).

    The gain of a candidate is the number of samples with a free row that agrees with it. Gains only
    decrease. A candidate whose updated gain is still the largest is therefore the best (lazy
    evaluation).
    """
    n = agree.shape[1] // samples
    gain = np.full(len(agree), samples, dtype=np.int64)
    chosen = np.empty(n, dtype=np.int64)
    taken = np.empty(samples, dtype=np.int64)
    for i in range(n):
        while True:
            best = 0
            for c in range(len(gain)):
                if gain[c] > gain[best]:
                    best = c
            count = 0
            for s in range(samples):
                taken[s] = -1
                for j in range(s * n, (s + 1) * n):
                    if free[j] and agree[best, j]:
                        taken[s] = j
                        count += 1
                        break
            if count == gain[best]:
                break
            gain[best] = count
        if gain[best] < least:
            return chosen[:i]
        chosen[i] = best
        for s in range(samples):
            if taken[s] >= 0:
                free[taken[s]] = False
    return chosen


def frequent_rows(candidates: Table, samples: Sequence[Table], width: NDArray[np.float64]) -> Table:
    """Return n rows: the candidates that occur in most samples, completed by a consensus.

    Rows are chosen by greedy maximum coverage (Nemhauser, Wolsey and Fisher 1978). Each step
    chooses the candidate that agrees in every column with an unused row in most samples, and uses
    up one such row of each sample. If the best candidate occurs in less than a share `LEAST` of
    the samples, the remaining rows are the `matched_consensus` of the unused rows.

    Parameters
    ----------
    candidates : Table
        Rows to choose from. Duplicates are ignored.
    samples : sequence of Table
        Tables of n independent rows each. They are processed in blocks of up to 1,000 rows.
    width : float64 array, shape (d,) or (d + 1,)
        Accepted difference per feature. 0 means equality. A last entry for the label is ignored.
    """
    n, d = samples[0].X.shape
    rows_once = np.unique(np.nan_to_num(_columns(candidates), nan=1e300), axis=0, return_index=True)
    candidates = candidates.take(np.sort(rows_once[1]))
    tight = np.append(np.asarray(width, dtype=np.float64)[:d], 0.0)
    parts = []
    for rows in np.array_split(np.arange(n), -(-n // _BLOCK)):
        pool = Table.concat([t.take(rows) for t in samples])
        agree = _agreements(_columns(candidates), _columns(pool), tight)
        free = np.ones(len(pool), dtype=bool)
        least = max(1, int(np.ceil(LEAST * len(samples))))
        chosen = _cover(agree, len(samples), least, free)
        parts.append(candidates.take(chosen))
        n_left = len(rows) - len(chosen)
        if n_left:
            free_of_sample = np.split(free, len(samples))
            unused_tables = [
                t.take(rows[np.flatnonzero(unused_rows)[:n_left]])
                for t, unused_rows in zip(samples, free_of_sample, strict=True)
            ]
            parts.append(matched_consensus(unused_tables, width))
    return Table.concat(parts)


def _columns(table: Table) -> NDArray[np.float64]:
    return np.column_stack([table.X, table.y]).astype(np.float64)
