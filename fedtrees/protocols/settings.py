"""Public parameters that families of protocols share: boosted trees, random forests, and columns.

They add checks, the capabilities of the family, and the locally trained model that results are
compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import honest_shares
from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.core.local_data import LocalData, LocalDataSummary
from fedtrees.core.messages import Message
from fedtrees.core.parameters import checked, flag, one_of
from fedtrees.core.results import ACTIVE_ONLY
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.protocols.base import Protocol, ProtocolInfo
from fedtrees.protocols.training import Training
from fedtrees.trees.boosted.boosting import dropped_rows
from fedtrees.trees.boosted.losses import OBJECTIVES, Logistic, Objective, objective_of
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.forest.params import ForestParams


@dataclass(frozen=True, kw_only=True)
class BoostingProtocol(TreeParams, Protocol):
    """Boosted trees with the parameters of the engine (`TreeParams`) and an objective.

    Parameters
    ----------
    objective : str or None
        Loss function. None chooses it by the target.
    """

    objective: str | None = one_of(OBJECTIVES, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == Logistic.name:
            self._check_probability()

    def objective_for(self, schema: Schema) -> Objective:
        """Return the loss function for a target.

        Raises
        ------
        UsageError
            If the objective does not suit the target, or the base score does not suit the
            objective.
        """
        objective = objective_of(self.objective, schema.classes)
        if isinstance(objective, Logistic):
            self._check_probability()
        return objective

    def check(self, schema: Schema) -> None:
        """Check that the objective suits the target."""
        self.objective_for(schema)

    def _check_probability(self) -> None:
        score = self.base_score
        if score is not None and not 0 < score < 1:
            raise UsageError(
                f"base_score={score!r}: {Logistic.name} starts from a probability, strictly "
                "between 0 and 1"
            )


@dataclass(frozen=True, kw_only=True)
class SubsampledBoosting(BoostingProtocol):
    """Boosted trees of clients that each draw the rows of a round (`subsample`)."""

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows that a client's boosting round draws. None for all rows.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        round : int
            Boosting round of the client.
        defense : Composition or None
            Not used.
        """
        dropped = dropped_rows(n, self.subsample, streams, round)
        return None if dropped is None else ~dropped


@dataclass(frozen=True, kw_only=True)
class PlainBoosting(BoostingProtocol):
    """Binary classification with all rows and columns in every tree, level by level.

    Raises
    ------
    UsageError
        If a parameter asks for anything else.
    """

    trees: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subsample < 1 or self.samples_columns or self.grow_policy != "depthwise":
            raise UsageError(
                f"{self.name!r} grows trees level by level on all rows and columns: leave "
                "subsample, colsample_* and grow_policy out"
            )
        check_known("objective", self.objective or Logistic.name, (Logistic.name,))

    def objective_for(self, schema: Schema) -> Objective:
        """Return the logistic loss. Raise `UsageError` unless the target has two classes."""
        objective = super().objective_for(schema)
        if not isinstance(objective, Logistic):
            raise UsageError(f"{self.name!r} trains on two classes, not {objective.name}")
        return objective


#: Suffix and description of model files.
FOREST_FILE = (".npz", "a random forest; XGBoost has no such model")


@dataclass(frozen=True, kw_only=True)
class ForestProtocol(ForestParams, Protocol):
    """A random forest over the clients' rows, with the parameters of the engine (`ForestParams`).

    Parameters
    ----------
    leaf_counts : bool
        Send the clients the class counts of every leaf in addition to the predicted probabilities.
    """

    leaf_counts: bool = flag(True)

    info = ProtocolInfo(
        model_file=FOREST_FILE,
    )

    def save(self, training: Training, path: Path) -> None:
        """Write the forest to a file.

        If every tree counts every row once, the file states it.
        """
        once = training.defense.sums_exactly and not self.bootstrap
        model = training.model
        save_random_forest(model.counted_once() if once else model, path, training.schema.features)

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes."""
        class_count(schema)


def class_count(schema: Schema) -> int:
    """Return the number of classes K.

    Raises
    ------
    UsageError
        If the target has no classes.
    """
    if len(schema.classes) < 2:
        raise UsageError(
            f"random forests here classify; target {schema.target!r} has {len(schema.classes)} "
            "classes: use a boosting protocol"
        )
    return len(schema.classes)


def checked_rows(data: Table, n_classes: int) -> Table:
    """Return a client's rows if a forest can count them.

    Raises
    ------
    DataError
        If rows have weights, or a label is not a class code.
    """
    if data.weight is not None:
        raise DataError("random forests count rows and take no sample weights; drop the weights")
    if data.y.dtype.kind != "i" or (
        len(data) and not 0 <= data.y.min() <= data.y.max() < n_classes
    ):
        raise DataError(f"labels must be class codes from 0 to {n_classes - 1}")
    return data


#: Parties that can add the noise of a sum.
NOISE = ("central", "distributed")


def epsilon_or_inf(default: float) -> Any:
    """Return a field for a privacy loss above 0, where inf switches the noise off."""

    def check(name: str, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and value > 0):
            raise UsageError(f"{name}={value!r}: give a number > 0, or inf for no noise")

    return checked(check, default)


class NoisyProtocol(Protocol):
    """Base class of protocols with differentially private noise.

    Attributes
    ----------
    epsilon : float
        Privacy loss in nats. inf for no noise.
    """

    epsilon: float  # a field of the subclass, which determines the order of its parameters

    @property
    def noisy(self) -> bool:
        """Whether there is any noise."""
        return math.isfinite(self.epsilon)

    def without_noise(self) -> NoisyProtocol:
        """Return the same protocol without noise."""
        return replace(self, epsilon=math.inf)  # type: ignore[type-var]


class NoisySums(NoisyProtocol):
    """Base class of protocols with noise in sums over all clients.

    Attributes
    ----------
    noise : {"central", "distributed"}
        The server adds the noise, or each client adds a share of it before a secure sum.
    colluders : int
        Number of clients that know their own shares and collude.
    """

    noise: str
    colluders: int
    #: Replies that contain the shares, and that only a secure sum may open.
    noisy_sums: ClassVar[type[Message]]

    @property
    def summed_types(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Messages that clients send only to a secure sum, because their noise is too small."""
        return (self.noisy_sums,) if self.noise == "distributed" else ()

    def shares(self, clients: int) -> int:
        """Return the number of noise shares that add up to the whole noise.

        0 if the server adds the noise.

        Raises
        ------
        UsageError
            If there are not more clients than `colluders`.
        """
        return honest_shares(clients, self.colluders) if self.noise == "distributed" else 0

    def noise_shares(self, clients: int) -> dict[str, Any]:
        """Return the fields of a `BudgetEvent` that describe who adds the noise."""
        if self.noise == "central":
            return {"trusted": "server"}
        return {"trusted": "clients", "shares": clients, "calibrated": self.shares(clients)}

    def check_parties(self, parties: int) -> None:
        """Refuse a number of colluders that is not smaller than the number of clients."""
        self.shares(parties)


ACTIVE, PASSIVE = "active", "passive"


@dataclass(frozen=True, kw_only=True)
class VerticallyPartitioned(Protocol):
    """Base class of vertical protocols with one active party and at least one passive party."""

    layout: ClassVar[str] = "vertical"
    holders: ClassVar[tuple[str, ...]] = (ACTIVE, PASSIVE)
    info = ProtocolInfo(
        adversaries=(PASSIVE, ACTIVE),
        default_parties=2,
        local_reference=ACTIVE_ONLY,
        role_labels={
            ACTIVE: ("the party with the labels", "parties with labels together"),
            PASSIVE: ("a party without labels", "parties without labels together"),
        },
    )

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the roles: the active party, which has the labels, and the passive parties."""
        return {ACTIVE: ACTIVE, **{f"{PASSIVE}-{i}": PASSIVE for i in range(1, parties)}}

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse labels that all belong to one class."""
        y = local_data.y
        if y is not None and schema.classes and len(y) and (y == y[0]).all():
            raise DataError(f"all labels of {name!r} are of one class; it takes two classes")

    def check_joint_data(
        self, declarations: Mapping[str, LocalDataSummary], schema: Schema
    ) -> None:
        """Refuse labels at a passive party, unequal numbers of rows, and missing columns."""
        (active, first), *passive_parties = declarations.items()
        if not first.labels:
            raise DataError(f"{active!r} has no labels; give the labels to this party")
        for name, one in passive_parties:
            if one.labels:
                raise DataError(f"{name!r} has labels; only {active!r} may have them")
            if not one.columns:
                raise DataError(f"{name!r} has no column; give it one, or leave it out")
            if one.rows != first.rows:
                raise DataError(
                    f"{name!r} holds {one.rows} rows and {active!r} {first.rows}: align them by id"
                )
