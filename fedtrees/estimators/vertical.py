"""Federated gradient boosting over parties that have different columns of the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import NoiseFrom, Streams
from fedtrees.data.partition import spread_columns
from fedtrees.estimators.boosting import TREE_PARAMETERS
from fedtrees.estimators.federated import ClassifierPart, FederatedEstimator, target_name
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.vertical.protocol import VerticalProtocol
from fedtrees.trees.boosted.params import TreeParams

#: Parameters of protocols in which parties have different rows.
_HORIZONTAL = {
    "early_stopping_rounds", "validation_fraction", "enable_categorical", "max_cat_to_onehot",
    "max_cat_threshold",
}  # fmt: skip
#: Columns of one party: their names, or their positions.
Columns = Sequence[str] | Sequence[int]


class FederatedVerticalGBDTClassifier(ClassifierPart, FederatedEstimator):
    """Gradient boosting of classes, trained by parties with different columns of the same rows.

    For example, a bank and a shop have different facts about the same customers, and the bank has
    the labels. The first party has the labels. It is called ``active`` in views and threats, and
    the others are called ``passive-1``, ``passive-2``, ...

    Parameters
    ----------
    n_estimators : int
        Boosting rounds, as in `fedtrees.FederatedGBDTClassifier`.
    learning_rate : float
        Shrinkage, as in `fedtrees.FederatedGBDTClassifier`.
    max_depth, max_leaves : int
        Limits on the size of a tree, as in `fedtrees.FederatedGBDTClassifier`.
    grow_policy : {"depthwise", "lossguide"}
        Order of the splits, as in `fedtrees.FederatedGBDTClassifier`.
    max_bin : int
        Largest number of bins per feature, as in `fedtrees.FederatedGBDTClassifier`.
    reg_lambda, reg_alpha, gamma, min_child_weight : float
        Regularisation, as in `fedtrees.FederatedGBDTClassifier`.
    subsample, colsample_bytree, colsample_bylevel, colsample_bynode : float
        Sampling of rows and features, as in `fedtrees.FederatedGBDTClassifier`.
    base_score : float or None
        Initial prediction of every row, as in `fedtrees.FederatedGBDTClassifier`.
    protocol : str
        A protocol for a vertical partition, for example ``"secureboost"`` or
        ``"secureboost[crypto=phe]"``.
    defense : str or None
        Spec, composed with ``+``.
    n_parties : int
        Number of parties, over which the columns are distributed at random. Ignored if `fit`
        receives the columns of every party.
    ranges : mapping of str to (float, float), optional
        Declared public range of features by name.
    random_state : int, RandomState or None
        Distributes the columns and seeds every draw of the run, except for noise.
    noise_from : {"system", "seed"}
        ``seed``: `random_state` also seeds the noise, see `fedtrees.FederatedGBDTClassifier`.

    Attributes
    ----------
    classes_ : array, shape (K,)
        Labels of the classes.
    columns_ : dict of str to intp array
        Positions of the columns of every party by its name.
    training_ : Training
        Protocol, model and transcript of the training.
    transcript_ : Transcript
        Every message of the training.
    local_data_ : dict of str to LocalData
        Local data of each party by name: the ground truth for scoring attacks.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of str, shape (d,)
        Names of the features if X was a DataFrame.

    Notes
    -----
    Predictions need the columns of all parties. In the protocol no party has the complete model,
    and the parties predict together.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedVerticalGBDTClassifier
    >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    >>> model = FederatedVerticalGBDTClassifier(n_estimators=3, max_depth=3, random_state=0)
    >>> model = model.fit(X, y, columns=[X.columns[:10], X.columns[10:]])
    >>> [len(columns) for columns in model.columns_.values()]
    [10, 20]
    >>> round(model.score(X, y), 2)
    0.98
    """

    _fields: ClassVar = {
        "n_estimators": "trees",
        **{name: name for name in TREE_PARAMETERS if name not in _HORIZONTAL},
    }
    _forest = False
    _layout = VerticalProtocol.layout

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
        protocol: str = "secureboost",
        defense: str | None = None,
        n_parties: int = 2,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        random_state: Any = None,
        noise_from: NoiseFrom = "system",
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: ArrayLike, columns: Sequence[Columns] | None = None) -> Self:
        """Train the model.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows with the columns of all parties. NaN marks a missing value.
        y : array, shape (n,)
            Labels of any kind, of two or more classes. The first party has them.
        columns : sequence of sequences, optional
            Columns of every party, as names of a DataFrame or as positions. Every column belongs to
            exactly one party.

        Returns
        -------
        self : FederatedVerticalGBDTClassifier
            The trained estimator.

        Raises
        ------
        DataError
            If rows or labels are invalid (it is a ValueError).
        UsageError
            If parameters are invalid, or a column belongs to no party or to several.
        """
        target = target_name(y)
        X, labels = self._accept(X, y)
        codes = self._learn_classes(labels, None)
        self._fit(X, codes, self.classes_, target=target, assignment=columns)
        return self

    def _distribute(
        self, table: Table, schema: Schema, protocol: Protocol, seed: int, assignment: Any
    ) -> dict[str, LocalData]:
        """Return the columns of every party. The first party also gets the labels."""
        if assignment is None:
            names = protocol.holder_names(self.n_parties)
            rng = Streams(seed).child("federation").rng("partition")
            self.columns_ = spread_columns("iid", {}, schema, names, rng)
        else:
            parts = [self._positions(part) for part in assignment]
            taken = [column for part in parts for column in part]
            if sorted(taken) != list(range(self.n_features_in_)):
                raise UsageError(
                    f"columns: {len(taken)} columns for {self.n_features_in_} features; give every "
                    "column to exactly one party"
                )
            names = protocol.holder_names(len(parts))
            sorted_parts = (np.array(sorted(part), dtype=np.intp) for part in parts)
            self.columns_ = dict(zip(names, sorted_parts, strict=True))
        rows = np.arange(len(table))
        return {
            name: LocalData(rows, part, table.X[:, part], table.y if name == names[0] else None)
            for name, part in self.columns_.items()
        }

    def _positions(self, columns: Columns) -> list[int]:
        """Return the positions of columns that are given by name or by position."""
        positions = []
        for column in columns:
            if isinstance(column, str):
                if column not in self._names:
                    raise UsageError(
                        f"columns: no column {column!r}{did_you_mean(column, self._names)}"
                    )
                positions.append(self._names.index(column))
            else:
                positions.append(int(column))
        return positions

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows with the columns of all parties.

        Returns
        -------
        leaves : int32 array, shape (n, trees)
            Number of the leaf that a row reaches, by row and tree.
        """
        check_is_fitted(self)
        return self.training_.leaves(self._rows(X))

    def _fits_kind(self, maker: type[Protocol]) -> bool:
        """Return whether a protocol trains boosted trees."""
        return issubclass(maker, TreeParams)
