"""Draw rows like those at hand: redraw cells from rows with a similar prediction."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table

#: Share of the cells that are redrawn. At 0.7 numeric tables gain 0.1 points of RA, tables of
#: categories and near-copies (Obesity) lose one.
REDRAWN = 0.5
#: Rows with the nearest predictions, of which one gives its value; 5 and 20 are 0.1 points worse.
DONORS = 10
# Rows that predict and give at most, and values of a column that predict: time is bounded.
_MOST_ROWS, _RARE = 1000, 0.05
# Coefficients are rounded to so many steps: which donor is near must not hang on the last bits
# of a solved system, which differ between processors.
_STEPS = 4096


class ChainedEquations:
    """Redraws of cells given the rest of their row (predictive mean matching).

    A column is predicted from all others by ridge regression on ranks and on indicators of values;
    a redrawn cell takes the value of a row with a similar prediction.

    `own`: Rows that predict and give values.
    `rng`: Chooses 1,000 rows where there are more.

    Notes
    -----
    Little (1988), J. Bus. Econ. Stat. 6(3); van Buuren and Groothuis-Oudshoorn (2011), J. Stat.
    Softw. 45(3). Resampling rows repeats those at hand; drawing cells given the label forgets what
    columns have to do with one another. This lies between.
    """

    def __init__(self, own: Table, schema: Schema, rng: np.random.Generator) -> None:
        rows = np.sort(rng.permutation(len(own))[:_MOST_ROWS])
        self._X, self._y = own.X[rows], own.y[rows]
        kinds = [f.kind == "categorical" for f in schema.features]
        self._values = [
            _frequent(column) if categorical else np.sort(_lowest(column))
            for column, categorical in zip(self._X.T, kinds, strict=True)
        ]
        self._labels = _frequent(self._y.astype(np.float64))
        self._categorical = np.array(kinds, dtype=bool)
        self._begin = np.cumsum([0, *(self._encoded(k, self._X[:1]).shape[1] for k in self._all)])
        Z = self._design(self._X, self._y)
        self._mean = Z.sum(axis=0) // len(Z)
        self._Z = Z - self._mean
        m, p = Z.shape
        # Ranks have variance m^2 / 3: as much shrinkage as a tenth of the rows, and more the more
        # columns there are.
        shrunk = (0.1 * m + 0.3 * p) * max(m, 1) ** 2 / 3
        gram = (self._Z.T @ self._Z).astype(np.float64)
        self._precision = np.linalg.inv(gram + shrunk * np.eye(p))

    @property
    def _all(self) -> range:
        return range(self._X.shape[1])

    def redraw(self, table: Table, rng: np.random.Generator) -> Table:
        """Return rows of which `REDRAWN` of the cells are drawn anew, column by column.

        Labels stay as they are. `table`: n rows of values that the rows at hand have.
        """
        X, n = table.X.copy(), len(table)
        Z = self._design(X, table.y) - self._mean
        donors = min(DONORS, len(self._X))
        for k in rng.permutation(X.shape[1]):
            rows = np.flatnonzero(rng.random(n) < REDRAWN)
            beta = self._coefficients(k, rng)
            told, wanted = self._Z @ beta, Z[rows] @ beta
            order = np.argsort(told, kind="stable")
            low = np.searchsorted(told[order], wanted)
            high = np.searchsorted(told[order], wanted, side="right")
            # any place among equal predictions, so that none of them is preferred
            place = low + rng.integers(0, high - low + 1) - donors // 2
            place = np.clip(place, 0, len(told) - donors) + rng.integers(0, donors, len(rows))
            giver = order[place]
            X[rows, k] = self._X[giver, k]
            span = slice(self._begin[k], self._begin[k + 1])
            Z[rows, span] = self._Z[giver, span]
        return Table(X, table.y)

    def _coefficients(self, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return what every encoded column adds to the prediction of column k, in fixed point.

        A column of several indicators is predicted as a random mixture of them, a new one each
        time, so that similar predictions mean similar chances for all values.
        """
        span = slice(self._begin[k], self._begin[k + 1])
        own = self._precision[span, span]
        mixture = rng.normal(size=len(own)) if self._categorical[k] else np.ones(len(own))
        beta = -self._precision[:, span] @ np.linalg.solve(own, mixture)
        beta[span] = 0.0
        return np.asarray(np.rint(_STEPS * beta), dtype=np.int64)

    def _design(self, X: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.int64]:
        label = len(self._X) * (y[:, None] == self._labels)
        return np.column_stack([*(self._encoded(k, X) for k in self._all), label]).astype(np.int64)

    def _encoded(self, k: int, X: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return ranks among the rows at hand, -m to m, or m times an indicator per value."""
        x, values, m = _lowest(X[:, k]), self._values[k], len(self._X)
        if self._categorical[k]:
            return np.asarray(m * (x[:, None] == values), dtype=np.int64)
        ranks = np.searchsorted(values, x) + np.searchsorted(values, x, side="right") - m
        return np.asarray(ranks[:, None], dtype=np.int64)


def _lowest(column: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return a column with missing values below all others."""
    return np.nan_to_num(column.astype(np.float64), nan=-np.inf)


def _frequent(column: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the values that are not rare, without the most frequent one."""
    values, counts = np.unique(_lowest(column), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return values[order[1:][counts[order[1:]] >= _RARE * len(column)]]
