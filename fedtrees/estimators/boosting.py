"""Federated gradient boosting for scikit-learn."""

import math
from collections.abc import Iterator
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedtrees.core.errors import DataError, UsageError
from fedtrees.estimators.columns import row_weights
from fedtrees.estimators.federated import ClassifierPart, FederatedEstimator, target_name
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.categories import by_names
from fedtrees.trees.files.xgboost import save_xgboost, writable

_SAME = (
    "max_depth", "max_leaves", "grow_policy", "learning_rate", "reg_lambda", "reg_alpha", "gamma",
    "min_child_weight", "max_bin", "subsample", "colsample_bytree", "colsample_bylevel",
    "colsample_bynode", "base_score", "early_stopping_rounds", "validation_fraction",
    "enable_categorical", "max_cat_to_onehot", "max_cat_threshold",
)  # fmt: skip


# What XGBoost calls the loss of an objective.
_LOSSES = {"binary:logistic": "logloss", "multi:softprob": "mlogloss", "reg:squarederror": "rmse"}


class _Boosting(FederatedEstimator):
    _fields: ClassVar = {"n_estimators": "trees", **{name: name for name in _SAME}}
    _forest = False
    model_: Forest

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        learning_rate: float = 0.3,
        max_depth: int = 6,
        max_leaves: int = 0,
        grow_policy: str = "depthwise",
        max_bin: int = 256,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        subsample: float = 1.0,
        colsample_bytree: float = 1.0,
        colsample_bylevel: float = 1.0,
        colsample_bynode: float = 1.0,
        base_score: float | None = None,
        early_stopping_rounds: int = 0,
        validation_fraction: float = 0.1,
        enable_categorical: bool = False,
        max_cat_to_onehot: int = 4,
        max_cat_threshold: int = 64,
        protocol: str = "fedtree-hist",
        defense: str | None = None,
        n_clients: int = 3,
        cuts: Any = None,
        ranges: Any = None,
        random_state: Any = None,
        noise_from: str = "system",
    ) -> None:
        self._keep(locals())

    @property
    def n_iter_(self) -> int:
        """Boosting rounds of the model; fewer than `n_estimators` where it stopped early."""
        check_is_fitted(self)
        return self.model_.rounds

    @property
    def feature_importances_(self) -> NDArray[np.float32]:
        """Mean gain of the splits on each feature, summing to 1, float32, shape (d,).

        XGBoost's default. All 0 where no tree has a split.

        Raises
        ------
        AttributeError
            The released model has no gains: a defense withholds them.
        """
        check_is_fitted(self)
        total, splits = np.zeros((2, self.n_features_in_))
        for tree in self.model_.trees:
            if tree.gain is None:
                raise AttributeError(
                    "feature_importances_: the released model carries no gains "
                    f"(protocol {self.protocol!r}, defense {self.defense!r})"
                )
            inner = tree.feature >= 0
            np.add.at(total, tree.feature[inner], tree.gain[inner])
            np.add.at(splits, tree.feature[inner], 1)
        mean = total / np.maximum(splits, 1)
        return (mean / (mean.sum() or 1.0)).astype(np.float32)

    def _eval_sets(self, eval_set: Any) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return checked rows and coded targets of every evaluation set."""
        if isinstance(eval_set, tuple) and len(eval_set) == 2:
            eval_set = [eval_set]  # one pair is often meant so
        sets = []
        for pair in [] if eval_set is None else eval_set:
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
                raise UsageError("eval_set: give a list of pairs, [(X, y), ...]")
            rows = self._rows(pair[0])
            target = self._coded_target(pair[1])
            if target.shape != (len(rows),):
                raise DataError(
                    f"eval_set has {len(rows)} rows and a target of shape {target.shape}"
                )
            sets.append((rows, target))
        return sets

    def _coded_target(self, y: Any) -> NDArray[Any]:
        raise NotImplementedError

    def _evaluate(self, sets: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Keep the mean loss of every set after every round, under XGBoost's names."""
        objective = self.model_.objective
        name = _LOSSES[objective.name]
        self.evals_result_ = {}
        for k, (rows, target) in enumerate(sets):
            means = [float(np.mean(objective.loss(m, target))) for m in self._staged(rows)]
            losses = [math.sqrt(mean) for mean in means] if name == "rmse" else means
            self.evals_result_[f"validation_{k}"] = {name: losses}

    def _staged(self, rows: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """Yield the margins of rows after every round, float32, shape (K, n)."""
        model = self.model_
        margin = np.repeat(model.base_margin[:, None], len(rows), axis=1)
        for t, leaf in enumerate(model.apply(rows).T):
            margin[t % len(margin)] += model.trees[t].value[leaf]
            if (t + 1) % len(margin) == 0:
                yield margin

    def save_model(self, path: str | PathLike[str]) -> None:
        """Write the model as XGBoost JSON; `fedtrees.load_model` and XGBoost read it.

        The file contains the names of the features if X was a DataFrame. Classes are 0 to K-1, in
        the order of `classes_`. Columns of dtype ``category`` are coded in the order of
        `categories_`. The file contains the names of their categories, by which XGBoost since 3.1
        codes another DataFrame. Earlier versions take the codes of that DataFrame.

        Raises
        ------
        DataError
            If the file cannot be written.
        UsageError
            If its name ends in .ubj: XGBoost would read it as the binary format.

        Warns
        -----
        UserWarning
            If the file contains no feature names because XGBoost refuses one of them.
        """
        check_is_fitted(self)
        if str(path).endswith(".ubj"):
            raise UsageError(f"{path}: the model is written as JSON; end the name in .json")
        protocol = self.training_.protocol
        params = protocol if isinstance(protocol, TreeParams) else None
        names = writable(getattr(self, "feature_names_in_", ()))
        forest, categories = by_names(self.model_, self._categories_at)
        save_xgboost(forest, path, self.n_features_in_, names, params, categories)


class FederatedGBDTClassifier(ClassifierPart, _Boosting):
    """Gradient boosting of two or more classes, trained by a federation.

    Parameters have XGBoost's names and defaults, whatever the protocol's own are. Given the same
    cut points, the trees are those XGBoost grows on all rows together.

    Parameters
    ----------
    n_estimators : int
        Boosting rounds.
    learning_rate, max_depth, max_leaves, grow_policy, max_bin, reg_lambda, reg_alpha, gamma, \
min_child_weight, subsample, colsample_bytree, colsample_bylevel, colsample_bynode, base_score
        As in `fedtrees.trees.boosted.params.TreeParams`.
    enable_categorical, max_cat_to_onehot, max_cat_threshold
        Whether DataFrame columns of dtype ``category`` are split by sets of categories, as in
        XGBoost, rather than by the order of their codes.
    early_stopping_rounds, validation_fraction
        As in `fedtrees.protocols.horizontal.settings.HistogramProtocol`.
    protocol : str
        Name or spec, such as ``"nvflare-hist"`` or ``"fedtree-hist[objective=multi:softprob]"``.
        A parameter in the spec replaces the default here; given here and there it must agree.
    defense : str or None
        Spec, composed with ``+``: ``"split-only+leaf-rounding[decimals=2]"``.
    n_clients : int
        The rows are spread evenly over that many, unless `fit` is told the client of every row.
    cuts : None, {"sketch", "equal-width", "public"}, Cuts, or (indptr, values)
        How cut points are settled (None: the protocol's default), or the cut points themselves,
        which then are public: `fedtrees.trees.binning.Cuts`, or the pair that XGBoost's
        ``QuantileDMatrix.get_quantile_cut()`` returns.
    ranges : mapping of str to (float, float), optional
        Declared public range of features by name, for ``cuts="public"`` and for attacks. An array's
        columns are called x0, x1, ...
    random_state : int, RandomState or None
        Spreads the rows and seeds every draw of the run, noise apart.
    noise_from : {"system", "seed"}
        ``seed``: `random_state` seeds noise too. Whoever tries seeds then draws it again:
        ``training_.spent`` has no bound that rests on noise.

    Attributes
    ----------
    classes_ : array, shape (K,)
    model_ : Forest
        As released to the clients.
    training_ : Training
    transcript_ : Transcript
        Every message of the training.
    local_data_ : dict of str to LocalData
        What each client holds, by name: the truth an attack is scored against.
    client_ids_ : array, shape (clients,)
        What `fit` was given as `client`; ``client-0`` of views and transcript is the first.
    categories_ : dict
        Categories of the columns of dtype ``category`` by name, in the order of their codes.
    n_features_in_ : int
    feature_names_in_ : array of str, shape (d,)
        Where X was a DataFrame.
    n_iter_ : int
    evals_result_ : dict
        Mean loss after every round on each evaluation set, as XGBoost's ``evals_result()``.
    feature_importances_ : float32 array, shape (d,)

    Notes
    -----
    Missing values are NaN (a missing category too). Columns of dtype ``category`` are coded in the
    order of their categories; a category that is unknown later is an error.
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: Any = None,
        eval_set: Any = None,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
        y : array, shape (n,)
            Labels of any kind, of two classes or more.
        sample_weight : array, shape (n,), optional
            At least 0; a row of weight 0 is left out.
        client : array, shape (n,), optional
            Which client holds each row.
        eval_set : list of (X, y), optional
            Rows whose loss after every round is kept in `evals_result_`. They take no part in the
            training: early stopping is on rows that the clients hold out (`validation_fraction`).

        Raises
        ------
        DataError
            Rows, labels, weights or clients that cannot be used (it is a ValueError).
        UsageError
            Parameters that cannot be used (a ValueError).
        """
        target = target_name(y)
        X, y = self._accept(X, y)
        weight = row_weights(sample_weight, len(y))
        codes = self._learn_classes(y, weight)
        sets = self._eval_sets(eval_set)
        self._fit(X, codes, self.classes_, target=target, weight=weight, client=client)
        self._evaluate(sets)
        return self

    def _coded_target(self, y: Any) -> NDArray[np.int64]:
        labels = np.asarray(y)
        unknown = labels[~np.isin(labels, self.classes_)]
        if len(unknown):
            known = ", ".join(map(str, self.classes_))
            raise DataError(f"eval_set has the class {unknown[0]!s}; trained on {known}")
        return np.searchsorted(self.classes_, labels)


class FederatedGBDTRegressor(RegressorMixin, _Boosting):
    """Gradient boosting of a number (squared error), trained by a federation.

    Parameters, attributes and notes as in `FederatedGBDTClassifier`, without classes.
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: Any = None,
        eval_set: Any = None,
    ) -> Self:
        """Train; parameters and errors as in `FederatedGBDTClassifier.fit`, y being numbers."""
        target = target_name(y)
        X, y = self._accept(X, y, numeric_y=True)
        weight = row_weights(sample_weight, len(y))
        sets = self._eval_sets(eval_set)
        self._fit(X, y.astype(np.float64), (), target=target, weight=weight, client=client)
        self._evaluate(sets)
        return self

    def _coded_target(self, y: Any) -> NDArray[np.float64]:
        return np.asarray(y, dtype=np.float64)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the values, float64, shape (n,)."""
        rows = self._rows(X)
        return self.training_.predict(rows)
