"""What every protocol is: parties and a coordinator, run over a federation's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Composition, Context
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.core.network import LocalNetwork, Network
from fedtrees.core.party import Party, acting
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import View, see
from fedtrees.trees.boosted.forest import Forest


class Coordinator(Party):
    """The party that drives; the others answer."""

    role = "server"

    def train(self, net: Network) -> Forest:
        """Run the protocol and return the model it releases."""
        raise TypeError(f"{type(self).__name__} must define train(net)")


class Protocol(ABC):
    """Base of all horizontal protocols: a frozen dataclass whose fields are public parameters.

    Attributes
    ----------
    name : str
        Set by ``@register.protocol``.
    offers : frozenset of str
        What defenses and attacks may rely on: ``histograms`` (clients send gradient
        histograms), ``shared-histograms`` (clients receive the sums), ``summable`` (the server
        only ever adds the histograms it gets), ``server-decides`` (the server chooses splits and
        broadcasts them), ``leaf-values`` (the model's leaf values are known to clients),
        ``logistic-leaves`` (they are Newton steps of the binary log loss over all rows, should the
        target have two classes), ``softmax-leaves`` (the same of more classes); of forests,
        ``class-histograms`` (clients send class counts per bin), ``class-leaves`` (clients know
        the class shares of leaves), ``local-trees`` (clients know each other's own trees); of
        boosted trees that clients grow alone, ``shared-trees`` (clients know them) and
        ``newton-leaves`` (their leaves are Newton steps over all rows of one client); and
        ``tree-messages`` (leaves cross in messages, with the statistics behind them).
    summed : tuple of Message types
        Replies of which the coordinator learns only the sum, by an ideal secure sum.
    """

    name: ClassVar[str] = "protocol"
    offers: ClassVar[frozenset[str]] = frozenset()
    summed: ClassVar[tuple[type[Message], ...]] = ()

    @abstractmethod
    def coordinator(self, schema: Schema) -> Coordinator:
        """Make the driving party."""

    @abstractmethod
    def client(self, name: str, data: Table, schema: Schema, clip: float | None) -> Party:
        """Make one client around its rows."""

    def defended_client(self, name: str, data: Table, schema: Schema, by: Composition) -> Party:
        """Make one client that keeps to what the defenses ask of its training."""
        return self.client(name, data, schema, by.gradient_clip)

    def offers_on(self, schema: Schema) -> frozenset[str]:
        """Return what is offered on such a target."""
        return self.offers

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The public parameters, by name."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def mismatch(self, defense: Composition) -> str | None:
        """Return why a defense makes no sense here, None if it does."""
        for part in defense.parts:
            missing = part.requires - self.offers
            if missing:
                return (
                    f"{part.name!r} needs {', '.join(sorted(missing))}, "
                    f"which {self.name!r} does not have"
                )
        return None


@dataclass(frozen=True, eq=False)
class Training:
    """A finished run.

    Attributes
    ----------
    model : Forest
        As released to the clients.
    transcript : Transcript
    protocol : Protocol
    defense : Composition
    schema : Schema
    n_rows : int
        Training rows over all clients.
    context : Context
        The coordinator's, for answering queries.
    """

    model: Forest
    transcript: Transcript
    protocol: Protocol
    defense: Composition
    schema: Schema
    n_rows: int
    context: Context

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what an inference query gets, float64.

        Probabilities of class 1, shape (n,); of every class, (n, K), if there are more; or values.
        """
        return self.defense.answer(self.model.predict(X), self.context)


def client_names(count: int) -> list[str]:
    """Return the names of the clients, in order."""
    return [f"client-{i}" for i in range(count)]


def train(
    protocol: Protocol,
    clients: Sequence[Table],
    schema: Schema,
    *,
    defense: Composition | None = None,
    seed: int = 0,
) -> Training:
    """Run a protocol in one process.

    Parameters
    ----------
    protocol : Protocol
    clients : sequence of Table
        Rows of each client.
    schema : Schema
    defense : Composition, optional
        None is no defense.
    seed : int
        Every random draw of the run derives from it.

    Raises
    ------
    DataError
        If there is no client, or no client has a row.
    UnguardedMessageError
        If a defense meets a message it does not handle.
    """
    defense = defense or Composition()
    if not clients or not sum(map(len, clients)):
        raise DataError("a federation needs at least one client with at least one row")
    coordinator = protocol.coordinator(schema)
    net = LocalNetwork(
        defense=defense,
        schema=schema,
        parameters=protocol.parameters,
        streams=Streams(seed),
        summed=protocol.summed,
    )
    net.join(coordinator)
    for name, table in zip(client_names(len(clients)), clients, strict=True):
        rows = defense.prepare(table, net.context_of(name, "client"))
        net.join(protocol.defended_client(name, rows, schema, defense))
    with acting(coordinator):
        model = coordinator.train(net)
    context = net.context("server")
    model = defense.finish(model, context)
    n_rows = sum(map(len, clients))
    return Training(model, net.transcript, protocol, defense, schema, n_rows, context)


def view_of(training: Training, principals: Sequence[str], clients: Sequence[Table]) -> View:
    """Return what the principals know after a run.

    Parameters
    ----------
    training : Training
    principals : sequence of str
        Names of the colluding parties.
    clients : sequence of Table
        Rows of every client, in order; only the principals' own enter the view.
    """
    names = client_names(len(clients))
    tables = [t for n, t in zip(names, clients, strict=True) if n in principals]
    return View(
        principals=tuple(principals),
        roles=dict(training.transcript.roles),
        own=Table.concat(tables) if tables else None,
        schema=deepcopy(training.schema),  # nothing in a view leads back to the dataset
        protocol=training.protocol.name,
        parameters=training.protocol.parameters,
        n_rows=training.n_rows,
        defense=training.defense,
        seen=see(training.transcript, tuple(principals)),
    )
