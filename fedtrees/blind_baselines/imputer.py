"""Imputation of one attribute of a row from the remaining attributes and the label.

Attribute inference uses it as a baseline and as a prior: it learns from the adversary's rows and
estimates the probability of each value of the attribute in the victims' rows. The models are ridge
regression, multinomial logistic regression and boosted trees. `KnownRows` is the background
knowledge of such an adversary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Objective, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

Floats = NDArray[np.float64]
_TREE_PARAMS = TreeParams(trees=20, max_depth=3, learning_rate=0.2)
# A fold may lack a class, so that the start must not depend on the labels.
_CLASS_TREE_PARAMS = replace(_TREE_PARAMS, base_score=0.5)
_FOLDS = 3  # folds of every cross-validation
_RIDGES = (0.1, 1.0, 10.0, 100.0)  # strengths of the L2 penalty from which one is chosen
_MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)  # weights of the trees from which one is chosen
_FEW_VALUES = 12  # largest number of distinct values of a number that is treated as a category
# Share of the marginal distribution in the probabilities of categories, so that no probability is
# 0 if logistic regression and trees are certain and wrong.
_MARGINAL_SHARE = 0.02
_MOST_VALUES = 256  # number of values that represent a numeric column
FEWEST_ROWS = 10  # number of rows from which on a model is trained


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Rows of the victims of which the threat model declares all attributes but one known.

    Attributes
    ----------
    rows : Table
        n rows with labels. The values of the sensitive attribute are missing.
    ids : int64 array, shape (n,)
        Ids of the rows.
    columns : tuple of int
        Columns of the sensitive attribute.
    """

    rows: Table
    ids: NDArray[np.int64]
    columns: tuple[int, ...]

    @staticmethod
    def of(view: View) -> "KnownRows | None":
        """Return the declared rows of a view.

        None unless the labels and exactly all attributes but one are declared for the same rows.
        """
        if view.known_entries is None or view.known_labels is None or not len(view.known_entries):
            return None
        known_columns, X = view.known_entries.of_all_rows
        ids = np.unique(view.known_entries.ids)
        unknown_attributes = [
            a for a in view.schema.attributes if not np.isin(a, known_columns).any()
        ]
        order = np.argsort(view.known_labels.ids)
        if len(unknown_attributes) != 1 or not np.array_equal(view.known_labels.ids[order], ids):
            return None
        values = np.full((len(ids), len(view.schema.features)), np.nan, dtype=np.float32)
        values[:, known_columns] = X
        return KnownRows(
            Table(values, view.known_labels.table.y[order]), ids, unknown_attributes[0]
        )


@dataclass(frozen=True)
class _NumericModel:
    """Model of a numeric attribute.

    Attributes
    ----------
    ridge : float
        Strength of the L2 penalty.
    boosted : bool
        Whether trees are trained on the residuals.
    spread : float
        Root mean square of the cross-validation errors, of the logarithm if `logged`.
    error : float
        Median absolute cross-validation error of the number itself.
    logged : bool
        Whether the model predicts the logarithm.
    """

    ridge: float
    boosted: bool
    spread: float
    error: float
    logged: bool


class Imputer:
    """Estimate the probabilities of the values of one attribute.

    For a number, the model is a normal distribution around a prediction of the number or its
    logarithm. Its standard deviation is that of the cross-validation errors. Ridge regression also
    receives the logarithms of the columns. Categories, one-hot groups and numbers with few distinct
    values are predicted by a mixture of logistic regression and boosted trees, whose weight is
    chosen by cross-validation.

    Parameters
    ----------
    known_rows : Table or None
        The rows to learn from. With fewer than `FEWEST_ROWS` complete rows, nothing is learned and
        all values are equally likely.
    schema : Schema
        Columns of the table.
    columns : sequence of int
        Column of the attribute, or columns of a one-hot group.

    Attributes
    ----------
    values : float32 array, shape (K, c)
        Possible values of the attribute.
    """

    def __init__(self, known_rows: Table | None, schema: Schema, columns: Sequence[int]) -> None:
        self._schema, self._columns = schema, [*columns]
        self._rest = [c for c in range(len(schema.features)) if c not in self._columns]
        complete = None
        if known_rows is not None:
            complete = known_rows.take(
                np.flatnonzero(~np.isnan(known_rows.X[:, self._columns]).any(axis=1))
            )
        self._known_rows = None if complete is None or len(complete) < FEWEST_ROWS else complete
        self.values = self._candidate_values()
        self._numbers = self._known_rows is not None and not self._is_categorical()
        self._numeric_model: _NumericModel | None = None
        self._mixture: float | None = None

    @property
    def has_training_rows(self) -> bool:
        """Whether there are enough rows to learn from."""
        return self._known_rows is not None

    def _is_categorical(self) -> bool:
        """Return whether the attribute is predicted as a category."""
        assert self._known_rows is not None
        categorical = self._schema.categorical[self._columns].any() or len(self._columns) > 1
        return (
            bool(categorical) or len(np.unique(self._known_rows.X[:, self._columns])) <= _FEW_VALUES
        )

    def _candidate_values(self) -> NDArray[np.float32]:
        """Return possible values of the attribute, float32, shape (K, c), ascending."""
        if self._known_rows is not None:
            observed = self._known_rows.X[:, self._columns]
            if len(self._columns) > 1 or self._is_categorical():
                extra = self._named()
                return np.unique(np.concatenate([observed, extra]), axis=0)
            distinct, even = (
                np.unique(observed),
                np.linspace(observed.min(), observed.max(), _MOST_VALUES),
            )
            quantiles = (
                np.linspace(0, len(distinct) - 1, min(len(distinct), _MOST_VALUES))
                .round()
                .astype(np.int64)
            )
            return np.union1d(distinct[quantiles], even.astype(np.float32))[:, None]
        named = self._named()
        if len(named):
            return named
        low, high = (ends[self._columns[0]] for ends in self._schema.ranges)
        ends = (0.0, 1.0) if np.isnan(low) or np.isnan(high) else (low, high)
        return np.linspace(ends[0], ends[1], 101).astype(np.float32)[:, None]

    def _named(self) -> NDArray[np.float32]:
        """Return the values that the schema declares, without values that only rows show."""
        c = len(self._columns)
        if c > 1:
            return np.eye(c, dtype=np.float32)
        low, high = (ends[self._columns[0]] for ends in self._schema.ranges)
        if not self._schema.categorical[self._columns[0]] or np.isnan(low) or np.isnan(high):
            return np.zeros((0, 1), dtype=np.float32)
        return np.arange(low, high + 1, dtype=np.float32)[:, None]

    def chances(self, rows: Table, values: NDArray[np.float32]) -> Floats:
        """Return the probability of every value in every row, float64, shape (n, K).

        Parameters
        ----------
        rows : Table
            n rows with labels. Their values of the attribute are not read.
        values : float32 array, shape (K, c)
            The values.
        """
        training_rows = self._known_rows
        if training_rows is None:
            return np.full((len(rows), len(values)), 1 / len(values))
        if self._numbers:
            p = self._normal(training_rows, rows, values[:, 0].astype(np.float64))
        else:
            p = self._classes(training_rows, rows, values)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def held_out(self, values: NDArray[np.float32]) -> tuple[Table, Floats] | None:
        """Return the rows to learn from, and cross-validated probabilities of the values in them.

        None if there are not enough rows.
        """
        if self._known_rows is None or len(self._known_rows) < 2 * FEWEST_ROWS:
            return None
        p = np.empty((len(self._known_rows), len(values)))
        for train, test in _folds(len(self._known_rows)):
            model = Imputer(self._known_rows.take(train), self._schema, self._columns)
            model._numeric_model, model._mixture = self._numeric_model, self._mixture
            p[test] = model.chances(self._known_rows.take(test), values)
        return self._known_rows, p

    def _normal(self, known_rows: Table, rows: Table, values: Floats) -> Floats:
        """Return unnormalised probabilities of the values of a number."""
        x = known_rows.X[:, self._columns[0]].astype(np.float64)
        A, B = self._designs(known_rows, rows)
        if self._numeric_model is None:
            plain = self._choose_model(x, A, known_rows)
            logged = self._choose_model(np.log(x), A, known_rows, np.exp) if x.min() > 0 else plain
            self._numeric_model = min(plain, logged, key=lambda model: model.error)
        model = self._numeric_model
        if model.logged:
            x, values = np.log(x), np.log(np.maximum(values, 1e-30))
        mean = self._predicted(x, A, B, known_rows, rows, model.ridge, model.boosted)
        # Standardised distance between each value and the prediction.
        z = (values - mean[:, None]) / model.spread
        # A mixture of two normal distributions has heavier tails than one, because large errors are
        # more frequent.
        law = 0.9 * np.exp(-0.5 * np.clip(z, -37, 37) ** 2)
        law += 0.1 / 3 * np.exp(-0.5 * np.clip(z / 3, -37, 37) ** 2)
        return np.asarray(law * _spacing(values) + 1e-12)

    def _choose_model(
        self,
        x: Floats,
        A: Floats,
        known_rows: Table,
        back: Callable[[Floats], Floats] | None = None,
    ) -> _NumericModel:
        """Choose the ridge penalty, and whether trees are used, by cross-validation.

        `back` converts x to the number itself. None: x is the number.
        """

        def predict_held_out(ridge: float, boosted: bool) -> Floats:
            predicted = np.empty(len(x))
            for train, test in _folds(len(x)):
                part = known_rows.take(train), known_rows.take(test), ridge, boosted
                predicted[test] = self._predicted(x[train], A[train], A[test], *part)
            return predicted

        def error_of(predicted: Floats) -> float:
            return float(np.sqrt(((x - predicted) ** 2).mean()))

        tried = {ridge: predict_held_out(ridge, False) for ridge in _RIDGES}
        best = min(tried, key=lambda r: error_of(tried[r]))
        with_trees = predict_held_out(best, True)
        # Trees are used only for a clear improvement.
        helped = error_of(with_trees) < 0.99 * error_of(tried[best])
        chosen = with_trees if helped else tried[best]
        spread = max(error_of(chosen), 1e-9 * max(float(x.std()), 1e-9))
        error = np.abs(x - chosen) if back is None else np.abs(back(x) - back(chosen))
        return _NumericModel(best, helped, spread, float(np.median(error)), back is not None)

    def _predicted(
        self,
        x: Floats,
        A: Floats,
        B: Floats,
        known_rows: Table,
        rows: Table,
        ridge: float,
        boosted: bool,
    ) -> Floats:
        """Return predictions for `rows` of a model trained on `known_rows`, float64, shape (n,)."""
        mean = x.mean()
        beta = np.linalg.solve(A.T @ A + ridge * np.eye(A.shape[1]), A.T @ (x - mean))
        predicted = mean + B @ beta
        if not boosted:
            return np.asarray(predicted)
        residual = x - mean - A @ beta
        unit = max(float(residual.std()), 1e-30)
        forest = self._forest(known_rows, residual / unit, SQUARED_ERROR)
        return np.asarray(predicted + unit * forest.predict(self._others(rows)))

    def _classes(self, known_rows: Table, rows: Table, values: NDArray[np.float32]) -> Floats:
        """Return probabilities of the values of a category."""
        levels, code = np.unique(known_rows.X[:, self._columns], axis=0, return_inverse=True)
        code, k = code.reshape(-1), len(levels)
        A, B = self._designs(known_rows, rows)
        # The marginal distribution with half a pseudo-count per class, so that no probability is 0.
        margin = (np.bincount(code, minlength=k) + 0.5) / (len(code) + 0.5 * k)
        if self._mixture is None:
            self._mixture = self._mixed(code, k, A, known_rows, margin)
        w = self._mixture
        p = self._both(code, k, A, B, known_rows, rows)
        at = {tuple(v): j for j, v in enumerate(levels.tolist())}
        mixed = (1 - _MARGINAL_SHARE) * ((1 - w) * p[0] + w * p[1]) + _MARGINAL_SHARE * margin
        rare = 0.5 / (len(code) + 0.5 * k)
        return np.column_stack(
            [mixed[:, at[tuple(v)]] if tuple(v) in at else np.full(len(rows), rare)
             for v in values.tolist()]
        )  # fmt: skip

    def _mixed(
        self, code: NDArray[np.int64], k: int, A: Floats, known_rows: Table, margin: NDArray[Any]
    ) -> float:
        """Return the weight of the trees that gives the mixture the lowest held-out loss."""
        held_out = [np.empty((len(code), k)), np.empty((len(code), k))]
        for train, test in _folds(len(code)):
            p = self._both(
                code[train], k, A[train], A[test], known_rows.take(train), known_rows.take(test)
            )
            for collected, predicted in zip(held_out, p, strict=True):
                collected[test] = predicted
        rows = np.arange(len(code))

        def loss(w: float) -> float:
            mixture = (1 - _MARGINAL_SHARE) * (
                (1 - w) * held_out[0] + w * held_out[1]
            ) + _MARGINAL_SHARE * margin
            return -float(np.log(mixture[rows, code] + 1e-12).mean())

        return min(_MIXTURES, key=loss)

    def _both(
        self, code: NDArray[np.int64], k: int, A: Floats, B: Floats, known_rows: Table, rows: Table
    ) -> tuple[Floats, Floats]:
        """Return the probabilities of logistic regression and of trees, shape (n, k) each."""
        # With a single class in the fold, there is nothing to learn.
        if len(np.unique(code)) < 2:
            shares = np.broadcast_to(np.bincount(code, minlength=k) / len(code), (len(rows), k))
            return shares, shares
        logistic = _logistic(A, code, k, B)
        objective = LOGISTIC if k == 2 else Softmax(k)
        forest = self._forest(known_rows, code, objective)
        p = forest.predict(self._others(rows))
        return logistic, p if p.ndim == 2 else np.column_stack([1 - p, p])

    def _forest(self, known_rows: Table, target: NDArray[Any], objective: Objective) -> Forest:
        """Train a boosted forest on the remaining columns and the label."""
        X = self._others(known_rows)
        params = _TREE_PARAMS if objective is SQUARED_ERROR else _CLASS_TREE_PARAMS
        return grow_forest(X, target, quantile_cuts(X, 32), params, objective, streams=Streams(0))

    def _others(self, rows: Table) -> NDArray[np.float32]:
        """Return the remaining columns and the label of rows, float32, shape (n, columns)."""
        return np.column_stack([rows.X[:, self._rest], rows.y]).astype(np.float32)

    def _designs(self, known_rows: Table, rows: Table) -> tuple[Floats, Floats]:
        """Return the standardised design matrices of two tables.

        The columns are indicators of categories, numbers, their logarithms, and indicators of the
        label.
        """
        parts = []
        for c in self._rest:
            a, b = known_rows.X[:, c].astype(np.float64), rows.X[:, c].astype(np.float64)
            if self._schema.categorical[c]:
                parts += [(a == v, b == v) for v in np.unique(a[~np.isnan(a)])[:_MOST_VALUES]]
            else:
                present = a[~np.isnan(a)]
                middle = float(present.mean()) if len(present) else 0.0
                a, b = np.nan_to_num(a, nan=middle), np.nan_to_num(b, nan=middle)
                parts.append((a, b))
                if len(present) and present.min() >= 0 and middle > 0:
                    parts.append((_log(a, middle), _log(b, middle)))
        parts += [
            (known_rows.y == v, rows.y == v) for v in range(max(len(self._schema.classes), 2))
        ]
        A, B = (np.column_stack(p).astype(np.float64) for p in zip(*parts, strict=True))
        mean, spread = A.mean(axis=0), A.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        # Values far outside the range of the training rows are clipped.
        return (A - mean) / spread, np.clip((B - mean) / spread, -8, 8)


def _spacing(values: Floats) -> Floats:
    """Return the width of the interval that each value represents, relative to the mean width."""
    if len(values) < 2:
        return np.ones(len(values))
    order = np.argsort(values, kind="stable")
    widths = np.empty(len(values))
    widths[order] = np.gradient(values[order])
    return np.asarray(widths / widths.mean(), dtype=np.float64)


def _log(x: Floats, middle: float) -> Floats:
    """Return logarithms, with an offset so that 0 is finite."""
    return np.asarray(np.log(np.maximum(x, 0.0) + 1e-3 * middle))


#: Row ids, columns and values of cells, one each per cell.
Cells = tuple[NDArray[np.int64], NDArray[np.int64], Floats]


def imputed(view: View, share: float) -> Cells | None:
    """Impute the unknown attribute of the victims' rows from the adversary's rows.

    None if the view declares no such attribute. `share` is that of `guessed`.
    """
    background = KnownRows.of(view)
    if background is None:
        return None
    imputer = Imputer(view.rows, view.schema, background.columns)
    chances = imputer.chances(background.rows, imputer.values)
    return guessed(background, view.schema, chances, imputer.values, share)


def guessed(
    background: KnownRows,
    schema: Schema,
    chances: Floats,
    values: NDArray[np.float32],
    share: float,
) -> Cells:
    """Return the cells of the unknown attribute with their most likely values.

    Parameters
    ----------
    background : KnownRows
        Background knowledge about the victims' rows.
    schema : Schema
        Columns of the table.
    chances : float64 array, shape (n, K)
        Probability of every value in every row.
    values : float32 array, shape (K, c)
        The values.
    share : float
        Distance at which a number counts as close, as a share of its standard deviation.
    """
    categorical = len(background.columns) > 1 or bool(schema.categorical[background.columns[0]])
    likeliest, c = decoded(chances, values, 0.0 if categorical else share), len(background.columns)
    cells = np.repeat(background.ids, c), np.tile(np.array(background.columns), len(background.ids))
    return *cells, likeliest.reshape(-1).astype(np.float64)


def decoded(
    chances: Floats, values: NDArray[np.float32], share: float = 0.0
) -> NDArray[np.float32]:
    """Return the value of each row that is most likely close to the true one.

    Parameters
    ----------
    chances : float64 array, shape (n, K)
        Probability of every value in every row.
    values : float32 array, shape (K, c)
        The values.
    share : float
        Distance at which a number counts as close, as a share of its standard deviation. 0 for
        categories.

    Returns
    -------
    values : float32 array, shape (n, c)
    """
    if share == 0.0 or values.shape[1] > 1:
        return np.asarray(values[chances.argmax(axis=1)])
    x = values[:, 0].astype(np.float64)
    likely = chances.mean(axis=0)
    spread = math.sqrt(max(float(likely @ (x - likely @ x) ** 2), 0.0))
    order = np.argsort(x, kind="stable")
    x, p = x[order], chances[:, order]
    # The probability of an interval is a difference of two cumulated probabilities.
    total = np.concatenate([np.zeros((len(p), 1)), p.cumsum(axis=1)], axis=1)
    low = np.searchsorted(x, x - share * spread)
    high = np.searchsorted(x, x + share * spread, side="right")
    return np.asarray(values[order][(total[:, high] - total[:, low] + p).argmax(axis=1)])


def _folds(n: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return training and test rows of each cross-validation fold."""
    fold = np.random.default_rng(0).permutation(n) % _FOLDS
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(_FOLDS)]


def _logistic(A: Floats, code: NDArray[np.int64], k: int, B: Floats) -> Floats:
    """Return class probabilities of other rows by multinomial logistic regression, shape (n, k)."""
    n, d = A.shape
    A1, B1 = np.column_stack([A, np.ones(n)]), np.column_stack([B, np.ones(len(B))])
    hot = np.eye(k)[code]

    def loss(w: Floats) -> tuple[float, Floats]:
        W = w.reshape(d + 1, k)
        p = softmax(A1 @ W, axis=1)
        penalty = W.copy()
        penalty[-1] = 0.0
        value = -float(np.log((p * hot).sum(axis=1) + 1e-300).sum()) + 0.5 * float(
            (penalty**2).sum()
        )
        return value, (A1.T @ (p - hot) + penalty).reshape(-1)

    start = np.zeros((d + 1) * k)
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    return np.asarray(softmax(B1 @ optimum.x.reshape(d + 1, k), axis=1))
