"""Federated random forests for scikit-learn."""

from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedtrees.core.errors import UsageError
from fedtrees.core.streams import NoiseFrom
from fedtrees.estimators.federated import ClassifierPart, FederatedEstimator, target_name
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

_SAME = (
    "max_depth", "min_samples_split", "min_samples_leaf", "max_features", "tree_features",
    "bootstrap", "max_samples", "max_leaf_nodes", "max_bin",
)  # fmt: skip


class FederatedForestClassifier(ClassifierPart, FederatedEstimator):
    """A random forest of two or more classes, trained by a federation.

    Parameters have scikit-learn's names and defaults. The remaining interface is that of
    `FederatedGBDTClassifier`.

    Parameters
    ----------
    n_estimators : int
        Number of trees. With ``protocol="local-forests"``, the number of trees of each client.
    max_depth, min_samples_split, min_samples_leaf, max_features, tree_features
        As in `fedtrees.trees.forest.params.ForestParams`.
    bootstrap, max_samples, max_leaf_nodes, max_bin
        As in `fedtrees.trees.forest.params.ForestParams`.
    protocol : str
        ``"forest-hist"`` (grown jointly) or ``"local-forests"`` (grown by each client, then
        pooled), optionally with parameters in brackets.
    defense, n_clients, cuts, ranges, random_state, noise_from
        As in `FederatedGBDTClassifier`. Local forests have no common cut points.

    Attributes
    ----------
    model_ : RandomForest
        The model as the clients receive it.
    classes_, training_, transcript_, local_data_, client_ids_, categories_
        As in `FederatedGBDTClassifier`.
    n_features_in_, feature_names_in_, feature_importances_
        As in `FederatedGBDTClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedForestClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedForestClassifier(n_estimators=3, max_depth=3, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _fields: ClassVar = {"n_estimators": "trees", **{name: name for name in _SAME}}
    _forest = True
    model_: RandomForest

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        max_features: str | int | float | None = "sqrt",
        tree_features: str | int | float | None = None,
        bootstrap: bool = True,
        max_samples: float | None = None,
        max_leaf_nodes: int | None = None,
        max_bin: int = 256,
        protocol: str = "forest-hist",
        defense: str | None = None,
        n_clients: int = 3,
        cuts: Any = None,
        ranges: Any = None,
        random_state: Any = None,
        noise_from: NoiseFrom = "system",
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: ArrayLike, client: Any = None) -> Self:
        """Train the model.

        Parameters, result and errors are those of `FederatedGBDTClassifier.fit`, without weights.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows. NaN marks a missing value.
        y : array, shape (n,)
            Labels of any kind, of two or more classes.
        client : array, shape (n,), optional
            Client of each row.
        """
        target = target_name(y)
        X, labels = self._accept(X, y)
        codes = self._learn_classes(labels, None)
        self._fit(X, codes, self.classes_, target=target, assignment=client)
        return self

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Decrease of the Gini impurity by the splits on each feature, float64, shape (d,).

        It is computed as in scikit-learn: per tree, scaled to a sum of 1, then averaged.

        Raises
        ------
        AttributeError
            If the released model does not contain the number of rows of its nodes.
        """
        check_is_fitted(self)
        trees = [_importances(t, self.n_features_in_) for t in self.model_.trees if len(t) > 1]
        if not trees:
            return np.zeros(self.n_features_in_)
        mean: NDArray[np.float64] = np.mean(trees, axis=0)
        total = float(mean.sum())
        return mean / total if total else mean

    def save_model(self, path: str | PathLike[str]) -> None:
        """Write the forest as a NumPy ``.npz`` file.

        `fedtrees.trees.files.forests.load_random_forest` reads it. XGBoost's format cannot
        represent it: leaves contain class shares, and trees are averaged. Columns of dtype
        ``category`` whose categories are numbers have thresholds in these numbers, so that the file
        predicts from the values of the table. For all remaining categories, the file contains the
        names in the order of their codes (`fedtrees.trees.files.forests.load_columns`).

        Raises
        ------
        DataError
            If the file cannot be written, or the categories of a column are numbers that do not
            increase with their codes, so that no threshold separates them.
        UsageError
            If its name does not end in .npz.
        """
        check_is_fitted(self)
        if not str(path).endswith(".npz"):
            raise UsageError(f"{path}: a random forest is written as arrays; end it in .npz")
        forest = self.model_ if self.bootstrap else self.model_.counted_once()
        save_random_forest(forest, path, self.training_.schema.features)


def _importances(tree: ClassTree, n_features: int) -> NDArray[np.float64]:
    """Return the scaled decrease of the Gini impurity by feature of one tree."""
    if tree.counts is None:
        raise AttributeError(
            "feature_importances_: the released trees carry no class counts; train with "
            "leaf_counts=true"
        )
    counts = tree.counts.astype(np.float64)
    rows = counts.sum(axis=1)
    # Number of rows times Gini impurity.
    impurity = rows - (counts**2).sum(axis=1) / np.maximum(rows, 1)
    inner = np.flatnonzero(tree.feature >= 0)
    gain = impurity[inner] - impurity[tree.left[inner]] - impurity[tree.right[inner]]
    total = np.bincount(tree.feature[inner], weights=gain, minlength=n_features)
    return total / (total.sum() or 1.0)
