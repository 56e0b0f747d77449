"""The protocols `ebm-merge` and `dp-ebm`: explainable boosting machines, merged by the server.

Clients train the machines on their local rows. In `dp-ebm` they add the noise of Nori et al. (2021)
before they send them.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Mechanism
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Channels
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import ApproximateDP, Guarantee, NoGuarantee
from fedtrees.core.local_data import LocalData
from fedtrees.core.network import Network
from fedtrees.core.parameters import positive, share, whole
from fedtrees.core.party import Party, handles, ignores
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.messages.additive import AdditiveModel, ClientShapes, MergedShapes
from fedtrees.messages.horizontal import GrowRequest
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.gaussian_dp import mu_of
from fedtrees.privacy.noise import Gaussian
from fedtrees.protocols.base import ENCODED_FILE, Coordinator, Protocol, ProtocolInfo, Seat
from fedtrees.protocols.settings import NoisyProtocol, epsilon_or_inf
from fedtrees.trees.forest.random_decision import undeclared


class ShapesClient(Party):
    """A client that trains an explainable boosting machine on its local rows."""

    role = "client"

    def __init__(self, seat: Seat, protocol: EBMMerge) -> None:
        super().__init__(seat.name)
        self.data, self.params, self.schema = seat.table, protocol, seat.schema
        self.asked = Turns(1)

    @handles(GrowRequest, round="0, and answered once: a second model would contain other noise")
    def train(self, message: GrowRequest) -> ClientShapes:
        """Answer once with a model. It has no bags if all rows belong to one class."""
        self.asked.take(message, "round")
        estimator = self.params.estimator(self.schema, self.params.seed_of(self.streams))
        if len(np.unique(self.data.y)) < 2:
            return no_shapes(len(self.schema.features))
        # interpret-core warns about noise from a seed. The run records the source of noise itself.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            estimator.fit(self.data.X.astype(np.float64), self.data.y, self.data.weight)
        return export_shapes(estimator)

    take = ignores(MergedShapes)


class MergingServer(Coordinator):
    """The server. It requests the clients' models, merges them and broadcasts the result."""

    def __init__(self, seat: Seat, protocol: EBMMerge) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema

    def train(self, net: Network) -> AdditiveModel:
        """Request, merge and broadcast the models."""
        self.params.enter_noise(net, len(self.schema.features))
        parts = net.request(
            "client", GrowRequest(0), reason="the model of each client, which are merged"
        )
        # Clients with rows of one class have no model.
        models = [p for p in parts if isinstance(p, ClientShapes) and len(p.bag_weights)]
        if not models:
            raise DataError(f"{self.params.name!r} needs a client with rows of both classes")
        sent = net.send("client", merge_shapes(models), reason="the merged model")
        return AdditiveModel(sent)


@register.protocol("ebm-merge")
@dataclass(frozen=True, kw_only=True)
class EBMMerge(Protocol):
    """Explainable boosting machines, trained by each client and merged (interpret-core 0.7).

    Every client fits an `ExplainableBoostingClassifier` without interactions on its local rows, and
    the server calls `merge_ebms`. The messages determine everything that ``to_json`` writes about a
    client's model. All columns are numeric, including codes of categories.

    Parameters
    ----------
    max_bins : int
        Largest number of bins of a column. A column with at most that many values has a bin per
        value.
    outer_bags : int
        Number of bags.
    max_rounds : int
        Largest number of boosting rounds of a bag over all columns.
    learning_rate : float
        Learning rate.
    """

    max_bins: int = whole(4, default=1024)
    outer_bags: int = whole(1, default=14)
    max_rounds: int = whole(1, default=50_000)
    learning_rate: float = positive(0.015)

    info = ProtocolInfo(
        message_types=(GrowRequest, ClientShapes, MergedShapes),
        adversaries=("server", "client"),
        extra_packages=("interpret",),
        model_file=ENCODED_FILE,
    )
    party_types = {"server": MergingServer, "client": ShapesClient}

    def estimator(self, schema: Schema, seed: int | None) -> Any:
        """Return the estimator that a client fits."""
        from interpret.glassbox import ExplainableBoostingClassifier

        return ExplainableBoostingClassifier(interactions=0, **self.settings(schema, seed))

    def settings(self, schema: Schema, seed: int | None) -> dict[str, Any]:
        """Return the training parameters of clients, by their name in interpret-core."""
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
        """Return the seed of a client's bags, from its streams."""
        return int(streams.rng("bags").integers(2**31))

    def enter_noise(self, net: Network, columns: int) -> None:
        """Record the privacy loss of the run. There is none without noise."""

    def check(self, schema: Schema) -> None:
        """Refuse a target without exactly two classes."""
        if len(schema.classes) != 2:
            raise UsageError(
                f"{self.name!r} trains on two classes; the target {schema.target!r} has "
                f"{len(schema.classes) or 'numbers'}"
            )


def export_shapes(fitted: Any) -> ClientShapes:
    """Return the message form of a fitted model, as a client sends it."""
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
    # One term per column, sorted by column.
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


def merge_shapes(models: list[ClientShapes]) -> MergedShapes:
    """Return the result of `merge_ebms` for the clients' models."""
    from interpret.glassbox import merge_ebms

    return MergedShapes(**_shapes(merge_ebms([rebuilt(m) for m in models])))


def rebuilt(m: ClientShapes) -> Any:
    """Return a client's model in the form that `merge_ebms` accepts."""
    from interpret.glassbox import ExplainableBoostingClassifier

    # `merge_ebms` reads only these attributes of a fitted estimator.
    estimator, d = ExplainableBoostingClassifier(), len(m.low)
    estimator.__dict__.update(
        has_fitted_=True, link_="logit", link_param_=np.nan, classes_=np.arange(2),
        n_features_in_=d, feature_types_in_=["continuous"] * d,
        feature_names_in_=[f"feature_{f}" for f in range(d)],
        feature_bounds_=np.stack([m.low, m.high], axis=1),
        bins_=[[m.cuts_of(f).copy()] for f in range(d)], term_features_=[(f,) for f in range(d)],
        bin_weights_=[m.bin_weights[part].copy() for part in m.bins],
        bagged_scores_=[m.scores[:, part].copy() for part in m.bins],
        bagged_intercept_=m.intercept.copy(), bag_weights_=m.bag_weights.copy(),
    )  # fmt: skip
    return estimator


def no_shapes(columns: int) -> ClientShapes:
    """Return the reply of a client that cannot train, because its rows belong to one class."""
    empty, ints = np.zeros(0), np.zeros(0, np.int64)
    return ClientShapes(
        empty, np.zeros(columns + 1, np.int64), np.zeros(3 * columns), np.zeros((0, 3 * columns)),
        empty, empty, np.full(columns, np.nan), np.full(columns, np.nan),
        histogram=empty, histogram_offsets=np.zeros(1, np.int64), unique=ints, iterations=ints,
    )  # fmt: skip


@register.protocol("dp-ebm")
@dataclass(frozen=True, kw_only=True)
class DPEBM(NoisyProtocol, EBMMerge):
    """`ebm-merge` of DP-EBMs (Nori et al. 2021, Algorithm 2), as in interpret-core.

    Each client adds Gaussian noise to the counts of equal-width bins over declared ranges, merges
    bins by these counts, and adds noise to the sums of residuals of each round's random splits.
    Clients have disjoint rows, so that `epsilon` holds for the merged model. Numbers of rows are
    sent without noise (`bag_weights`, which also determine the merging of bins). The default
    learning rate of interpret-core is .01.

    Parameters
    ----------
    epsilon : float
        In nats, for one row added or removed. inf means no noise: `ebm-merge` with these
        parameters.
    delta : float
        Failure probability of the guarantee.
    bin_share : float
        Share of epsilon for the bins. They also get half of delta.
    """

    max_bins: int = 32
    outer_bags: int = 1
    max_rounds: int = 300
    learning_rate: float = 0.05
    epsilon: float = epsilon_or_inf(4.0)
    delta: float = share(1e-5)
    bin_share: float = share(0.1)

    info = replace(
        EBMMerge.info,
        noised_types=(ClientShapes,),
        adversaries=("public", "server"),
        example_dataset="digits[rows=300]",  # all columns declare a range
    )

    def estimator(self, schema: Schema, seed: int | None) -> Any:
        """Return the estimator that a client fits."""
        if not self.noisy:
            return super().estimator(schema, seed)
        from interpret.privacy import DPExplainableBoostingClassifier

        return DPExplainableBoostingClassifier(
            epsilon=self.epsilon, delta=self.delta, bin_budget_frac=self.bin_share,
            privacy_bounds=dict(enumerate(self.ranges(schema))), **self.settings(schema, seed),
        )  # fmt: skip

    def ranges(self, schema: Schema) -> list[tuple[float, float]]:
        """Return the declared range of every column.

        Raises
        ------
        UsageError
            If a column declares no range. A range computed from rows would not be private.
        """
        ranges = [f.declared_range for f in schema.features]
        if None in ranges:
            raise UsageError(str(self.missing_requirement(schema, Composition())))
        return [r for r in ranges if r is not None]

    def missing_requirement(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return which columns declare no range."""
        return undeclared(schema)

    def scales(self, columns: int) -> tuple[float, float]:
        """Return the scales of the noise on counts of bins, in rows, and on sums of residuals."""
        half, share = self.delta / 2, self.bin_share
        # Every round of every bag releases one noisy sum per column.
        rounds = self.max_rounds * columns * self.outer_bags
        return (
            math.sqrt(columns) / mu_of(share * self.epsilon, half),
            math.sqrt(rounds) / mu_of((1 - share) * self.epsilon, half),
        )

    def seed_of(self, streams: Streams) -> int | None:
        """Return the seed of the noise. None for the system's randomness.

        A seed is used only in experiments with ``noise_from="seed"``. Seeds of interpret-core have
        31 bits, so that an adversary could try all of them and learn the noise.
        """
        return None if streams.secret else int(streams.noise.rng("noise").integers(2**31))

    def enter_noise(self, net: Network, columns: int) -> None:
        """Record the privacy loss of the counts of bins and of the sums of all rounds."""
        if not self.noisy:
            return
        rounds, message_name = self.max_rounds * columns * self.outer_bags, ClientShapes.__name__
        for scale, count in zip(self.scales(columns), (columns, rounds), strict=True):
            net.record_release("gaussian", l2=1, scale=scale, count=count, what=message_name)

    def claim(self) -> Guarantee:
        """Return the guarantee of each client's model, which also holds for the merged model."""
        return self._guarantee(float(self.epsilon)) if self.noisy else NoGuarantee()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy losses of a transcript."""
        if not self.noisy:
            return NoGuarantee()
        return self._guarantee(compose_releases(transcript.events, self.delta))

    def _guarantee(self, epsilon: float) -> ApproximateDP:
        return ApproximateDP(epsilon, self.delta, unprotected=("rows",))

    def noise_channels(self, schema: Schema) -> Channels:
        """Return that counts and scores contain noise. The merged cut points depend on it, too."""
        if not self.noisy:
            return {}
        reason = "Gaussian noise on counts of even bins, and on each round's sums"
        counts = Mechanism(reason, noise=Gaussian(self.scales(len(schema.features))[0]))
        # The distribution of the noise on scores depends on the merged bins and is not stated.
        rest = Mechanism(reason)
        return {
            (ClientShapes, "bin_weights"): counts,
            (ClientShapes, "scores"): rest,
            (ClientShapes, "cuts"): rest,
        }

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse missing values, and weights, which exceed the sensitivity of the noise."""
        if local_data.weight is not None:
            raise DataError(
                f"{self.name!r} does not support sample weights; drop the weights of {name!r}"
            )
        if self.noisy and np.isnan(local_data.X).any():
            raise DataError(f"{self.name!r} has no bins for missing values, as {name!r} has")

    def check(self, schema: Schema) -> None:
        """Refuse a target without exactly two classes, and columns without a declared range."""
        super().check(schema)
        self.ranges(schema)
