"""`fedxgbllr`: everybody's own trees, then a network over their outputs, trained together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Stage
from fedtrees.core.errors import DataError, UsageError, check_known, check_positive, check_whole
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, names_of_type
from fedtrees.core.network import Network
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_equal, refuse
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights
from fedtrees.messages.shared_trees import ClientModels, ClientTrees, GrowRequest
from fedtrees.messages.tree_networks import TreeNetwork, TreeNetworkModel, start_of, tree_outputs
from fedtrees.neural.adam import Adam
from fedtrees.neural.tree_outputs import RatesNetwork
from fedtrees.protocols.base import ENCODED_FILE
from fedtrees.protocols.horizontal.local_ensembles import EnsembleServer, LocalEnsembles
from fedtrees.protocols.horizontal.tree_sharing import BoostingClient
from fedtrees.protocols.networks.network_training import WHY, drawn, mean_update, rows_in
from fedtrees.trees.boosted.losses import SquaredError, sigmoid

#: Adam's decays, as in Flower's baseline.
DECAYS = (0.5, 0.999)
SENDS = ("update", "gradient")


class RatesClient(BoostingClient):
    """A client that boosts on its own rows, then trains a network on all clients' trees.

    Parameters as `BoostingClient`; `defense` acts on gradients of single rows.
    """

    def __init__(
        self, name: str, data: Table, schema: Schema, params: FedXGBllr, defense: Composition
    ) -> None:
        super().__init__(name, data, schema, params, defense.least_leaf_rows)
        self.protocol, self.defense = params, defense
        self.ready, self.rounds = Once(), Turns(params.rounds, params.trees)

    @handles(
        ClientModels,
        **dict.fromkeys(
            names_of_type(ClientModels),
            "once, any: gradients are clipped whatever the inputs of the network are",
        ),
    )
    def end(self, message: ClientModels) -> None:
        """Send its rows through everybody's trees, once."""
        self.ready.take(message)
        self.inputs = tree_outputs(message, self.data.X)
        _, models, trees = self.inputs.shape
        self.network = RatesNetwork(models, trees, self.protocol.channels)
        self.begin = start_of(message, self.objective)

    @handles(
        NetworkWeights,
        round="in order, each once, at most the agreed rounds",
        weights="any: gradients are clipped whatever the weights are",
        chosen="empty: all clients take part",
    )
    def update(self, message: NetworkWeights) -> NetworkUpdate:
        """Answer with how far its rows move these weights, or with their gradient."""
        check_equal(message, "chosen", "", "the list of clients that are left out")
        if not self.ready.answered:
            refuse(message, "", "the trees that the network weighs were not sent yet")
        self.rounds.take(message, "round")
        n, params = len(self.data), self.protocol
        steps = params.batches(n, self.streams, message.round, self.defense)
        if not steps:
            nothing = np.zeros_like(message.weights)
            return NetworkUpdate(message.round, nothing, np.zeros(1, np.int64))
        if params.sends == "gradient":
            found, rows = self.gradient(message.weights, steps[0]), params.batch_of(n)
        else:
            adam, at, rows = Adam(params.lr, DECAYS), message.weights, n
            for batch in steps:
                at = adam.step(at, self.gradient(at, batch))
            found = at - message.weights
        return NetworkUpdate(message.round, found * np.float32(rows), np.array([rows]))

    def gradient(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the mean gradient of some rows, by example where a defense acts on those."""
        V, y = self.inputs[rows], self.data.y[rows].astype(np.float32)
        margin = self.network.outputs(weights, V) + self.begin
        if isinstance(self.objective, SquaredError):
            slope = 2 * (margin - y)
        else:
            slope = sigmoid(margin) - y
        batch = np.float32(self.protocol.batch_of(len(self.data)))
        if not self.defense.changes_examples:
            return np.asarray(self.network.gradient(weights, V, slope) / batch, np.float32)
        n = len(self.data)
        rate = float(batch) / n if self.defense.poisson_sampling else 1.0
        stage = Stage("example-gradients", rate=rate, steps=self.protocol.steps_of_run)
        examples = self.network.example_gradients(weights, V, slope).astype(np.float32)
        changed = self.row_hook(stage, examples)
        return np.asarray(changed.sum(axis=0) / batch, dtype=np.float32)


class RatesServer(EnsembleServer):
    """The server: hands out everybody's trees, then averages updates round after round."""

    params: FedXGBllr

    def train(self, net: Network) -> TreeNetwork:
        """Collect trees, then ask for updates and take them."""
        models = self.shared(net)
        params = self.params
        network = RatesNetwork(len(models.owner), int(models.trees[0]), params.channels)
        weights = network.initial(self.streams.rng("weights"))
        adam = Adam(params.lr, DECAYS)
        for round in range(params.trees, params.trees + params.rounds):
            message = NetworkWeights(round, weights)
            replies = net.ask("client", message, why=WHY)
            mean = mean_update(replies, message, params.lr).astype(np.float32)
            weights = adam.step(weights, mean) if params.sends == "gradient" else weights + mean
        told = {f.name: getattr(models, f.name) for f in fields(models)}
        return TreeNetwork(TreeNetworkModel(**told, objective=self.objective.name, weights=weights))


@register.protocol("fedxgbllr")
@dataclass(frozen=True, kw_only=True)
class FedXGBllr(LocalEnsembles):
    """FedXGBllr (Ma et al. 2023): clients' own trees, and a network that weighs all of them.

    First every client boosts `trees` rounds on its own rows and all get all models
    (`local-ensembles`). Then a row is what all these trees say of it, and a network of one
    convolution, with a learning rate per tree, is trained by FedAvg with Adam at the clients. As in
    Flower's baseline kernel and stride are the number of trees, so that all clients' trees share
    learning rates. Trees' outputs hold no base scores (theirs do); the mean of these is added to
    the network's output. Rounds of the network are numbered on from the last round of boosting.

    Parameters
    ----------
    channels : int
        Of the convolution.
    rounds : int
        How often weights are sent out and updates come back.
    iterations : int
        Steps that a client takes in a round.
    batch : int
        Rows of a step; 0, or more than a client has: all of them. A client goes through its rows in
        an order drawn anew each time; under a defense that needs it (``dp-sgd``), each step
        draws every row by itself.
    lr : float
        Adam's learning rate.
    sends : {"update", "gradient"}
        What a client answers: how far its steps moved the weights, or the mean gradient of one
        batch, along which the server takes a step of Adam (FedSGD).
    """

    trees: int = 100
    max_depth: int = 8
    learning_rate: float = 0.1
    channels: int = 64
    rounds: int = 30
    iterations: int = 100
    batch: int = 64
    lr: float = 1e-3
    sends: str = "update"

    says: ClassVar[tuple[type[Message], ...]] = (
        GrowRequest, ClientTrees, ClientModels, NetworkWeights, NetworkUpdate,
    )  # fmt: skip
    serves: ClassVar[frozenset[str]] = frozenset({"least_leaf_rows", "rows", "poisson_sampling"})
    server: ClassVar[type[EnsembleServer]] = RatesServer
    file: ClassVar[tuple[str, str]] = ENCODED_FILE
    adversaries: ClassVar[tuple[str, ...]] = ("server", "client")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in {"channels": 1, "rounds": 1, "iterations": 1, "batch": 0}.items():
            check_whole(name, getattr(self, name), least)
        check_positive("lr", self.lr)
        check_known("sends", self.sends, SENDS)

    def check(self, schema: Schema) -> None:
        """Refuse a target of several classes."""
        if self.objective_for(schema).n_outputs > 1:
            raise UsageError(
                f"the target {schema.target!r} has {len(schema.classes)} classes; {self.name!r} "
                "takes two, or a number, as its authors do: use 'local-ensembles'"
            )

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse weights of rows, and targets of several classes."""
        self.check(schema)
        if held.weight is not None:
            raise DataError("networks take no sample weights; drop the weights")

    @property
    def steps_of_run(self) -> int:
        """How many steps a client takes."""
        return self.rounds * (1 if self.sends == "gradient" else self.iterations)

    def batch_of(self, n: int) -> int:
        """Return the rows of a step of a client with n rows."""
        return min(self.batch or n, n)

    def batches(
        self, n: int, streams: Streams, round: int, defense: Composition
    ) -> list[NDArray[np.intp]]:
        """Return the rows of every step that a client with n rows takes in a round."""
        size, count = self.batch_of(n), 1 if self.sends == "gradient" else self.iterations
        if not n:
            return []
        if defense.poisson_sampling:
            return [drawn(n, size, streams, round, step, True) for step in range(count)]
        passes = -(-count * size // n)
        order = [streams.rng("order", round, i).permutation(n) for i in range(passes)]
        return [np.sort(b) for b in np.concatenate(order)[: count * size].reshape(count, size)]

    def grown_on(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows of a round of boosting, or of a round's batches."""
        if round < self.trees:
            return super().grown_on(n, streams, round, defense)
        return rows_in(self.batches(n, streams, round, defense or Composition()), n)

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> RatesServer | RatesClient:
        """Make the server or a client."""
        if held is None:
            return RatesServer(self, schema)
        return RatesClient(name, held.table, schema, self, defense)
