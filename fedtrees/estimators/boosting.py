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
from fedtrees.core.streams import NoiseFrom
from fedtrees.estimators.columns import row_weights
from fedtrees.estimators.federated import ClassifierPart, FederatedEstimator, target_name
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.categories import with_category_names
from fedtrees.trees.files.xgboost import save_xgboost, writable

#: Parameters with the same name in the protocols.
TREE_PARAMETERS = (
    "max_depth", "max_leaves", "grow_policy", "learning_rate", "reg_lambda", "reg_alpha", "gamma",
    "min_child_weight", "max_bin", "subsample", "colsample_bytree", "colsample_bylevel",
    "colsample_bynode", "base_score", "early_stopping_rounds", "validation_fraction",
    "enable_categorical", "max_cat_to_onehot", "max_cat_threshold",
)  # fmt: skip


# XGBoost's name for the loss of an objective.
_LOSSES = {"binary:logistic": "logloss", "multi:softprob": "mlogloss", "reg:squarederror": "rmse"}


class _Boosting(FederatedEstimator):
    """Common part of the federated boosting estimators."""

    _fields: ClassVar = {"n_estimators": "trees", **{name: name for name in TREE_PARAMETERS}}
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
        noise_from: NoiseFrom = "system",
    ) -> None:
        self._keep(locals())

    @property
    def n_iter_(self) -> int:
        """Number of boosting rounds, smaller than `n_estimators` after early stopping."""
        check_is_fitted(self)
        return self.model_.rounds

    @property
    def feature_importances_(self) -> NDArray[np.float32]:
        """Mean gain of the splits on each feature, scaled to a sum of 1, float32, shape (d,).

        This is XGBoost's default. All values are 0 if no tree has a split.

        Raises
        ------
        AttributeError
            If the released model has no gains, because a defense removes them.
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
            eval_set = [eval_set]  # a single pair is accepted in place of a list
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
        """Return the targets of an evaluation set in the coding of the model."""
        raise NotImplementedError

    def _evaluate(self, sets: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Store the mean loss of every evaluation set after every round, under XGBoost's names."""
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
            # Trees are added in float32 in their order, as in `Forest.margin`.
            margin[t % len(margin)] += model.trees[t].value[leaf]
            if (t + 1) % len(margin) == 0:
                yield margin

    def save_model(self, path: str | PathLike[str]) -> None:
        """Write the model as XGBoost JSON, which `fedtrees.load_model` and XGBoost read.

        The file contains the names of the features if X was a DataFrame. Classes are 0 to K-1, in
        the order of `classes_`. Columns of dtype ``category`` are coded in the order of
        ``categories_``. The file contains the names of their categories, by which XGBoost since 3.1
        codes another DataFrame. Earlier versions use the codes of that DataFrame.

        Raises
        ------
        DataError
            If the file cannot be written.
        UsageError
            If its name ends in .ubj, because XGBoost would read it as the binary format.

        Warns
        -----
        UserWarning
            If the file contains no feature names because XGBoost refuses one of them.
        """
        check_is_fitted(self)
        if str(path).endswith(".ubj"):
            raise UsageError(f"{path}: the model is written as JSON; end the name in .json")
        protocol = self.training_.protocol
        # The parameters allow writing the weights of inner nodes.
        params = protocol if isinstance(protocol, TreeParams) else None
        names = writable(getattr(self, "feature_names_in_", ()))
        forest, categories = with_category_names(self.model_, self._categories_at)
        save_xgboost(forest, path, self.n_features_in_, names, params, categories)


class FederatedGBDTClassifier(ClassifierPart, _Boosting):
    """Gradient boosting of two or more classes, trained by a federation.

    Parameters have XGBoost's names and defaults, even if the protocol has different defaults. Given
    the same cut points, the trees equal those that XGBoost grows on the rows of all clients.

    Parameters
    ----------
    n_estimators : int
        Boosting rounds.
    learning_rate, max_depth, max_leaves, grow_policy, max_bin, reg_lambda, reg_alpha, gamma
        As in `fedtrees.trees.boosted.params.TreeParams`.
    min_child_weight, subsample, colsample_bytree, colsample_bylevel, colsample_bynode, base_score
        As in `fedtrees.trees.boosted.params.TreeParams`.
    enable_categorical, max_cat_to_onehot, max_cat_threshold
        Whether DataFrame columns of dtype ``category`` are split by sets of categories, as in
        XGBoost, rather than by the order of their codes.
    early_stopping_rounds, validation_fraction
        As in `fedtrees.protocols.horizontal.settings.HistogramProtocol`.
    protocol : str
        Name or spec, for example ``"nvflare-hist"`` or
        ``"fedtree-hist[objective=multi:softprob]"``. A parameter in the spec replaces the default
        of the estimator. If it is also given to the estimator, both values must agree.
    defense : str or None
        Spec, composed with ``+``: ``"split-only+leaf-rounding[decimals=2]"``.
    n_clients : int
        Number of clients, over which the rows are distributed evenly. Ignored if `fit` receives the
        client of every row.
    cuts : None, {"sketch", "equal-width", "public"}, Cuts, or (indptr, values)
        Method that chooses cut points (None: the protocol's default), or public cut points:
        `fedtrees.trees.binning.Cuts`, or the pair that XGBoost's
        ``QuantileDMatrix.get_quantile_cut()`` returns.
    ranges : mapping of str to (float, float), optional
        Declared public range of features by name, for ``cuts="public"`` and for attacks. The
        columns of an array are named x0, x1, ...
    random_state : int, RandomState or None
        Distributes the rows and seeds every draw of the run, except for noise.
    noise_from : {"system", "seed"}
        ``seed``: `random_state` also seeds the noise. An adversary that tries out seeds can then
        reproduce it, so that ``training_.spent`` contains no guarantee that relies on noise.

    Attributes
    ----------
    classes_ : array, shape (K,)
        Labels of the classes.
    model_ : Forest
        The model as the clients receive it.
    training_ : Training
        Protocol, model and transcript of the training.
    transcript_ : Transcript
        Every message of the training.
    local_data_ : dict of str to LocalData
        Local data of each client by name: the ground truth for scoring attacks.
    client_ids_ : array, shape (clients,)
        Values of `client` in `fit`. ``client-0`` of views and transcript is the first one.
    categories_ : dict
        Categories of the columns of dtype ``category`` by name, in the order of their codes.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of str, shape (d,)
        Names of the features if X was a DataFrame.
    n_iter_ : int
        Number of boosting rounds.
    evals_result_ : dict
        Mean loss after every round on each evaluation set, as XGBoost's ``evals_result()``.
    feature_importances_ : float32 array, shape (d,)
        Mean gain of the splits on each feature.

    Notes
    -----
    Missing values are NaN, also for a missing category. Columns of dtype ``category`` are coded in
    the order of their categories. An unknown category in later rows is an error.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=2, max_depth=3, defense="split-only")
    >>> model = model.set_params(random_state=0).fit(X, y)
    >>> sorted(model.local_data_)
    ['client-0', 'client-1', 'client-2']
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: Any = None,
        eval_set: Any = None,
    ) -> Self:
        """Train the model.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows. NaN marks a missing value.
        y : array, shape (n,)
            Labels of any kind, of two or more classes.
        sample_weight : array, shape (n,), optional
            At least 0. Rows of weight 0 are left out.
        client : array, shape (n,), optional
            Client of each row.
        eval_set : list of (X, y), optional
            Rows whose loss after every round is stored in `evals_result_`. They do not take part in
            the training: early stopping uses rows that the clients reserve (`validation_fraction`).

        Returns
        -------
        self : FederatedGBDTClassifier

        Raises
        ------
        DataError
            If rows, labels, weights or clients are invalid (it is a ValueError).
        UsageError
            If parameters are invalid (it is a ValueError).
        """
        target = target_name(y)
        X, labels = self._accept(X, y)
        weight = row_weights(sample_weight, len(labels))
        codes = self._learn_classes(labels, weight)
        sets = self._eval_sets(eval_set)
        self._fit(X, codes, self.classes_, target=target, weight=weight, assignment=client)
        self._evaluate(sets)
        return self

    def _coded_target(self, y: Any) -> NDArray[np.int64]:
        """Return the codes of labels. Raises `DataError` for an unknown class."""
        labels = np.asarray(y)
        unknown = labels[~np.isin(labels, self.classes_)]
        if len(unknown):
            class_names = ", ".join(map(str, self.classes_))
            raise DataError(f"eval_set has the class {unknown[0]!s}; trained on {class_names}")
        return np.searchsorted(self.classes_, labels)


class FederatedGBDTRegressor(RegressorMixin, _Boosting):
    """Gradient boosting of a numeric target (squared error), trained by a federation.

    Parameters, attributes and notes are those of `FederatedGBDTClassifier`, without classes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from fedtrees import FederatedGBDTRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = FederatedGBDTRegressor(n_estimators=5, max_depth=3, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        client: Any = None,
        eval_set: Any = None,
    ) -> Self:
        """Train the model.

        Parameters
        ----------
        X, sample_weight, client, eval_set
            As in `FederatedGBDTClassifier.fit`.
        y : float array, shape (n,)
            Target.

        Returns
        -------
        self : FederatedGBDTRegressor

        Raises
        ------
        DataError
            If rows, targets, weights or clients are invalid (it is a ValueError).
        UsageError
            If parameters are invalid (it is a ValueError).
        """
        target = target_name(y)
        X, values = self._accept(X, y, numeric_y=True)
        weight = row_weights(sample_weight, len(values))
        sets = self._eval_sets(eval_set)
        self._fit(X, values.astype(np.float64), (), target=target, weight=weight, assignment=client)
        self._evaluate(sets)
        return self

    def _coded_target(self, y: Any) -> NDArray[np.float64]:
        """Return targets as float64."""
        return np.asarray(y, dtype=np.float64)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted values, float64, shape (n,).

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows.
        """
        rows = self._rows(X)
        return self.training_.predict(rows)
