"""What the training of a network says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal, Trait, summable
from fedtrees.messages.models import as_message
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.model import TabularNetwork
from fedtrees.neural.perceptron import Layers


@dataclass(frozen=True, eq=False)
class ColumnSumsRequest(Message):
    """Ask a client for what its inputs are standardised by."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class ColumnSums(Message):
    """Sums over a client's rows of every input column, before it is standardised.

    `sums`: float64 array, shape (3, D). Present values, their sum and the sum of their squares.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class Standardisation(Message):
    """Mean and standard deviation of every input column.

    `mean, std`: float32 array, shape (D,).
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    mean: NDArray[np.float32]
    std: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class NetworkWeights(Message):
    """The network at the start of a round: train on it."""

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.NETWORK})
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.MODEL, Reveal.LABELS, Reveal.FEATURES}
    )
    round: int
    # shape (parameters,): as `fedtrees.neural.perceptron.Layers.split` takes them
    weights: NDArray[np.float32]
    chosen: str = ""  # names of the clients that take part, joined by commas; empty: all


@dataclass(frozen=True, eq=False)
class NetworkUpdate(Message):
    """What a client's rows say of the network in a round.

    `update`: float32 array, shape (parameters,). Times `rows`: the mean gradient of a batch, or how
    far local training moved the weights. 0 from a client that takes no part.
    `rows`: int64 array, shape (1,). How many rows that is the mean of; where rows are drawn each by
    itself, on average.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.NETWORK})
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS}
    )
    round: int
    update: NDArray[np.float32] = summable()
    rows: NDArray[np.int64] = summable()

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the rows that an update is the mean of, times these."""
        return (float(self.rows[0]), False) if field == "update" else (1.0, True)

    @property
    def series(self) -> str:
        """The round: others may take part in the next."""
        return f"round {self.round}"


@dataclass(frozen=True, eq=False)
class NetworkModel(Message):
    """A trained network with how rows become its inputs."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
    sizes: NDArray[np.int64]  # shape (layers + 1,)
    weights: NDArray[np.float32]  # shape (parameters,)
    # feature, category, mean, std: array, shape (D,): as `fedtrees.neural.encoding.Encoding` has
    # them
    feature: NDArray[np.int64]
    category: NDArray[np.int64]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @staticmethod
    def of(network: TabularNetwork) -> NetworkModel:
        """Return the message that tells a network."""
        e = network.encoding
        sizes = np.array(network.layers.sizes, dtype=np.int64)
        return NetworkModel(
            sizes, network.weights, e.feature.astype(np.int64), e.category, e.mean, e.std
        )

    def model(self) -> TabularNetwork:
        """Return the network.

        Raises `DataError` if the arrays do not fit one another.
        """
        layers = Layers(tuple(self.sizes.tolist()))
        layers.split(self.weights)
        encoding = Encoding(self.feature.astype(np.intp), self.category, self.mean, self.std)
        return TabularNetwork(layers, self.weights, encoding)


as_message.register(TabularNetwork, NetworkModel.of)
