"""Messages of the training of neural networks.

They contain the standardisation of columns, weights, updates and the model, and the model of
FedXGBllr (Ma et al. 2023), which consists of the trees of all clients and a network on their
outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message, Request, Reveal, Trait, message, summable
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import as_message, unpack
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, RatesNetwork, TabularNetwork
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import Objective, named_objective, start_margin
from fedtrees.trees.routing import LeafRouting, Routes


@message()
class ColumnSumsRequest(Request["ColumnSums"]):
    """Ask a client for the sums from which the server computes the standardisation."""


# Column sums are always summed securely by the protocol, without any defense.
@message(discloses={Reveal.FEATURES, Reveal.COUNTS}, traits={Trait.SUMMED_SECURELY})
class ColumnSums(Message):
    """Sums over a client's rows of every input column, before standardisation.

    Attributes
    ----------
    sums : float64 array, shape (3, D)
        Number of present values, their sum and the sum of their squares.
    """

    sums: NDArray[np.float64] = summable()


@message(discloses={Reveal.FEATURES})
class Standardisation(Message):
    """Mean and standard deviation of every input column over the rows of all clients.

    Attributes
    ----------
    mean, std : float32 array, shape (D,)
        In the units of the column.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]


# Weights depend on all rows of the earlier rounds.
@message(discloses={Reveal.MODEL, Reveal.LABELS, Reveal.FEATURES}, traits={Trait.NETWORK})
class NetworkWeights(Request["NetworkUpdate"]):
    """The network at the start of a round, sent to the clients to train on.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    weights : float32 array, shape (parameters,)
        In the order of `fedtrees.neural.perceptron.Layers.split`.
    chosen : str
        Names of the clients that take part in the round, joined by commas. Empty for all clients.
    """

    round: int
    weights: NDArray[np.float32]
    chosen: str = ""


# Defenses of sums and defenses of updates both act on this message.
@message(
    discloses={Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS}, traits={Trait.SUMMED, Trait.NETWORK}
)
class NetworkUpdate(Message):
    """A client's contribution to the network in a round.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    update : float32 array, shape (parameters,)
        `rows` times the mean gradient of a batch, or `rows` times the change of the weights in
        local training. 0 from a client that takes no part.
    rows : int64 array, shape (1,)
        Number of rows of that mean. Under Poisson sampling its expectation.
    """

    round: int
    update: NDArray[np.float32] = summable()
    # Summed in the same way, so that the server can divide by the total number of rows.
    rows: NDArray[np.int64] = summable()

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the unit of a field.

        Parameters
        ----------
        field : str
            ``"update"``, a mean that was multiplied by the number of rows, or ``"rows"``.

        Returns
        -------
        units : float
            Factor that the field was multiplied by.
        integers : bool
            Whether the field contains integers.
        """
        # The update is a mean that was multiplied with the number of rows.
        return (float(self.rows[0]), False) if field == "update" else (1.0, True)

    @property
    def series(self) -> str:
        """The round, because a different set of clients can take part in the next one."""
        return f"round {self.round}"


@message(discloses={Reveal.MODEL})
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

    sizes: NDArray[np.int64]
    weights: NDArray[np.float32]
    feature: NDArray[np.int64]
    category: NDArray[np.int64]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @staticmethod
    def of(network: TabularNetwork) -> NetworkModel:
        """Return the message form of a network.

        Parameters
        ----------
        network : TabularNetwork
            Trained network with its encoding.

        Returns
        -------
        NetworkModel
            Message with the same arrays.
        """
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


#: Number of rows whose hidden units are in memory at once.
_BLOCK = 4096


# The trees keep the statistics with which the clients shared them.
# The network adds no type of information to that of the trees.
@message(discloses=ClientModels.discloses, traits={Trait.STATISTICS, Trait.LEAVES}, kw_only=True)
class TreeNetworkModel(ClientModels):
    """The local models of all clients, and the network over the outputs of their trees.

    Attributes
    ----------
    objective : str
        Objective that converts the output of the network into a prediction.
    weights : float32 array, shape (parameters,)
        In the order of `fedtrees.neural.perceptron.RatesNetwork.split`.
    """

    objective: str
    weights: NDArray[np.float32]

    def model(self) -> TreeNetwork:
        """Return the model.

        Raises
        ------
        DataError
            If the shapes of the arrays do not match.
        """
        return TreeNetwork(self)


def tree_outputs(models: ClientModels, X: NDArray[Any]) -> NDArray[np.float32]:
    """Return the output of every tree for rows.

    The outputs are leaf values: log-odds or target values, learning rate included, without base
    scores. In the authors' code the output of every tree includes the base score of its model.

    Parameters
    ----------
    models : ClientModels
        Local models of all clients.
    X : float array, shape (n, d)
        Rows, NaN where a value is missing.

    Returns
    -------
    outputs : float32 array, shape (n, models, trees per model)
        Leaf values.

    Raises
    ------
    DataError
        If the models have different numbers of trees, or if X has fewer columns than they use.
    """
    trees = unpack(models)
    return leaf_values(trees, len(models.owner), Routes.of(trees), X)


def leaf_values(
    trees: list[Tree] | tuple[Tree, ...], models: int, routes: Routes, X: NDArray[Any]
) -> NDArray[np.float32]:
    """Return the leaf values of rows.

    Parameters
    ----------
    trees : sequence of Tree
        Trees of all models, model after model.
    models : int
        Number of models, each of which has as many trees.
    routes : Routes
        Routes of `trees`, which can be computed once for several blocks of rows.
    X : float array, shape (n, d)
        Rows, NaN where a value is missing.

    Returns
    -------
    values : float32 array, shape (n, models, trees per model)
        Values of the leaves that the rows reach.
    """
    leaves = routes.apply(X)
    values = np.empty((len(leaves), len(trees)), dtype=np.float32)
    for t, tree in enumerate(trees):
        values[:, t] = tree.value[leaves[:, t]]
    return values.reshape(len(values), models, len(trees) // models)


def start_of(models: ClientModels, objective: Objective) -> np.float32:
    """Return the constant that is added to the network's output: the mean base score, as a margin.

    Base scores are averaged in XGBoost's units. A client of one class (base score 0 or 1) therefore
    changes the log-odds by no more than its share.

    Parameters
    ----------
    models : ClientModels
        Local models of all clients.
    objective : Objective
        Loss function, which converts a base score into a margin.

    Returns
    -------
    float32
        Log-odds or target value.
    """
    # The mean is computed in float64 and rounded once.
    mean = np.asarray(np.mean(models.base_score, axis=0, dtype=np.float64), dtype=np.float32)
    return np.float32(start_margin(objective, mean)[0])


@dataclass(frozen=True, eq=False)
class TreeNetwork(LeafRouting):
    """Predictor of trees of several clients with a network over their outputs. It needs no torch.

    Attributes
    ----------
    message : TreeNetworkModel
        Trees and weights.
    """

    message: TreeNetworkModel

    def __post_init__(self) -> None:
        counts = self.message.trees
        if (
            not len(counts)
            or (counts != counts[0]).any()
            or counts.sum() != len(self.message.sizes)
        ):
            raise DataError(f"models of {counts.tolist()} trees; each must have as many")
        self.network  # noqa: B018 - refuses weights that do not fit

    @cached_property
    def trees(self) -> tuple[Tree, ...]:  # type: ignore[override]
        """All trees, model after model."""
        return tuple(unpack(self.message))

    @cached_property
    def objective(self) -> Objective:
        """Objective that converts the output into a prediction."""
        return named_objective(self.message.objective, 1)

    @cached_property
    def network(self) -> RatesNetwork:
        """Architecture of the network."""
        models, trees = len(self.message.trees), int(self.message.trees[0])
        return RatesNetwork.of(models, trees, len(self.message.weights))

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return log-odds or target values of rows.

        Parameters
        ----------
        X : float array, shape (n, d)
            Rows, NaN where a value is missing.

        Returns
        -------
        margin : float32 array, shape (n,)
            Output of the network plus the mean base score.
        """
        X = self._routes.rows(X)
        start = start_of(self.message, self.objective)
        margins = np.empty(len(X), dtype=np.float32)
        for begin in range(0, len(X), _BLOCK):
            # Blocks of rows limit the memory of the hidden units.
            block = slice(begin, begin + _BLOCK)
            V = leaf_values(self.trees, self.network.models, self._routes, X[block])
            margins[block] = self.network.outputs(self.message.weights, V) + start
        return margins

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities of class 1, or target values.

        Parameters
        ----------
        X : float array, shape (n, d)
            Rows, NaN where a value is missing.

        Returns
        -------
        predictions : float64 array, shape (n,)
            Prediction of every row.
        """
        return self.objective.predict(self.margin(X)[None])

    def as_message(self) -> TreeNetworkModel:
        """Return the message form of the model."""
        return self.message
