"""Messages of the training of a neural network: standardisation, weights, updates, the model."""

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
    """Ask a client for the sums from which the server computes the standardisation."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class ColumnSums(Message):
    """Sums over a client's rows of every input column, before standardisation.

    Attributes
    ----------
    sums : float64 array, shape (3, D)
        Number of present values, their sum and the sum of their squares.
    """

    # Column sums are always summed securely by the protocol, without any defense.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED_SECURELY})
    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES, Reveal.COUNTS})
    sums: NDArray[np.float64] = summable()


@dataclass(frozen=True, eq=False)
class Standardisation(Message):
    """Mean and standard deviation of every input column, float32, shape (D,) each."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    mean: NDArray[np.float32]
    std: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class NetworkWeights(Message):
    """The network at the start of a round, sent to the clients to train on.

    Attributes
    ----------
    weights : float32 array, shape (parameters,)
        In the order of `fedtrees.neural.perceptron.Layers.split`.
    chosen : str
        Names of the clients that take part in the round, joined by commas. Empty for all clients.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.NETWORK})
    # Weights depend on all rows of the earlier rounds.
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.MODEL, Reveal.LABELS, Reveal.FEATURES}
    )
    round: int
    weights: NDArray[np.float32]
    chosen: str = ""


@dataclass(frozen=True, eq=False)
class NetworkUpdate(Message):
    """A client's contribution to the network in a round.

    Attributes
    ----------
    update : float32 array, shape (parameters,)
        `rows` times the mean gradient of a batch, or `rows` times the change of the weights in
        local training. 0 from a client that takes no part.
    rows : int64 array, shape (1,)
        Number of rows of that mean. Under Poisson sampling its expectation.
    """

    # Defenses of sums and defenses of updates both act on this message.
    traits: ClassVar[frozenset[Trait]] = frozenset({Trait.SUMMED, Trait.NETWORK})
    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS}
    )
    round: int
    update: NDArray[np.float32] = summable()
    # Summed in the same way, so that the server can divide by the total number of rows.
    rows: NDArray[np.int64] = summable()

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the factor that a field was multiplied with, and whether it has integers."""
        # The update is a mean that was multiplied with the number of rows.
        return (float(self.rows[0]), False) if field == "update" else (1.0, True)

    @property
    def series(self) -> str:
        """The round, because a different set of clients can take part in the next one."""
        return f"round {self.round}"


@dataclass(frozen=True, eq=False)
class NetworkModel(Message):
    """A trained network, and the encoding of rows as its inputs.

    Attributes
    ----------
    sizes : int64 array, shape (layers + 1,)
        Width of the inputs and of every layer.
    weights : float32 array, shape (parameters,)
        In the order of `fedtrees.neural.perceptron.Layers.split`.
    feature, category, mean, std : array, shape (D,)
        As in `fedtrees.neural.encoding.Encoding`.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL})
    sizes: NDArray[np.int64]
    weights: NDArray[np.float32]
    feature: NDArray[np.int64]
    category: NDArray[np.int64]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @staticmethod
    def of(network: TabularNetwork) -> NetworkModel:
        """Return the message form of a network."""
        e = network.encoding
        sizes = np.array(network.layers.sizes, dtype=np.int64)
        return NetworkModel(
            sizes, network.weights, e.feature.astype(np.int64), e.category, e.mean, e.std
        )

    def model(self) -> TabularNetwork:
        """Return the network.

        Raises
        ------
        DataError
            If the shapes of the arrays do not match.
        """
        layers = Layers(tuple(self.sizes.tolist()))
        layers.split(self.weights)
        encoding = Encoding(self.feature.astype(np.intp), self.category, self.mean, self.std)
        return TabularNetwork(layers, self.weights, encoding)


as_message.register(TabularNetwork, NetworkModel.of)
