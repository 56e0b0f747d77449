"""Protocol `fedxgbllr`: local trees of all clients, then a network over their outputs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import ExampleStage
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import names_of_type
from fedtrees.core.network import Network
from fedtrees.core.parameters import one_of, positive, whole
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_bounded, check_equal, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import ClientModels, ClientTrees, GrowRequest
from fedtrees.messages.networks import (
    NetworkUpdate,
    NetworkWeights,
    TreeNetwork,
    TreeNetworkModel,
    start_of,
    tree_outputs,
)
from fedtrees.neural.opacus_engine import OPACUS, per_sample_gradients
from fedtrees.neural.perceptron import Adam, RatesNetwork
from fedtrees.neural.torch_module import rates_module, torch_module
from fedtrees.protocols.base import ENCODED_FILE, Seat
from fedtrees.protocols.horizontal.tree_sharing import (
    BoostingClient,
    EnsembleServer,
    LocalEnsembles,
)
from fedtrees.protocols.networks.network_training import WHY, drawn, mean_update, rows_in
from fedtrees.trees.boosted.losses import SquaredError, sigmoid

#: Adam's decays, as in Flower's baseline.
DECAYS = (0.5, 0.999)
SENDS = ("update", "gradient")


class RatesClient(BoostingClient):
    """A client that boosts on its local rows, then trains a network on all clients' trees.

    Parameters
    ----------
    seat : Seat
        Name, local rows and defenses of the client.
    protocol : FedXGBllr
        Public parameters.
    """

    def __init__(self, seat: Seat, protocol: FedXGBllr) -> None:
        super().__init__(seat, protocol)
        self.protocol, self.defense = protocol, seat.defense
        self.ready, self.rounds = Once(), Turns(protocol.rounds, protocol.trees)

    @handles(
        ClientModels,
        **dict.fromkeys(
            names_of_type(ClientModels),
            "once, any: gradients are clipped whatever the inputs of the network are",
        ),
    )
    def end(self, message: ClientModels) -> None:  # type: ignore[override]
        """Compute the outputs of all clients' trees for the local rows, once."""
        self.ready.take(message)
        # The trees are fixed from now on, so that their outputs are computed once.
        self.inputs = tree_outputs(message, self.data.X)
        _, models, trees = self.inputs.shape
        self.network = RatesNetwork(models, trees, self.protocol.channels)
        self.begin = start_of(message, self.objective)

    @handles(
        NetworkWeights,
        round="in order, each once, at most the agreed rounds",
        weights="finite and at most 1e30 in size; gradients are clipped",
        chosen="empty: all clients take part",
    )
    def update(self, message: NetworkWeights) -> NetworkUpdate:
        """Answer with the change of the weights in local training, or with their gradient."""
        check_equal(message, "chosen", "", "the list of clients that are left out")
        if not self.ready.answered:
            refuse(message, "", "the trees that the network weighs were not sent yet")
        check_bounded(message, "weights")
        self.rounds.take(message, "round")
        n, params = len(self.data), self.protocol
        steps = params.batches(n, self.streams, message.round, self.defense)
        if not steps:
            nothing = np.zeros_like(message.weights)
            return NetworkUpdate(message.round, nothing, np.zeros(1, np.int64))
        if params.sends == "gradient":
            update, rows = self.gradient(message.weights, steps[0]), params.batch_of(n)
        else:
            adam, weights, rows = Adam(params.lr, DECAYS), message.weights, n
            for batch in steps:
                weights = adam.step(weights, self.gradient(weights, batch))
            update = weights - message.weights
        return NetworkUpdate(message.round, update * np.float32(rows), np.array([rows]))

    def gradient(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the mean gradient of some rows.

        If a defense changes the gradients of single rows, they are computed separately and added.
        """
        V, y = self.inputs[rows], self.data.y[rows].astype(np.float32)
        margin = self.network.outputs(weights, V) + self.begin
        if isinstance(self.objective, SquaredError):
            # The network minimises the squared error itself, not half of it as the boosting engine.
            slope = 2 * (margin - y)
        else:
            slope = sigmoid(margin) - y
        batch = np.float32(self.protocol.batch_of(len(self.data)))
        if not self.defense.changes_examples:
            return np.asarray(self.network.gradient(weights, V, slope) / batch, np.float32)
        n = len(self.data)
        rate = float(batch) / n if self.defense.requirements.poisson_sampling else 1.0
        stage = ExampleStage("example-gradients", rate=rate, steps=self.protocol.steps_of_run)
        if self.defense.requirements.gradient_engine == OPACUS:
            squared = isinstance(self.objective, SquaredError)
            examples = opacus_gradients(self.network, weights, V, y, self.begin, squared)
        else:
            examples = self.network.example_gradients(weights, V, slope).astype(np.float32)
        changed = self.row_hook(stage, examples)
        return np.asarray(changed.sum(axis=0) / batch, dtype=np.float32)


def opacus_gradients(
    network: RatesNetwork,
    weights: NDArray[np.float32],
    V: NDArray[np.float32],
    y: NDArray[np.float32],
    begin: float | np.floating[Any],
    squared: bool,
) -> NDArray[np.float32]:
    """Return the gradient of every row's loss by opacus, float32, shape (n, P).

    Parameters
    ----------
    network : RatesNetwork
    weights : float32 array, shape (P,)
    V : float32 array, shape (n, K, M)
        Outputs of the trees.
    y : float32 array, shape (n,)
    begin : float
        Number that is added to the outputs of the network.
    squared : bool
        Squared error, as for a numeric target. False: log loss of two classes.
    """
    nn = torch_module().nn
    loss = (nn.MSELoss if squared else nn.BCEWithLogitsLoss)(reduction="none")
    inputs = V.reshape(len(V), 1, -1).astype(np.float32)
    module = rates_module(network, weights)
    return per_sample_gradients(module, lambda z, target: loss(z + begin, target), inputs, y)


class RatesServer(EnsembleServer):
    """The server. It broadcasts all trees, then averages updates round after round."""

    params: FedXGBllr

    def train(self, net: Network) -> TreeNetwork:
        """Request trees, then request updates and apply their mean."""
        models = self.shared(net)
        params = self.params
        # The number of models and trees determines the architecture of the network.
        network = RatesNetwork(len(models.owner), int(models.trees[0]), params.channels)
        weights = network.initial(self.streams.rng("weights"))
        adam = Adam(params.lr, DECAYS)
        # Round numbers continue after those of boosting, so that `grown_on` distinguishes both.
        for round in range(params.trees, params.trees + params.rounds):
            message = NetworkWeights(round, weights)
            replies = net.request("client", message, reason=WHY)
            mean = mean_update(replies, message, params.lr).astype(np.float32)
            weights = adam.step(weights, mean) if params.sends == "gradient" else weights + mean
        model_fields = {f.name: getattr(models, f.name) for f in fields(models)}
        return TreeNetwork(
            TreeNetworkModel(**model_fields, objective=self.objective.name, weights=weights)
        )


@register.protocol("fedxgbllr")
@dataclass(frozen=True, kw_only=True)
class FedXGBllr(LocalEnsembles):
    """FedXGBllr (Ma et al. 2023): local trees of all clients, and a network that weighs them.

    First every client boosts `trees` rounds on its local rows, and all clients receive all models
    (`local-ensembles`). The inputs of the network are the outputs of all these trees for a row. The
    network has one convolution with a learning rate per tree, and is trained by FedAvg with Adam at
    the clients. As in Flower's baseline, kernel size and stride equal the number of trees, so that
    the trees of all clients share learning rates. Outputs of trees exclude base scores (unlike
    those of the authors), and the mean base score is added to the output of the network. Rounds of
    the network are numbered after the last round of boosting.

    Parameters
    ----------
    channels : int
        Number of channels of the convolution.
    rounds : int
        Number of rounds, each with one broadcast of weights and one update per client.
    iterations : int
        Number of steps of a client in a round.
    batch : int
        Number of rows of a step. All rows if it is 0 or exceeds the rows of a client. A client
        passes through its rows in a new random order each time. Under a defense with Poisson
        sampling (``dp-sgd``), each step draws every row independently.
    lr : float
        Learning rate of Adam.
    sends : {"update", "gradient"}
        Reply of a client: the change of the weights in its steps, or the mean gradient of one
        batch, with which the server takes a step of Adam (FedSGD).
    """

    trees: int = 100
    max_depth: int = 8
    learning_rate: float = 0.1
    channels: int = whole(1, default=64)
    rounds: int = whole(1, default=30)
    iterations: int = whole(1, default=100)
    batch: int = whole(0, default=64)
    lr: float = positive(1e-3)
    sends: str = one_of(SENDS, default="update")

    info = replace(
        LocalEnsembles.info,
        message_types=(
            GrowRequest, ClientTrees, ClientModels, NetworkWeights, NetworkUpdate,
        ),
        capabilities=frozenset(
            {"min_leaf_rows", "transform_examples", "poisson_sampling", "gradient_engine"}
        ),
        model_file=ENCODED_FILE,
        adversaries=("server", "client"),
    )  # fmt: skip
    party_types = {"server": RatesServer, "client": RatesClient}

    def check(self, schema: Schema) -> None:
        """Refuse more than two classes."""
        if self.objective_for(schema).n_outputs > 1:
            raise UsageError(
                f"the target {schema.target!r} has {len(schema.classes)} classes; {self.name!r} "
                "takes two, or a number, as its authors do: use 'local-ensembles'"
            )

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse sample weights, and more than two classes."""
        self.check(schema)
        if local_data.weight is not None:
            raise DataError("networks take no sample weights; drop the weights")

    @property
    def steps_of_run(self) -> int:
        """Number of steps of a client in the run."""
        return self.rounds * (1 if self.sends == "gradient" else self.iterations)

    def batch_of(self, n: int) -> int:
        """Return the number of rows of a step of a client with n rows."""
        return min(self.batch or n, n)

    def batches(
        self, n: int, streams: Streams, round: int, defense: Composition
    ) -> list[NDArray[np.intp]]:
        """Return the rows of every step that a client with n rows takes in a round.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        round : int
            Number of the round.
        defense : Composition
            Defense of the run. It can require Poisson sampling.
        """
        size, count = self.batch_of(n), 1 if self.sends == "gradient" else self.iterations
        if not n:
            return []
        if defense.requirements.poisson_sampling:
            return [drawn(n, size, streams, round, step, defense) for step in range(count)]
        passes = -(-count * size // n)
        # Concatenated permutations, cut into batches. A batch can span the end of a pass.
        order = [streams.rng("order", round, i).permutation(n) for i in range(passes)]
        return [np.sort(b) for b in np.concatenate(order)[: count * size].reshape(count, size)]

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows of a round of boosting, or of the batches of a round of the network.

        Parameters
        ----------
        n, streams, round, defense
            As in `batches`. None for no defense.
        """
        if round < self.trees:
            return super().training_rows(n, streams, round, defense)
        return rows_in(self.batches(n, streams, round, defense or Composition()), n)
