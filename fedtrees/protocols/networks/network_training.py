"""Federated training of a perceptron: FedSGD and FedAvg (McMahan et al. 2017).

The server agrees with the clients on the standardisation of inputs, then sends weights and averages
the clients' updates, round after round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import ExampleStage
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.parameters import one_of, positive, whole
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_bounded, check_equal, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.messages.networks import (
    ColumnSums,
    ColumnSumsRequest,
    NetworkUpdate,
    NetworkWeights,
    Standardisation,
)
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.opacus_engine import OPACUS, poisson_batch
from fedtrees.neural.perceptron import Layers, TabularNetwork
from fedtrees.neural.torch_module import torch_module
from fedtrees.neural.training import example_gradients, initial, mean_gradient
from fedtrees.protocols.base import ENCODED_FILE, Coordinator, Protocol, ProtocolInfo, Seat

Weights = NDArray[np.float32]  # weights of a network or their change, shape (parameters,)
Rows = NDArray[np.intp]  # numbers of the rows of a batch
#: Function of weights and rows that returns the mean gradient of these rows.
LocalGradient = Callable[[Weights, Rows], Weights]
#: Reason of the messages with weights, for the transcript.
WHY = "sums over the rows of the clients"


class NetworkClient(Party):
    """A client that takes gradient steps on batches of its local rows."""

    role = "client"

    def __init__(self, seat: Seat, protocol: NetworkProtocol) -> None:
        super().__init__(seat.name)
        self.data, self.params, self.defense = seat.table, protocol, seat.defense
        if self.data.weight is not None:
            raise DataError("networks take no sample weights; drop the weights")
        self.schema, self.summed, self.ready = seat.schema, Once(), Once()
        self.encoding, self.layers = Encoding.of(seat.schema), protocol.layers(seat.schema)
        self.rounds = Turns(protocol.rounds)

    @property
    def _declared_rows(self) -> int:
        """Number of rows that the update may reveal. A defense can replace the true number."""
        return self.defense.requirements.declared_rows or len(self.data)

    @handles(ColumnSumsRequest)
    def column_sums(self, message: ColumnSumsRequest) -> ColumnSums:
        """Answer with sums of the input columns, once. Refuse if statistics are declared."""
        if self.params.statistics == "public":
            refuse(message, "", "statistics=public: inputs are standardised by declared ranges")
        self.summed.take(message)
        raw = self.encoding.raw(self.data.X).astype(np.float64)
        present = ~np.isnan(raw)
        # Missing values contribute to no sum, so that each column has a separate count.
        raw = np.where(present, raw, 0.0)
        return ColumnSums(np.stack([present.sum(axis=0), raw.sum(axis=0), (raw**2).sum(axis=0)]))

    @handles(
        Standardisation,
        mean="once, at most 1e30 in size; with `statistics=public` as the declared ranges give it",
        std="as `mean`",
    )
    def standardise(self, message: Standardisation) -> None:
        """Compute the inputs of all rows, once."""
        shape = (len(self.encoding),)
        if message.mean.shape != shape or message.std.shape != shape:
            refuse(message, "mean", f"there are {shape[0]} input columns")
        for field in ("mean", "std"):
            check_bounded(message, field)
        if self.params.statistics == "public":
            agreed = declared(self.encoding, self.schema)
            check_equal(message, "mean", agreed.mean, "the mean of every input column")
            check_equal(message, "std", agreed.std, "the deviation of every input column")
        self.ready.take(message)
        self.encoding = self.encoding.standardised(message.mean, message.std)
        self.inputs = self.encoding.encode(self.data.X)

    @handles(
        NetworkWeights,
        round="in order, each once, at most the agreed rounds",
        weights="the agreed number, finite and at most 1e30 in size; gradients are clipped",
        chosen="names of the agreed number of clients; empty: all of them take part",
    )
    def update(self, message: NetworkWeights) -> NetworkUpdate:
        """Answer with the update of these weights on the client's rows, once in every round."""
        names = self._check_round(message)
        if self.name not in names:
            # A client that was not drawn sends zeros, so that the secure sum always has the same
            # clients.
            nothing = np.zeros_like(message.weights)
            return NetworkUpdate(message.round, nothing, np.zeros(1, np.int64))
        steps = self.params.batches(len(self.data), self.streams, message.round, self.defense)
        update = self.params.local(message.weights, steps, self.gradient)
        rows = self.params.rows_of_update(self._declared_rows)
        return NetworkUpdate(message.round, update * np.float32(rows), np.array([rows]))

    def _check_round(self, message: NetworkWeights) -> list[str]:
        """Return the participants of a round. Raise `BeyondParametersError` if they are not agreed.

        A secure sum hides a client only among the other participants.
        """
        if message.weights.shape != (self.layers.parameters,):
            refuse(message, "weights", f"the network has {self.layers.parameters} weights")
        check_bounded(message, "weights")
        clients = self.agreement.members("client")
        names = message.chosen.split(",") if message.chosen else list(clients)
        count = self.params.part_of(len(clients))
        if len(names) != count or names != [name for name in clients if name in names]:
            refuse(message, "chosen", f"{count} of {len(clients)} clients take part, in order")
        self.rounds.take(message, "round")
        return names

    def gradient(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the mean gradient of some rows.

        If a defense changes the gradients of single rows, they are computed separately and added.
        """
        batch = (self.layers, weights, self.inputs[rows], self.data.y[rows])
        if not self.defense.changes_examples:
            return mean_gradient(*batch)
        n = self._declared_rows
        # The accountant of the defense needs the sampling rate and the number of steps.
        rate = (
            min(self.params.batch / n, 1.0) if self.defense.requirements.poisson_sampling else 1.0
        )
        stage = ExampleStage("example-gradients", rate=rate, steps=self.params.steps_of_run(n))
        # Divided by the expected batch size, because the drawn size is secret under Poisson
        # sampling.
        examples = example_gradients(*batch, engine=self.defense.requirements.gradient_engine)
        changed = self.row_hook(stage, examples)
        return np.asarray(changed.sum(axis=0) / np.float32(self.params.batch), dtype=np.float32)


class NetworkServer(Coordinator):
    """The server. It agrees on the standardisation, then averages updates round after round."""

    def __init__(self, seat: Seat, protocol: NetworkProtocol) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema
        self.layers = protocol.layers(seat.schema)

    def train(self, net: Network) -> TabularNetwork:
        """Standardise, then request updates and apply their mean."""
        torch_module()
        encoding = self.settle(net)
        # The initial weights are drawn by the server and independent of the data.
        weights = initial(self.layers, self.streams.rng("weights"))
        for round in range(self.params.rounds):
            message = NetworkWeights(round, weights, self.chosen(net, round))
            replies = net.request("client", message, reason=WHY)
            mean = mean_update(replies, message, self.params.lr)
            weights = self.params.moved(weights, mean)
        return TabularNetwork(self.layers, weights, encoding)

    def settle(self, net: Network) -> Encoding:
        """Broadcast the mean and standard deviation of the inputs."""
        encoding = Encoding.of(self.schema)
        if self.params.statistics == "public":
            encoding = declared(encoding, self.schema)
        else:
            reason = "means and standard deviations of the input columns"
            total = net.request_sum("client", ColumnSumsRequest(), reason=reason)
            n, first, second = total.sums
            mean = first / np.maximum(n, 1)
            # Rounding can make the difference slightly negative.
            spread = np.maximum(second - n * mean**2, 0) / np.maximum(n - 1, 1)
            encoding = encoding.standardised(mean, np.sqrt(spread))
        message = Standardisation(encoding.mean, encoding.std)
        net.send(
            "client", message, reason="the mean and deviation by which all inputs are standardised"
        )
        return encoding

    def chosen(self, net: Network, round: int) -> str:
        """Draw the participants of a round. An empty string means all clients."""
        names, count = net.members("client"), self.params.part_of(len(net.members("client")))
        if count == len(names):
            return ""
        # Each client compares the number of participants with its agreement.
        drawn = self.streams.rng("clients", round).permutation(len(names))[:count]
        return ",".join(names[i] for i in sorted(drawn))


def mean_update(
    replies: Sequence[NetworkUpdate], sent: NetworkWeights, lr: float
) -> NDArray[np.float64]:
    """Return the mean of the updates, weighted by rows, float64, shape (parameters,).

    Parameters
    ----------
    replies : sequence of NetworkUpdate
        Updates, each multiplied with its number of rows.
    sent : NetworkWeights
        The request.
    lr : float
        Learning rate, for the error message.

    Raises
    ------
    DataError
        If the mean is not finite.
    """
    total, rows = np.zeros(len(sent.weights)), 0
    for reply in replies:
        total += reply.update
        rows += int(reply.rows[0])
    # Diverged weights would make all later rounds meaningless.
    if not np.isfinite(total).all():
        raise DataError(
            f"round {sent.round}: updates are not finite: the training diverges at lr={lr}; give a "
            "smaller lr"
        )
    return total / max(rows, 1)


def rows_in(batches: Sequence[NDArray[np.intp]], n: int) -> NDArray[np.bool_]:
    """Return which of n rows are in at least one batch, bool, shape (n,)."""
    used = np.zeros(n, dtype=bool)
    for rows in batches:
        used[rows] = True
    return used


def declared(encoding: Encoding, schema: Schema) -> Encoding:
    """Return an encoding with the standardisation that follows from the schema.

    Numbers are assumed to be uniform on their range, and all categories of a column to be equally
    frequent.

    Raises
    ------
    DataError
        If a numeric column declares no range.
    """
    low, high = (ends[encoding.feature].astype(np.float64) for ends in schema.ranges)
    numbers = encoding.category < 0
    missing = np.flatnonzero(numbers & ~(np.isfinite(low) & np.isfinite(high)))
    if len(missing):
        name = schema.names[encoding.feature[missing[0]]]
        raise DataError(
            f"statistics=public: column {name!r} declares no range; declare one in the schema, or "
            "leave out statistics"
        )
    # A column with k categories has k one-hot inputs, each with an assumed mean of 1 / k.
    share = 1 / np.bincount(encoding.feature)[encoding.feature]
    mean = np.where(numbers, (low + high) / 2, share)
    std = np.where(numbers, (high - low) / np.sqrt(12), np.sqrt(share * (1 - share)))
    return encoding.standardised(mean, std)


@dataclass(frozen=True, kw_only=True)
class NetworkProtocol(Protocol):
    """A perceptron with two hidden ReLU layers on one-hot, standardised rows (Vero et al. 2023).

    Parameters
    ----------
    batch : int
        Number of rows of a step.
    rounds : int
        Number of rounds, each with one broadcast of weights and one update per client.
    lr : float
        Learning rate of plain gradient descent.
    units : int
        Number of units of each hidden layer.
    statistics : {"sums", "public"}
        Source of the standardisation: mean and standard deviation of all clients' rows from a
        secure sum (the authors include test rows), or the declared ranges of the schema.
    """

    batch: int = whole(1, default=32)
    rounds: int = whole(1, default=100)
    lr: float = positive(0.1)
    units: int = whole(1, default=100)
    statistics: str = one_of(("sums", "public"), default="sums")

    info = ProtocolInfo(
        message_types=(
            ColumnSumsRequest, ColumnSums, Standardisation, NetworkWeights,
            NetworkUpdate,
        ),
        capabilities=frozenset(
            {"transform_examples", "poisson_sampling", "gradient_engine", "declared_rows"}
        ),
        adversaries=("server", "server+client"),
        model_file=ENCODED_FILE,
        extra_packages=("torch",),
    )  # fmt: skip
    party_types = {"server": NetworkServer, "client": NetworkClient}
    summed_types: ClassVar[tuple[type[Message], ...]] = (ColumnSums,)
    #: 1 if updates are gradients, -1 if they are steps against the gradient.
    along: ClassVar[int] = 1

    def layers(self, schema: Schema) -> Layers:
        """Return the architecture of the network for a schema."""
        inputs, outputs = len(Encoding.of(schema)), max(len(schema.classes), 2)
        return Layers((inputs, self.units, self.units, outputs))

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes."""
        if not schema.classes:
            raise UsageError(
                f"the target {schema.target!r} is a number; {self.name!r} is trained on classes"
            )

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse a client that has too few rows for a batch, and a target without classes."""
        self.check(schema)
        min_rows = max(self.rows_of_update(len(local_data)), self.batch)
        if len(local_data) < min_rows:
            raise DataError(
                f"{name!r} has {len(local_data)} rows, fewer than the {min_rows} that it "
                "must draw; give a smaller batch, or fewer clients"
            )

    @abstractmethod
    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the rows of every step that a client takes in a round.

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

    @abstractmethod
    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return a client's mean update.

        Parameters
        ----------
        weights : float32 array, shape (parameters,)
            Weights at the start of the round.
        steps : sequence of intp array
            Rows of every step.
        gradient : callable
            Mean gradient of rows at weights.
        """

    @abstractmethod
    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Return the weights after a round, from the mean update."""

    def rows_of_update(self, n: int) -> int:
        """Return the number of rows that a client's update is the mean of."""
        return self.batch

    def steps_of_run(self, n: int) -> int:
        """Return the largest number of steps of a client with n rows."""
        return self.rounds

    def part_of(self, clients: int) -> int:
        """Return the number of clients that take part in a round."""
        return clients

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_]:
        """Return the rows of a round's batches, bool, shape (n,).

        Parameters
        ----------
        n, streams, round, defense
            As in `batches`. None for no defense.
        """
        return rows_in(self.batches(n, streams, round, defense or Composition()), n)


def drawn(
    n: int,
    count: int,
    streams: Streams,
    round: int,
    step: int,
    defense: Composition | None = None,
) -> Rows:
    """Draw a batch from n rows.

    Parameters
    ----------
    n : int
        Number of rows of the client.
    count : int
        Number of rows of the batch, its expectation under Poisson sampling.
    streams : Streams
        Randomness of the client.
    round, step : int
        Round, and step within it.
    defense : Composition or None
        If it requires Poisson sampling, each row is drawn independently with probability
        ``count / n``, or ``count`` divided by the declared number of rows. This sample is secret
        like noise, because accountants use amplification by subsampling. None for no defense.
    """
    if defense is not None and defense.requirements.poisson_sampling:
        rng = streams.noise.rng("batch", round, step)
        rate = count / (defense.requirements.declared_rows or n)
        if defense.requirements.gradient_engine == OPACUS:
            return poisson_batch(n, rate, rng)
        return np.flatnonzero(rng.random(n) < rate)
    # A batch of fixed size has the rows with the smallest of n uniform numbers.
    u = streams.rng("batch", round, step).random(n)
    return np.sort(np.argsort(u, kind="stable")[:count])


@register.protocol("fedsgd-mlp")
@dataclass(frozen=True, kw_only=True)
class FedSGD(NetworkProtocol):
    """FedSGD (McMahan et al. 2017): every client sends the mean gradient of one batch per round.

    Clients draw a batch of `batch` rows in each round. Under a defense with Poisson sampling
    (``dp-sgd``), each row is drawn independently. The server takes a step against the mean
    gradient. The network is that of Vero et al. (2023) with random initial weights.
    """

    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the single batch of the round.

        Parameters
        ----------
        n, streams, round, defense
            As in `NetworkProtocol.batches`.
        """
        return [drawn(n, self.batch, streams, round, 0, defense)]

    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return the gradient of the batch.

        Parameters
        ----------
        weights, steps, gradient
            As in `NetworkProtocol.local`.
        """
        return gradient(weights, steps[0])

    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Take a step against the mean gradient."""
        return (weights - self.lr * update).astype(np.float32)


@register.protocol("fedavg-mlp")
@dataclass(frozen=True, kw_only=True)
class FedAvg(NetworkProtocol):
    """FedAvg (McMahan et al. 2017): clients train locally and send the change of their weights.

    In each round a client draws its rows for the round and passes through them `epochs` times in
    batches, in a new random order each time. Under a defense with Poisson sampling (``dp-sgd``),
    each step draws every row independently. The server adds the mean change, weighted by rows.

    Parameters
    ----------
    epochs : int
        Number of passes of a client in a round.
    local_rows : int
        Number of rows that a client draws for a round. 0 for all rows.
    clients_per_round : int
        Number of clients that the server draws for a round. 0 for all. The remaining clients send
        zeros, so that a secure sum always covers all clients.
    """

    rounds: int = 10
    epochs: int = whole(1, default=1)
    local_rows: int = whole(0, default=0)
    clients_per_round: int = whole(0, default=0)

    along: ClassVar[int] = -1

    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the batches of all epochs.

        Parameters
        ----------
        n, streams, round, defense
            As in `NetworkProtocol.batches`.
        """
        m = self.rows_of_update(defense.requirements.declared_rows or n)
        per_epoch = -(-m // self.batch)
        if defense.requirements.poisson_sampling:
            steps = range(self.epochs * per_epoch)
            return [drawn(n, self.batch, streams, round, step, defense) for step in steps]
        # The rows of a round are drawn once. Each epoch passes through them in a new order.
        rows = drawn(n, m, streams, round, 0)
        batches = []
        for epoch in range(self.epochs):
            order = streams.rng("order", round, epoch).permutation(rows)
            batches += [order[i : i + self.batch] for i in range(0, m, self.batch)]
        return batches

    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return the change of the weights after all steps.

        Parameters
        ----------
        weights, steps, gradient
            As in `NetworkProtocol.local`.
        """
        current, rate = weights, np.float32(self.lr)
        for rows in steps:
            current = current - rate * gradient(current, rows)
        return current - weights

    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Add the mean change."""
        return (weights + update).astype(np.float32)

    def rows_of_update(self, n: int) -> int:
        """Return the number of rows that a client draws for a round."""
        return self.local_rows or n

    def steps_of_run(self, n: int) -> int:
        """Return the number of steps of all rounds."""
        return self.rounds * self.epochs * -(-self.rows_of_update(n) // self.batch)

    def part_of(self, clients: int) -> int:
        """Return the number of clients that take part in a round, at most all of them."""
        return min(self.clients_per_round or clients, clients)
