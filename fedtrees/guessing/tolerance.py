"""Tolerances: the difference up to which a guessed value counts as correct.

Metrics compute them from the true rows (`Tolerance.of`). An adversary, who does not know these,
estimates them from background rows and declared ranges (`estimated_width`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table

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
