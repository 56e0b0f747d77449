"""Prepare tables for guesses of rows: tolerances, numeric targets, related columns and precisions.

A tolerance is the difference up to which a guessed value counts as correct. Metrics compute
tolerances from the true rows (`Tolerance.of`). An adversary, who does not know these, estimates
them from background rows and declared ranges (`estimated_width`).

A numeric target is represented as an additional feature. Blind guesses and attacks are written
for classification. For regression, the target becomes the last feature, all rows get the same
class, and the result is converted back.

The module also finds related columns by the similarity of their names, limits the number of
guessed rows for large tables, and determines the precision of a numeric column as a power of ten.
Guesses of values are rounded to this precision, because for example an age is usually an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Feature, Schema, Table

#: Tolerance as a multiple of the standard deviation of a column. An interval of this half-width
#: around the mean contains a quarter of a normal distribution (Vero et al. 2023, Sec. 4; Di Gennaro
#: et al., Eq. 14).
SIGMA_SHARE = 0.319


@dataclass(frozen=True, eq=False)
class Tolerance:
    """Tolerances and ranges of the columns of a table.

    Attributes
    ----------
    width : float64 array, shape (d + 1,)
        Largest accepted difference per feature and, last, of the label. 0 means equality.
    range : float64 array, shape (d + 1,)
        Largest minus smallest value of every continuous column, 0 for categorical columns. It
        normalises distances (Gower 1971).
    """

    width: NDArray[np.float64]
    range: NDArray[np.float64]

    @staticmethod
    def of(truth: Table, schema: Schema) -> Tolerance:
        """Compute tolerances from rows, usually the true ones.

        Parameters
        ----------
        truth : Table
            Rows. Missing values are ignored.
        schema : Schema
            Distinguishes continuous columns from categorical ones.

        Returns
        -------
        tolerance : Tolerance
            The width is 0.319 population standard deviations for continuous columns and numeric
            targets. It is 0 for categorical columns, class labels, constant columns and columns
            without values.
        """
        X = np.column_stack([truth.X.astype(np.float64), truth.y])
        width, span = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        for k in np.flatnonzero(~np.append(schema.categorical, len(schema.classes) > 0)):
            present = X[~np.isnan(X[:, k]), k]
            if len(present):
                width[k] = SIGMA_SHARE * present.std()
                span[k] = np.ptp(present)
        return Tolerance(width, span)


def estimated_width(
    background: Table | None, schema: Schema, low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Estimate tolerances with the knowledge of an adversary.

    Parameters
    ----------
    background : Table or None
        Background rows. They determine the standard deviation of columns with two or more values.
    schema : Schema
        Distinguishes continuous columns from categorical ones.
    low, high : float64 array, shape (d,)
        Range of each column. The standard deviation of a uniform distribution on this range is used
        for the remaining columns.

    Returns
    -------
    width : float64 array, shape (d + 1,)
        Tolerance per feature, and 0 for the label.
    """
    sigma = np.append((high - low) / np.sqrt(12), 0.0)
    width = np.where(np.append(schema.categorical, True), 0.0, SIGMA_SHARE * sigma)
    if background is not None:
        has_values = np.append((~np.isnan(background.X)).sum(axis=0) > 1, False)
        width[has_values] = Tolerance.of(background, schema).width[has_values]
    return np.asarray(width)


def most_similar_column(schema: Schema, columns: Iterable[int], feature: int) -> int:
    """Return which of several columns has the name that is most similar to that of a feature.

    For example, *mean radius* is similar to *worst radius*, and their values are correlated.

    Columns and the feature are positions in the schema. The result is an index into `columns`.
    """
    names = [f.name for f in schema.features]
    similarity = [SequenceMatcher(None, names[int(c)], names[feature]).ratio() for c in columns]
    return int(np.argmax(similarity))


#: If the victims have more than `MOST_ROWS` rows, attacks and blind baselines guess `GUESSED` rows,
#: so that time and memory remain bounded. The score of a larger table would answer the same
#: question. Rows that an attack is certain of are not limited.
MOST_ROWS, GUESSED = 8000, 4000


def row_budget(rows: int) -> int:
    """Return the number of rows to guess if the victims have `rows` rows."""
    return rows if rows <= MOST_ROWS else GUESSED


def take_evenly(table: Table, rows: int) -> Table:
    """Return `rows` evenly spaced rows of a table in their order, or all if it has no more."""
    if len(table) <= rows:
        return table
    return table.take(((np.arange(rows) + 0.5) * len(table) / rows).astype(np.intp))


#: Exponents of ten of the coarsest and the finest precision.
COARSEST, FINEST = 3, -4


def decimal_step(values: NDArray[np.float64]) -> float:
    """Return the largest power of ten, from 1,000 to 0.0001, of which all values are multiples.

    If there is none, 0.0001 is returned as well. Missing values are ignored.

    Examples
    --------
    >>> decimal_step(np.array([20.0, 150.0, np.nan]))
    10.0
    """
    present = values[np.isfinite(values)]
    for exponent in range(COARSEST, FINEST, -1):
        part = present / 10.0**exponent
        # The values were stored as float32, with a relative error of up to 6e-8.
        if (np.abs(part - np.rint(part)) <= 1e-6 * np.maximum(np.abs(part), 1)).all():
            return float(10.0**exponent)
    return float(10.0**FINEST)


def round_to_step(values: NDArray[np.float64], step: float) -> NDArray[np.float32]:
    """Round values to the nearest multiple of `step`, as a float32 array of the same shape."""
    return (np.rint(values / step) * step).astype(np.float32)


def part_centres(n: int) -> NDArray[np.float64]:
    """Return the centres of n equal parts of the interval from 0 to 1, float64, shape (n,)."""
    return (np.arange(n) + 0.5) / max(n, 1)


#: Class of all rows, and a second class without rows, because a schema has at least two classes.
ONE_CLASS = ("any", "none")


def widened(schema: Schema, target: tuple[float, float] | None = None) -> Schema:
    """Return the schema with the target as its last feature.

    The range `target` becomes its declared range, unless it is None or empty. The name of the
    target gets apostrophes if a feature has the same name.
    """
    name = schema.target
    while name in schema.names:
        name += "'"
    low, high = target if target is not None and target[0] < target[1] else (None, None)
    column = Feature(name, low=low, high=high, complete=True)
    return replace(schema, features=(*schema.features, column), classes=ONE_CLASS)


def wide(table: Table) -> Table:
    """Append the target to the features (as float32), and set all labels to class 0."""
    X = np.column_stack([table.X, table.y.astype(np.float32)])
    return Table(X, np.zeros(len(table), dtype=np.int64), table.weight)


def narrow(table: Table) -> Table:
    """Return rows with their last feature as the target. This is the inverse of `wide`."""
    return Table(table.X[:, :-1], table.X[:, -1].astype(np.float64), table.weight)


def narrow_all(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Apply `narrow` to every table."""
    return {name: narrow(table) for name, table in tables.items()}


def range_of(mean: float, deviation: float) -> tuple[float, float]:
    """Return the range of the uniform distribution with this mean and standard deviation."""
    return mean - 3**0.5 * deviation, mean + 3**0.5 * deviation
