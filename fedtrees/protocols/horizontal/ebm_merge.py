"""`ebm-merge`: clients train explainable boosting machines, the server merges them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError, check_positive, check_whole
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.messages.additive import AdditiveModel, ClientShapes, MergedShapes
from fedtrees.messages.shared_trees import GrowRequest
from fedtrees.protocols.base import ENCODED_FILE, Coordinator, Protocol


class ShapesClient(Party):
    """A client that trains on its own rows."""

    role = "client"

    def __init__(self, name: str, data: Table, protocol: EBMMerge, schema: Schema) -> None:
        super().__init__(name)
        self.data, self.params, self.schema = data, protocol, schema
        self.asked = Turns(1)

    @handles(GrowRequest, round="0, and answered once: a second model has noise of its own")
    def train(self, message: GrowRequest) -> ClientShapes:
        """Answer once with a model; one without bags if all rows are of one class."""
        self.asked.take(message, "round")
        made = self.params.estimator(self.schema, self.params.seed_of(self.streams))
        if len(np.unique(self.data.y)) < 2:
            return no_shapes(len(self.schema.features))
        with warnings.catch_warnings():  # of noise from a seed; a run says itself where it is from
            warnings.simplefilter("ignore", UserWarning)
            made.fit(self.data.X.astype(np.float64), self.data.y, self.data.weight)
        return told(made)

    @handles(
        MergedShapes,
        **dict.fromkeys(
            ("cuts", "offsets", "bin_weights", "scores", "intercept", "bag_weights", "low", "high"),
            "not read",
        ),
    )
    def take(self, message: MergedShapes) -> None:
        """Take note of the model."""


class MergingServer(Coordinator):
    """The server: asks for the clients' models, merges them and tells all."""

    def __init__(self, protocol: EBMMerge, schema: Schema) -> None:
        super().__init__("server")
        self.params, self.schema = protocol, schema

    def train(self, net: Network) -> AdditiveModel:
        """Collect, merge, broadcast."""
        self.params.enter_noise(net, len(self.schema.features))
        parts = net.ask("client", GrowRequest(0), why="each client's own model, to merge them")
        models = [p for p in parts if isinstance(p, ClientShapes) and len(p.bag_weights)]
        if not models:
            raise DataError(f"{self.params.name!r} needs a client with rows of both classes")
        sent = net.tell("client", merged(models), why="the merged model")
        assert isinstance(sent, MergedShapes)
        return AdditiveModel(sent)


@register.protocol("ebm-merge")
@dataclass(frozen=True, kw_only=True)
class EBMMerge(Protocol):
    """Explainable boosting machines, trained by each client and merged (interpret-core 0.7).

    Every client fits an `ExplainableBoostingClassifier` without interactions on its own rows, the
    server calls `merge_ebms`. What crosses determines all that ``to_json`` writes of a client's
    model. Columns are numbers, codes of categories too.

    Parameters
    ----------
    max_bins : int
        Of a column; with as many values or fewer, each has a bin for itself.
    outer_bags : int
    max_rounds : int
        Boosting rounds of a bag over all columns, at most.
    learning_rate : float
    """

    max_bins: int = 1024
    outer_bags: int = 14
    max_rounds: int = 50_000
    learning_rate: float = 0.015

    says: ClassVar[tuple[type[Message], ...]] = (GrowRequest, ClientShapes, MergedShapes)
    adversaries: ClassVar[tuple[str, ...]] = ("server", "client")
    needs: ClassVar[tuple[str, ...]] = ("interpret",)
    file: ClassVar[tuple[str, str]] = ENCODED_FILE

    def __post_init__(self) -> None:
        for name, least in {"max_bins": 4, "outer_bags": 1, "max_rounds": 1}.items():
            check_whole(name, getattr(self, name), least)
        check_positive("learning_rate", self.learning_rate)

    def estimator(self, schema: Schema, seed: int | None) -> Any:
        """Return what a client fits."""
        from interpret.glassbox import ExplainableBoostingClassifier

        return ExplainableBoostingClassifier(interactions=0, **self.settings(schema, seed))

    def settings(self, schema: Schema, seed: int | None) -> dict[str, Any]:
        """Return what clients train with, as interpret-core calls it."""
        return {
            "feature_names": list(schema.names),
            "feature_types": ["continuous"] * len(schema.features),
            "max_bins": self.max_bins,
            "outer_bags": self.outer_bags,
            "max_rounds": self.max_rounds,
            "learning_rate": self.learning_rate,
            "random_state": seed,
            "n_jobs": 1,
        }

    def seed_of(self, streams: Streams) -> int | None:
        """Return the seed of a client's bags, given its streams."""
        return int(streams.rng("bags").integers(2**31))

    def enter_noise(self, net: Network, columns: int) -> None:
        """Enter what is spent into the ledger: nothing, without noise."""

    def check(self, schema: Schema) -> None:
        """Refuse a target that is not of two classes."""
        if len(schema.classes) != 2:
            raise UsageError(
                f"{self.name!r} trains on two classes; the target {schema.target!r} has "
                f"{len(schema.classes) or 'numbers'}"
            )

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> MergingServer | ShapesClient:
        """Make the server or a client."""
        if held is None:
            return MergingServer(self, schema)
        return ShapesClient(name, held.table, self, schema)


def told(fitted: Any) -> ClientShapes:
    """Return a fitted model as a client tells it."""
    histogram = getattr(fitted, "histogram_weights_", [])
    steps = getattr(fitted, "best_iteration_", np.zeros(0))
    return ClientShapes(
        **_shapes(fitted),
        histogram=np.concatenate([np.zeros(0), *histogram]),
        histogram_offsets=np.cumsum([0, *map(len, histogram)], dtype=np.int64),
        unique=np.asarray(getattr(fitted, "unique_val_counts_", []), dtype=np.int64),
        iterations=np.asarray(steps, dtype=np.int64).reshape(-1),
    )


def _shapes(fitted: Any) -> dict[str, NDArray[Any]]:
    cuts = [levels[0] for levels in fitted.bins_]
    order = np.argsort([feature for (feature,) in fitted.term_features_])
    bounds = np.asarray(fitted.feature_bounds_, dtype=np.float64)
    return {
        "cuts": np.concatenate([np.zeros(0), *cuts]),
        "offsets": np.cumsum([0, *map(len, cuts)], dtype=np.int64),
        "bin_weights": np.concatenate([fitted.bin_weights_[t] for t in order]).astype(np.float64),
        "scores": np.concatenate([fitted.bagged_scores_[t] for t in order], axis=1),
        "intercept": np.asarray(fitted.bagged_intercept_, dtype=np.float64),
        "bag_weights": np.asarray(fitted.bag_weights_, dtype=np.float64),
        "low": bounds[:, 0].copy(),
        "high": bounds[:, 1].copy(),
    }


def merged(models: list[ClientShapes]) -> MergedShapes:
    """Return what `merge_ebms` makes of clients' models."""
    from interpret.glassbox import merge_ebms

    return MergedShapes(**_shapes(merge_ebms([rebuilt(m) for m in models])))


def rebuilt(m: ClientShapes) -> Any:
    """Return a client's model as `merge_ebms` takes it."""
    from interpret.glassbox import ExplainableBoostingClassifier

    made, d = ExplainableBoostingClassifier(), len(m.low)
    made.__dict__.update(
        has_fitted_=True, link_="logit", link_param_=np.nan, classes_=np.arange(2),
        n_features_in_=d, feature_types_in_=["continuous"] * d,
        feature_names_in_=[f"feature_{f}" for f in range(d)],
        feature_bounds_=np.stack([m.low, m.high], axis=1),
        bins_=[[m.cuts_of(f).copy()] for f in range(d)], term_features_=[(f,) for f in range(d)],
        bin_weights_=[m.bin_weights[part].copy() for part in m.bins],
        bagged_scores_=[m.scores[:, part].copy() for part in m.bins],
        bagged_intercept_=m.intercept.copy(), bag_weights_=m.bag_weights.copy(),
    )  # fmt: skip
    return made


def no_shapes(columns: int) -> ClientShapes:
    """Return what a client says that cannot train."""
    none, whole = np.zeros(0), np.zeros(0, np.int64)
    return ClientShapes(
        none, np.zeros(columns + 1, np.int64), np.zeros(3 * columns), np.zeros((0, 3 * columns)),
        none, none, np.full(columns, np.nan), np.full(columns, np.nan),
        histogram=none, histogram_offsets=np.zeros(1, np.int64), unique=whole, iterations=whole,
    )  # fmt: skip
