"""What federations that train a network share: encoding, standardisation, rounds of updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import add_messages
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Stage
from fedtrees.core.errors import DataError, UsageError, check_known, check_positive, check_whole
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_equal, refuse
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.messages.networks import (
    ColumnSums,
    ColumnSumsRequest,
    NetworkUpdate,
    NetworkWeights,
    Standardisation,
)
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.model import TabularNetwork
from fedtrees.neural.perceptron import Layers
from fedtrees.neural.training import example_gradients, initial, mean_gradient, torch_module
from fedtrees.protocols.base import ENCODED_FILE, Coordinator, Protocol
from fedtrees.protocols.networks.network_canaries import GradientCanaries, NetworkCanaries

Weights = NDArray[np.float32]  # of a network, or a change of them, shape (parameters,)
Rows = NDArray[np.intp]  # of a batch, by number
#: The mean gradient of some rows at some weights.
LocalGradient = Callable[[Weights, Rows], Weights]
#: Why weights are sent out.
WHY = "what the clients' rows say of the network"
#: Whole numbers that a protocol takes, and the smallest of each.
_COUNTS = {
    "batch": 1,
    "rounds": 1,
    "units": 1,
    "epochs": 1,
    "local_rows": 0,
    "clients_per_round": 0,
}


class NetworkClient(Party):
    """A client: takes steps on batches of its own rows."""

    role = "client"

    def __init__(
        self,
        name: str,
        data: Table,
        protocol: NetworkProtocol,
        schema: Schema,
        defense: Composition,
    ) -> None:
        super().__init__(name)
        if data.weight is not None:
            raise DataError("networks take no sample weights; drop the weights")
        self.data, self.params, self.defense = data, protocol, defense
        self.encoding, self.layers = Encoding.of(schema), protocol.layers(schema)
        self.schema, self.summed, self.ready = schema, Once(), Once()
        self.rounds = Turns(protocol.rounds)

    @property
    def rows_told(self) -> int:
        """How many rows others may conclude that it has."""
        return self.defense.declared_rows or len(self.data)

    @handles(ColumnSumsRequest)
    def column_sums(self, message: ColumnSumsRequest) -> ColumnSums:
        """Answer with sums of the input columns, once; refused where statistics are declared."""
        if self.params.statistics == "public":
            refuse(message, "", "statistics=public: inputs are standardised by declared ranges")
        self.summed.take(message)
        raw = self.encoding.raw(self.data.X).astype(np.float64)
        there = ~np.isnan(raw)
        raw = np.where(there, raw, 0.0)
        return ColumnSums(np.stack([there.sum(axis=0), raw.sum(axis=0), (raw**2).sum(axis=0)]))

    @handles(
        Standardisation,
        mean="once; with `statistics=public` what follows from declared ranges",
        std="as `mean`",
    )
    def standardise(self, message: Standardisation) -> None:
        """Make inputs of all rows, once."""
        shape = (len(self.encoding),)
        if message.mean.shape != shape or message.std.shape != shape:
            refuse(message, "mean", f"there are {shape[0]} input columns")
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
        weights="any of the agreed number: gradients are clipped whatever the weights are",
        chosen="names of the agreed number of clients; empty: all of them take part",
    )
    def update(self, message: NetworkWeights) -> NetworkUpdate:
        """Answer with what its rows say of these weights, once in every round."""
        names = self.check_round(message)
        if self.name not in names:
            nothing = np.zeros_like(message.weights)
            return NetworkUpdate(message.round, nothing, np.zeros(1, np.int64))
        steps = self.params.batches(len(self.data), self.streams, message.round, self.defense)
        update = self.params.local(message.weights, steps, self.gradient)
        rows = self.params.rows_of_update(self.rows_told)
        return NetworkUpdate(message.round, update * np.float32(rows), np.array([rows]))

    def check_round(self, message: NetworkWeights) -> list[str]:
        """Return who takes part in a round; raises `BeyondParametersError` if that is not agreed.

        A secure sum hides a client only among the others that take part.
        """
        if message.weights.shape != (self.layers.parameters,):
            refuse(message, "weights", f"the network has {self.layers.parameters} weights")
        clients = self.agreement.members("client")
        names = message.chosen.split(",") if message.chosen else list(clients)
        count = self.params.part_of(len(clients))
        if len(names) != count or names != [name for name in clients if name in names]:
            refuse(message, "chosen", f"{count} of {len(clients)} clients take part, in order")
        self.rounds.take(message, "round")
        return names

    def gradient(self, weights: NDArray[np.float32], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the mean gradient of some rows, by example where a defense acts on those."""
        batch = (self.layers, weights, self.inputs[rows], self.data.y[rows])
        if not self.defense.changes_examples:
            return mean_gradient(*batch)
        n = self.rows_told
        rate = min(self.params.batch / n, 1.0) if self.defense.poisson_sampling else 1.0
        stage = Stage("example-gradients", rate=rate, steps=self.params.steps_of_run(n))
        changed = self.row_hook(stage, example_gradients(*batch))
        return np.asarray(changed.sum(axis=0) / np.float32(self.params.batch), dtype=np.float32)


class NetworkServer(Coordinator):
    """The server: settles the standardisation, then sums updates round after round."""

    def __init__(self, protocol: NetworkProtocol, schema: Schema) -> None:
        super().__init__("server")
        self.params, self.schema = protocol, schema
        self.layers = protocol.layers(schema)

    def train(self, net: Network) -> TabularNetwork:
        """Standardise, then ask for updates and take them."""
        torch_module()
        encoding = self.settle(net)
        weights = initial(self.layers, self.streams.rng("weights"))
        for round in range(self.params.rounds):
            message = NetworkWeights(round, weights, self.chosen(net, round))
            replies = net.ask("client", message, why=WHY)
            mean = mean_update(replies, message, self.params.lr)
            weights = self.params.moved(weights, mean)
        return TabularNetwork(self.layers, weights, encoding)

    def settle(self, net: Network) -> Encoding:
        """Tell everybody by what inputs are standardised."""
        encoding = Encoding.of(self.schema)
        if self.params.statistics == "public":
            encoding = declared(encoding, self.schema)
        else:
            why = "means and standard deviations of the input columns"
            total = add_messages(net.ask("client", ColumnSumsRequest(), why=why))
            assert isinstance(total, ColumnSums)
            n, first, second = total.sums
            mean = first / np.maximum(n, 1)
            spread = np.maximum(second - n * mean**2, 0) / np.maximum(n - 1, 1)
            encoding = encoding.standardised(mean, np.sqrt(spread))
        message = Standardisation(encoding.mean, encoding.std)
        net.tell("client", message, why="by what all inputs are standardised")
        return encoding

    def chosen(self, net: Network, round: int) -> str:
        """Draw who takes part in a round; empty: everybody."""
        names, count = net.members("client"), self.params.part_of(len(net.members("client")))
        if count == len(names):
            return ""
        drawn = self.streams.rng("clients", round).permutation(len(names))[:count]
        return ",".join(names[i] for i in sorted(drawn))


def mean_update(replies: Sequence[Message], sent: NetworkWeights, lr: float) -> NDArray[np.float64]:
    """Return the mean of the updates by rows, float64, shape (parameters,).

    Raises `DataError` if it is not finite.
    """
    total, rows = np.zeros(len(sent.weights)), 0
    for reply in replies:
        assert isinstance(reply, NetworkUpdate)
        total += reply.update
        rows += int(reply.rows[0])
    if not np.isfinite(total).all():
        raise DataError(
            f"round {sent.round}: updates are not finite: the training diverges at lr={lr}; give a "
            "smaller lr"
        )
    return total / max(rows, 1)


def rows_in(batches: Sequence[NDArray[np.intp]], n: int) -> NDArray[np.bool_]:
    """Return which of n rows are in some batch."""
    used = np.zeros(n, dtype=bool)
    for rows in batches:
        used[rows] = True
    return used


def declared(encoding: Encoding, schema: Schema) -> Encoding:
    """Return an encoding that is standardised by what the schema declares.

    Numbers as if uniform on their range, categories as if all were as frequent.

    Raises `DataError` if a number declares no range.
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
    share = 1 / np.bincount(encoding.feature)[encoding.feature]
    mean = np.where(numbers, (low + high) / 2, share)
    std = np.where(numbers, (high - low) / np.sqrt(12), np.sqrt(share * (1 - share)))
    return encoding.standardised(mean, std)


@dataclass(frozen=True, kw_only=True)
class NetworkProtocol(Protocol):
    """A perceptron with two hidden ReLU layers on one-hot, standardised rows (Vero et al. 2023).

    `batch`: Rows of a step.
    `rounds`: How often weights are sent out and updates come back.
    `lr`: Learning rate of plain gradient descent.
    `units`: Units of each hidden layer.
    `statistics`: {"sums", "public"}. What inputs are standardised by: mean and standard deviation
    of everybody's rows, from a secure sum (the authors take test rows in, too), or what the schema
    declares.
    """

    batch: int = 32
    rounds: int = 100
    lr: float = 0.1
    units: int = 100
    statistics: str = "sums"

    says: ClassVar[tuple[type[Message], ...]] = (
        ColumnSumsRequest, ColumnSums, Standardisation, NetworkWeights, NetworkUpdate,
    )  # fmt: skip
    serves: ClassVar[frozenset[str]] = frozenset({"rows", "poisson_sampling", "declared_rows"})
    summed: ClassVar[tuple[type[Message], ...]] = (ColumnSums,)
    adversaries: ClassVar[tuple[str, ...]] = ("server", "server+client")
    file: ClassVar[tuple[str, str]] = ENCODED_FILE
    needs: ClassVar[tuple[str, ...]] = ("torch",)
    #: Whether updates are gradients, or steps against them (-1).
    along: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            check_whole(name, getattr(self, name, least), least)
        check_positive("lr", self.lr)
        check_known("statistics", self.statistics, ("sums", "public"))

    def layers(self, schema: Schema) -> Layers:
        """Return the sizes of the network on such rows."""
        inputs, outputs = len(Encoding.of(schema)), max(len(schema.classes), 2)
        return Layers((inputs, self.units, self.units, outputs))

    def canaries(self) -> NetworkCanaries:
        """Make rows that updates are looked at for."""
        return NetworkCanaries(self.batch, self.along)

    def check(self, schema: Schema) -> None:
        """Refuse a target without classes."""
        if not schema.classes:
            raise UsageError(
                f"the target {schema.target!r} is a number; {self.name!r} is trained on classes"
            )

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse a client that cannot fill a batch, and a target without classes."""
        self.check(schema)
        wanted = max(self.rows_of_update(len(held)), self.batch)
        if len(held) < wanted:
            raise DataError(
                f"{name!r} holds {len(held)} rows, fewer than the {wanted} it is to draw; give "
                "a smaller batch, or fewer clients"
            )

    @abstractmethod
    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the rows of every step that a client with n rows takes in a round."""

    @abstractmethod
    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return a client's update, per row."""

    @abstractmethod
    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Return the weights after a round."""

    def rows_of_update(self, n: int) -> int:
        """Return how many rows an update of a client with n rows is the mean of."""
        return self.batch

    def steps_of_run(self, n: int) -> int:
        """Return how many steps a client with n rows takes at most."""
        return self.rounds

    def part_of(self, clients: int) -> int:
        """Return how many clients take part in a round."""
        return clients

    def grown_on(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_]:
        """Return the rows of a round's batches."""
        return rows_in(self.batches(n, streams, round, defense or Composition()), n)

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> NetworkServer | NetworkClient:
        """Make the server or a client."""
        if held is None:
            return NetworkServer(self, schema)
        return NetworkClient(name, held.table, self, schema, defense)


def drawn(
    n: int, count: int, streams: Streams, round: int, step: int, poisson: bool, told: int = 0
) -> Rows:
    """Draw a batch of n rows: `count` of them, or each by itself with probability count / told.

    Where no number of rows is told, of n. Who is drawn by itself is secret: accountants take less
    epsilon for it.
    """
    u = (streams.noise if poisson else streams).rng("batch", round, step).random(n)
    if poisson:
        return np.flatnonzero(u < count / (told or n))
    return np.sort(np.argsort(u, kind="stable")[:count])


@register.protocol("fedsgd-mlp")
@dataclass(frozen=True, kw_only=True)
class FedSGD(NetworkProtocol):
    """FedSGD (McMahan et al. 2017): every client sends the mean gradient of one batch a round.

    Clients draw a batch of so many rows, other ones each round; under a defense that needs it
    (``dp-sgd``), each row by itself. The server takes a step along the mean. The network is that
    of Vero et al. (2023), untrained at the start.
    """

    def worst_case(self, defense: Composition) -> tuple[FedSGD, GradientCanaries] | None:
        """Send one sum, over nearly all rows, of a small network."""
        clip = next((p.clip for p in defense.parts if hasattr(p, "clip")), None)
        one = replace(self, rounds=1, batch=32, units=4, statistics="public")
        return None if clip is None else (one, GradientCanaries(one.batch, float(clip)))

    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the one batch of the round."""
        told = defense.declared_rows
        return [drawn(n, self.batch, streams, round, 0, defense.poisson_sampling, told)]

    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return the gradient."""
        return gradient(weights, steps[0])

    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Take a step against the gradient."""
        return (weights - self.lr * update).astype(np.float32)


@register.protocol("fedavg-mlp")
@dataclass(frozen=True, kw_only=True)
class FedAvg(NetworkProtocol):
    """FedAvg (McMahan et al. 2017): clients take steps of their own and send how far they got.

    Each round a client draws its rows for it, and goes through them `epochs` times in batches, in
    an order drawn anew each time. Under a defense that needs it (``dp-sgd``), each step draws each
    of all its rows by itself. The server takes the mean, by rows.

    Parameters
    ----------
    epochs : int
        How often a client goes through its rows in a round.
    local_rows : int
        How many of its rows it draws for a round; 0: all.
    clients_per_round : int
        How many clients the server draws for a round; 0: all. The others send zeros, so that a
        secure sum is over all.
    """

    rounds: int = 10
    epochs: int = 1
    local_rows: int = 0
    clients_per_round: int = 0

    along: ClassVar[int] = -1

    def batches(self, n: int, streams: Streams, round: int, defense: Composition) -> list[Rows]:
        """Return the batches of all epochs."""
        told = defense.declared_rows
        m = self.rows_of_update(told or n)
        per_epoch = -(-m // self.batch)
        if defense.poisson_sampling:
            steps = range(self.epochs * per_epoch)
            return [drawn(n, self.batch, streams, round, step, True, told) for step in steps]
        rows = drawn(n, m, streams, round, 0, False)
        found = []
        for epoch in range(self.epochs):
            order = streams.rng("order", round, epoch).permutation(rows)
            found += [order[i : i + self.batch] for i in range(0, m, self.batch)]
        return found

    def local(self, weights: Weights, steps: Sequence[Rows], gradient: LocalGradient) -> Weights:
        """Return how far the steps moved the weights."""
        at, rate = weights, np.float32(self.lr)
        for rows in steps:
            at = at - rate * gradient(at, rows)
        return at - weights

    def moved(self, weights: Weights, update: NDArray[np.float64]) -> Weights:
        """Add the mean."""
        return (weights + update).astype(np.float32)

    def rows_of_update(self, n: int) -> int:
        """Return how many rows a client draws for a round."""
        return self.local_rows or n

    def steps_of_run(self, n: int) -> int:
        """Return the steps of all rounds."""
        return self.rounds * self.epochs * -(-self.rows_of_update(n) // self.batch)

    def part_of(self, clients: int) -> int:
        """Return how many clients take part in a round; at most all."""
        return min(self.clients_per_round or clients, clients)
