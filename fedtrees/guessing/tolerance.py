"""How far a guessed value may be off: known from the true rows, or estimated by an adversary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table

#: Share of a column's standard deviation within which a guess counts as right: the value that
#: 0.25 of a standard normal's mass lies within (Vero et al. Sec. 4; Di Gennaro et al. Eq. 14).
SIGMA_SHARE = 0.319


@dataclass(frozen=True, eq=False)
class Tolerance:
    """How far a guess may be off, fixed by the true scored rows.

    `width`: float64 array, shape (d + 1,). Largest accepted difference per feature and, last, of
    the label; 0 means equality.
    `range`: float64 array, shape (d + 1,). Largest minus smallest true value of a continuous
    column, 0 for the others (Gower 1971).
    """

    width: NDArray[np.float64]
    range: NDArray[np.float64]

    @staticmethod
    def of(truth: Table, schema: Schema) -> Tolerance:
        """Return 0.319 population sigma per continuous column, ignoring missing values.

        A class and categorical columns are compared by equality; so is a constant column.
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
    own: Table | None, schema: Schema, low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the tolerances that an adversary estimates, float64, shape (d + 1,).

    `own`: Rows it holds: they tell sigma where two values at least are present.
    `low, high`: float64 array, shape (d,). Range of each column; sigma of a uniform on it stands in
    where own rows do not tell.
    """
    sigma = np.append((high - low) / np.sqrt(12), 0.0)
    width = np.where(np.append(schema.categorical, True), 0.0, SIGMA_SHARE * sigma)
    if own is not None:
        told = np.append((~np.isnan(own.X)).sum(axis=0) > 1, False)
        width[told] = Tolerance.of(own, schema).width[told]
    return np.asarray(width)
