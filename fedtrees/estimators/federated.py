"""Base of all federated estimators: it distributes rows over clients and runs a protocol."""

import inspect
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.streams import NoiseFrom, Streams
from fedtrees.core.view import View
from fedtrees.data.partition import Rows, split, splits_columns
from fedtrees.estimators.columns import (
    categories_of,
    coded,
    features_of,
    float32_rows,
    read_cuts,
    validated,
)
from fedtrees.experiments.suite import Grid
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of
from fedtrees.trees.forest.params import ForestParams

if TYPE_CHECKING:
    from fedtrees.estimators.scoring import AttackScores


class FederatedEstimator(BaseEstimator):
    """Base class of the estimators, see `FederatedGBDTClassifier` for their common part.

    Subclasses declare in `_fields` which constructor parameters are parameters of the protocol.
    """

    _fields: ClassVar[Mapping[str, str]]  # parameter of the estimator -> parameter of the protocol
    _forest: ClassVar[bool]  # whether its protocols train random forests
    _layout: ClassVar[str] = Protocol.layout  # whether parties have rows or columns

    protocol: str
    defense: str | None
    n_clients: int
    cuts: Any
    ranges: Mapping[str, tuple[float, float]] | None
    random_state: Any
    noise_from: NoiseFrom
    training_: Training

    def _keep(self, parameters: Mapping[str, Any]) -> None:
        """Store the arguments of a constructor unchanged, as scikit-learn requires."""
        for name, value in parameters.items():
            if name != "self":
                setattr(self, name, value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def holdings_(self) -> Any:
        """Deprecated name of `local_data_`, removed in the next release."""
        return self.local_data_

    def _more_tags(self) -> dict[str, Any]:  # scikit-learn before 1.6
        return {"allow_nan": True}

    def _fit(
        self,
        X: NDArray[Any],
        y: NDArray[Any],
        classes: Collection[Any],
        *,
        target: str,
        weight: NDArray[Any] | None = None,
        assignment: Any = None,
    ) -> None:
        """Train on checked rows. Rows of weight 0 are left out.

        `assignment` is what `fit` received to distribute the table over the parties.
        """
        method, points = read_cuts(getattr(self, "cuts", None), self.n_features_in_)
        features = features_of(self._names, self._categories_at, self.ranges, points)
        schema = Schema(features, target, tuple(map(str, classes)))
        protocol, defense = self._protocol(method), self._composition()
        table = Table(float32_rows(X, self._names), y, weight)
        seed = _seed(self.random_state)
        self.local_data_ = self._distribute(table, schema, protocol, seed, assignment)
        self.training_ = train(
            protocol, self.local_data_, schema, defense=defense, seed=seed,
            noise_from=self.noise_from,
        ).to_rely_on()  # fmt: skip
        self.model_, self.transcript_ = self.training_.model, self.training_.transcript

    def _distribute(
        self, table: Table, schema: Schema, protocol: Protocol, seed: int, assignment: Any
    ) -> dict[str, LocalData]:
        """Return the local data of every party by name."""
        parts = self._parts(table, schema, assignment, seed)
        return over_clients([table.take(rows) for rows in parts])

    def _accept(self, X: Any, y: Any, *, numeric_y: bool = False) -> tuple[Any, Any]:
        """Return checked rows and labels, and store names and categories of the columns."""
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        categories = categories_of(X)
        names = list(X.columns) if categories else []
        X, y = validated(self, coded(X, categories), y, fit=True, numeric_y=numeric_y)
        self.categories_ = categories
        self._categories_at = {names.index(name): c for name, c in categories.items()}
        return X, y

    @property
    def _names(self) -> list[str]:
        """Names of the columns."""
        named = getattr(self, "feature_names_in_", None)
        return [f"x{k}" for k in range(self.n_features_in_)] if named is None else list(named)

    def _protocol(self, method: str | None) -> Protocol:
        """Create the protocol. Parameters of its spec replace the defaults of the estimator."""
        spec = _single(self.protocol)
        maker = register.get("protocol", spec.name)
        if isinstance(maker, type):
            self._check_kind(spec.name, maker)
        accepted = inspect.signature(maker).parameters
        params, defaults = dict(spec.params), type(self)()
        for name, field in self._fields.items():
            value, default = _plain(getattr(self, name)), getattr(defaults, name)
            if field in spec.params:
                if value not in (default, spec.params[field]):
                    raise UsageError(
                        f"{name}={value!r} and protocol={self.protocol!r} differ; give it once"
                    )
            # Pass only values that differ from the protocol's default. A protocol may lack a
            # parameter as long as the estimator has its default.
            elif value != (accepted[field].default if field in accepted else default):
                params[field] = value
        if method is not None:
            params["cuts"] = method
        instance: Protocol = register.make("protocol", Spec(spec.name, params))
        return instance

    def _check_kind(self, name: str, maker: type[Protocol]) -> None:
        """Raise `UsageError` unless a protocol trains models of this estimator's kind."""
        if maker.layout == self._layout and self._fits_kind(maker):
            return
        names = [n for n in register.names("protocol") if self._takes(n)]
        reason = f"{name!r} trains another kind of model"
        if maker.layout != self._layout:
            parts = "columns" if splits_columns(maker.layout) else "rows"
            reason = f"in {name!r}, parties have different {parts} of the table"
        kind = "random forests" if self._forest else "boosted trees"
        spread = "columns" if splits_columns(self._layout) else "rows"
        raise UsageError(
            f"protocol={name!r}: {type(self).__name__} trains {kind} and spreads {spread} over the "
            f"parties; {reason}. Use one of {', '.join(names)}, or `fedtrees model train -p {name}`"
        )

    def _takes(self, name: str) -> bool:
        """Return whether the estimator can train with the protocol of a name."""
        maker: Any = register.get("protocol", name)
        if not (isinstance(maker, type) and issubclass(maker, Protocol)):
            return False
        return maker.layout == self._layout and self._fits_kind(maker)

    def _fits_kind(self, maker: type[Protocol]) -> bool:
        """Return whether a protocol trains models of this estimator's kind.

        A protocol whose models are not random forests trains boosted trees if XGBoost can read its
        models.
        """
        if issubclass(maker, ForestParams):
            return self._forest
        return not self._forest and maker.info.model_file == Protocol.info.model_file

    def _composition(self) -> Composition:
        """Create the defenses."""
        if not isinstance(self.defense, str | None):
            raise UsageError(f"defense={self.defense!r}: give its spec as text, or None")
        composed = parse_composed([self.defense or "none"])
        if len(composed) != 1:
            raise UsageError(f"defense={self.defense!r}: give one; compose several with +")
        return Composition(tuple(register.make("defense", s) for s in composed[0].parts))

    def _parts(self, table: Table, schema: Schema, client: Any, seed: int) -> list[Rows]:
        """Return the row numbers of each client, without rows of weight 0."""
        used = np.ones(len(table), bool) if table.weight is None else table.weight > 0
        if client is not None:
            ids = column_or_1d(client, dtype=None)
            if len(ids) != len(table):
                raise DataError(f"{len(ids)} client ids for {len(table)} rows")
            if ids.dtype.kind == "f" and np.isnan(ids).any():
                row = int(np.flatnonzero(np.isnan(ids))[0])
                raise DataError(f"the client id of row {row} is missing; name a client for each")
            try:
                self.client_ids_, client_of_row = np.unique(ids, return_inverse=True)
            except TypeError as error:
                raise DataError(f"client ids must be all numbers or all text ({error})") from error
            return [
                np.flatnonzero(used & (client_of_row == k)) for k in range(len(self.client_ids_))
            ]
        if not isinstance(self.n_clients, Integral) or isinstance(self.n_clients, bool):
            raise UsageError(f"n_clients={self.n_clients!r}: give a whole number, 1 or more")
        rows = np.flatnonzero(used)
        # The partition has a separate stream, so that it does not depend on further draws.
        rng = Streams(seed).child("federation").rng("partition")
        parts = split("iid", table.take(rows), schema, int(self.n_clients), rng)
        self.client_ids_ = np.arange(len(parts))
        return [rows[part] for part in parts]

    def _rows(self, X: Any) -> NDArray[np.float32]:
        """Return checked rows to predict."""
        check_is_fitted(self)
        X = validated(self, coded(X, self.categories_), fit=False)
        return float32_rows(X, self._names)

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows.

        Returns
        -------
        leaves : int32 array, shape (n, trees)
            Number of the leaf that a row reaches, by row and tree.
        """
        rows = self._rows(X)
        leaves: NDArray[np.int32] = self.model_.apply(rows)
        return leaves

    def view(self, *principals: str) -> View:
        """Return the view of parties after the training, as the input of an attack.

        Parameters
        ----------
        *principals : str
            ``"server"``, ``"client-0"``, ... (client-i has the rows of ``client_ids_[i]``). Several
            parties collude.

        Returns
        -------
        view : View
            Local data, messages and public parameters that these parties know together.

        Raises
        ------
        UsageError
            If no party is named, or a party is unknown.
        """
        check_is_fitted(self)
        parties = self.transcript_.roles
        if not principals:
            raise UsageError(f"name the parties whose view is wanted, of {', '.join(parties)}")
        for name in principals:
            if name not in parties:
                raise UsageError(f"unknown party {name!r}{did_you_mean(str(name), parties)}")
        return view_of(self.training_, principals, self.local_data_)

    def attack(self, attack: str, threat: str = Grid.threats[0]) -> "AttackScores":
        """Attack the training as a benchmark does, and score the guess of the adversary.

        Parameters
        ----------
        attack : str
            An attack, optionally with parameters, for example ``"timberstrike"``. The command
            ``fedtrees explain PROTOCOL`` lists those that apply.
        threat : str
            The adversary: a party such as ``"client-2"``, several parties joined by ``+``, or a
            threat in the notation of the command line such as ``"server[queries=100]"``.

        Returns
        -------
        scores : AttackScores
            Every score of the attack with its blind baseline.

        Raises
        ------
        UsageError
            If the attack is unknown, the protocol does not have the party, or the attack does not
            apply although there is no defense.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from fedtrees import FederatedGBDTClassifier
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = FederatedGBDTClassifier(n_estimators=2, max_depth=3, random_state=0).fit(X, y)
        >>> result = model.attack("timberstrike", threat="client-2")
        >>> result.threat
        'client[index=2]'
        >>> result["leaf_counts_exact"]
        AttackScore(metric='leaf_counts_exact', score=1.0, blind=0.0, advantage=1.0)
        """
        from fedtrees.estimators.scoring import attack_estimator

        return attack_estimator(self, attack, threat)


class ClassifierPart(ClassifierMixin):
    """Part of federated classifiers: labels of classes, and probabilities."""

    classes_: NDArray[Any]
    training_: Training
    _rows: Callable[[Any], NDArray[np.float32]]

    def _learn_classes(self, y: NDArray[Any], weight: NDArray[Any] | None) -> NDArray[np.int64]:
        """Return labels as codes, shape (n,). Classes without positive weights are ignored.

        Raises
        ------
        DataError
            If there are fewer than two classes.
        """
        check_classification_targets(y)
        self.classes_ = np.unique(y if weight is None else y[weight > 0])
        if len(self.classes_) < 2:
            raise DataError(
                f"the rows are of {len(self.classes_)} class ({', '.join(map(str, self.classes_))})"
                "; a classifier needs two classes or more"
            )
        codes = np.searchsorted(self.classes_, y)
        return np.minimum(codes, len(self.classes_) - 1)  # rows of ignored classes have weight 0

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every class.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows.

        Returns
        -------
        probabilities : float64 array, shape (n, K)
            Columns are in the order of `classes_`.
        """
        rows = self._rows(X)
        predicted = self.training_.predict(rows)
        return np.column_stack([1 - predicted, predicted]) if predicted.ndim == 1 else predicted

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of every row.

        Parameters
        ----------
        X : array or DataFrame, shape (n, d)
            Rows.

        Returns
        -------
        classes : array, shape (n,)
            Labels from `classes_`: the first one of equally probable classes.
        """
        codes = self.predict_proba(X).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[codes]
        return classes


def _seed(random_state: Any) -> int:
    """Return the seed of a run.

    An integer is used unchanged, else it is drawn as in scikit-learn.
    """
    generator = check_random_state(random_state)  # raises an error for an invalid random state
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def _plain(value: Any) -> Any:
    """Return a parameter as a Python type. Searches of scikit-learn pass numpy types."""
    return value.item() if isinstance(value, np.generic) else value


def _single(protocol: Any) -> Spec:
    """Return the spec of a protocol, which must not be a grid."""
    if not isinstance(protocol, str):
        raise UsageError(f"protocol={protocol!r}: give its name, such as 'fedtree-hist'")
    specs = parse_grid(protocol)
    if len(specs) != 1:
        raise UsageError(f"protocol={protocol!r} is a grid; give one value each")
    return specs[0]


def target_name(y: Any) -> str:
    """Return the name of a pandas Series, else ``"y"``."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) else "y"
