"""Runs of a protocol in one process, and what they end with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation
from fedtrees.core.behaviour import turn
from fedtrees.core.channel import Share
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context, Stage
from fedtrees.core.errors import DataError, FedtreesError, UsageError
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP, without_noise
from fedtrees.core.host import Agreement, Host
from fedtrees.core.local_data import (
    Declared,
    LocalData,
    check_ids,
    check_own,
    check_together,
    rows_declared,
)
from fedtrees.core.messages import Message
from fedtrees.core.network import LocalNetwork
from fedtrees.core.party import Party, acting
from fedtrees.core.reasons import Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import NoiseFrom, Streams
from fedtrees.core.transcript import Transcript
from fedtrees.messages.models import as_message
from fedtrees.privacy.accounting import AdversaryEpsilon, epsilon_by_adversary, for_each_party
from fedtrees.protocols.base import Coordinator, Protocol
from fedtrees.protocols.fit import Data, fit
from fedtrees.protocols.limits import check_channels


@dataclass(frozen=True, eq=False)
class Training:
    """A finished run.

    Attributes
    ----------
    model : Model
        What the coordinator ended with; where the protocol releases it, as released.
    n_rows : int
        Training rows over all parties.
    context : Context
        The coordinator's, for answering queries.
    columns : mapping of str to intp array
        Columns of every holder, by name.
    net : LocalNetwork or None
        The parties, to ask again; None if the training was in an earlier process.
    noise_from : {"system", "seed"}
        Where noise came from (`fedtrees.core.streams.NoiseFrom`).
    void : bool
        Whether no claim that rests on noise holds (`to_rely_on`).
    behaviours : mapping of str to str
        Of the parties that cheat, by name.
    refused : str
        What an honest party said when it refused to go on; there is no model then.
    """

    model: Any
    transcript: Transcript
    protocol: Protocol
    defense: Composition
    schema: Schema
    n_rows: int
    context: Context
    columns: Mapping[str, NDArray[np.intp]]
    net: LocalNetwork | None = None
    noise_from: NoiseFrom = "seed"
    void: bool = False
    behaviours: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def to_rely_on(self) -> Training:
        """Return the run as who hands out its model may rely on it: noise from a seed is none.

        A bench measures what noise of the same law leaves; it has no claim to keep.
        """
        return replace(self, void=self.noise_from == "seed")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "net": None}  # the parties stay where they are

    def predict(self, X: NDArray[np.float32], on: Transcript | None = None) -> NDArray[np.float64]:
        """Return what an inference query gets, float64.

        Probabilities of class 1, shape (n,); of every class, (n, K), if there are more; or values.
        """
        return self.defense.answer(self._asked(self.protocol.predict, X, on), self.context)

    def leaves(self, X: NDArray[np.float32], on: Transcript | None = None) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T)."""
        return self._asked(self.protocol.leaves, X, on)

    @property
    def claims(self) -> list[Guarantee]:
        """What the protocol and each part of the defense claim, in that order."""
        return [self.protocol.claimed(self.defense), *self.defense.claims()]

    @property
    def spent(self) -> list[Guarantee]:
        """What the protocol and each part of the defense spent, in that order."""
        guarantees = [self.protocol.spent(self.transcript), *self.defense.spent(self.transcript)]
        return [without_noise(g) for g in guarantees] if self.void else guarantees

    @property
    def epsilons(self) -> tuple[AdversaryEpsilon, ...]:
        """What the run cost one row against each adversary; empty if no finite epsilon was spent.

        An outsider, coalitions of clients, and trusted roles have different epsilons if clients
        share the noise, because a client knows its own share.
        """
        with_epsilon = [g for g in self.spent if isinstance(g, PureDP | ApproximateDP)]
        if not with_epsilon or any(math.isinf(g.epsilon) for g in with_epsilon):
            return ()
        delta = max(getattr(g, "delta", 0.0) for g in with_epsilon)
        events = self.transcript.events
        everyone = [e for e in events if e.party not in self.columns]
        single = [e for e in events if e.party in self.columns]
        return epsilon_by_adversary(for_each_party(everyone, single), delta)

    @property
    def splits(self) -> dict[tuple[int, int], tuple[str, int, float]]:
        """Owner, column and threshold of the splits that one party alone knows, by tree and node.

        For the harness. Empty where the model is released, or the parties are gone.
        """
        by_party = {} if self.net is None else self.net.own_thresholds()
        return {
            at: (name, *split)
            for name, party_splits in by_party.items()
            for at, split in party_splits.items()
        }

    @property
    def bins_of_rows(self) -> dict[tuple[str, int], NDArray[np.int64]]:
        """Bins of the rows of each party, by name and column; -1: no value.

        For the harness. Empty where parties have no bins of their own, or are gone.
        """
        by_party = {} if self.net is None else self.net.own_bins()
        return {
            (name, c): bin for name, party_bins in by_party.items() for c, bin in party_bins.items()
        }

    def _asked(
        self, answer: Callable[..., NDArray[Any]], X: NDArray[np.float32], on: Transcript | None
    ) -> NDArray[Any]:
        rows = np.arange(len(X))
        queries = {
            name: LocalData(rows, columns, np.asarray(X, dtype=np.float32)[:, columns])
            for name, columns in self.columns.items()
        }
        if self.net is None or on is None:
            return answer(self.net, self.model, queries)
        previous, self.net.inference = self.net.inference, on
        try:
            return answer(self.net, self.model, queries)
        finally:
            self.net.inference = previous


def train(
    protocol: Protocol,
    local_data: Mapping[str, LocalData],
    schema: Schema,
    *,
    defense: Composition | None = None,
    seed: int = 0,
    noise_from: NoiseFrom = "system",
    behaviours: Mapping[str, str] | None = None,
) -> Training:
    """Run a protocol in one process.

    Parameters
    ----------
    local_data : mapping of str to LocalData
        What each party that holds data holds, by name (`fedtrees.core.local_data.over_clients`).
    defense : Composition, optional
        None is no defense.
    seed : int
        Every random draw of the run derives from it, noise apart.
    noise_from : {"system", "seed"}
        What noise, and samples that hide a row, are drawn from; ``seed``: a run that can be
        repeated, and no claim that rests on noise holds.
    behaviours : mapping of str to str, optional
        Of parties that cheat, by name. Where an honest one refuses to go on the run ends.

    Raises
    ------
    DataError
        If nobody holds a row.
    UsageError
        If the names are not the protocol's; `Unfit`, if the defense or a behaviour makes no sense
        with it.
    UnguardedMessageError
        If a defense meets a message it does not handle.
    """
    defense = defense or Composition()
    if not local_data or not sum(map(len, local_data.values())):
        raise DataError("a federation needs at least one party that holds at least one row")
    expected = protocol.holder_names(len(local_data))
    if expected != list(local_data):
        raise UsageError(
            f"{protocol.name!r} wants the local data of {', '.join(expected)}, in that order; got "
            f"{', '.join(local_data)}"
        )
    agreement = agreed(protocol, schema, defense, len(local_data))
    for name, party_data in local_data.items():
        check_own(name, party_data, schema)
    declared = {name: Declared.of(part) for name, part in local_data.items()}
    n_rows = rows_agreed(protocol, agreement, declared)
    check_ids(local_data)
    for name, party_data in local_data.items():
        protocol.check_held(name, party_data, schema)
    sealing = protocol.sealing()
    weighted = any(one.weighted for one in declared.values())
    net = LocalNetwork(agreement, Streams(seed, noise_from), None if weighted else n_rows)
    net.declared, net.weighted = {name: one.rows for name, one in declared.items()}, weighted
    for name in agreement.roles:
        streams = Streams(seed, noise_from)  # of its own: nobody draws another's noise
        local, sums = local_data.get(name), net.aggregation
        net.join(seated(protocol, agreement, name, streams, sums, local, sealing))
    cheats, refused = behaviours or {}, ""
    for party in net.parties:
        if party.name in cheats:
            turn(party, cheats[party.name])
    try:
        model, context = drive(protocol, net, sealing)
    except FedtreesError as err:
        if not cheats:
            raise
        model, context, refused = None, net.context(net.transcript.coordinator), str(err)
    return Training(
        model,
        net.transcript,
        protocol,
        defense,
        schema,
        n_rows,
        context,
        {name: part.columns for name, part in local_data.items()},
        net,
        noise_from,
        behaviours=cheats,
        refused=refused,
    )


def agreed(protocol: Protocol, schema: Schema, defense: Composition, holders: int) -> Agreement:
    """Return what everybody knows of a run, where so many hold data.

    Raises `UsageError`; `Unfit`, if the defense makes no sense with the protocol.
    """
    reason = fit(protocol, defense, data=Data(schema))
    if not reason.ok:
        raise Unfit(reason)
    roles, parameters = protocol.roles(holders), protocol.parameters
    protocol.check_parties(holders)
    defense.check(roles, parameters)
    shared = _shared(protocol, schema)
    return Agreement(schema, parameters, defense, roles, protocol.summed, shared)


def rows_agreed(protocol: Protocol, agreement: Agreement, said: Mapping[str, Declared]) -> int:
    """Return how many different rows the holders of data say they have, by name.

    Raises `DataError` if together these make up no table that the protocol takes.
    """
    n_rows, schema = rows_declared(said.values()), agreement.schema
    if not any(one.weighted for one in said.values()):
        check_channels(agreement.defense, schema, agreement.parameters, n_rows)
    check_together(said, schema)
    protocol.check_declared(said, schema)
    return n_rows


def seated(
    protocol: Protocol,
    agreement: Agreement,
    name: str,
    streams: Streams,
    aggregation: Aggregation,
    held: LocalData | None,
    sealing: Sealing | None,
) -> Host:
    """Make one party, beside its host."""
    options: dict[str, Any] = {"aggregation": aggregation, "held": held, "sealing": sealing}
    host = Host(agreement, name, streams, **options)
    host.join(_made(protocol, host, held))
    return host


def drive(protocol: Protocol, net: LocalNetwork, sealing: Sealing | None) -> tuple[Any, Context]:
    """Train over a network, one of whose own parties is the coordinator.

    Returns the model as the defenses left it, and the coordinator's context.
    """
    coordinator = _driving(protocol, net.parties)
    defense = net.defense
    limits = (
        i
        for i, part in enumerate(defense.parts)
        if part.least_leaf_rows > 0 or "endpoint" in part.acts_through
    )
    net.transcript.acted.update(limits)
    net.transcript.coordinator = coordinator.name
    with acting(coordinator):
        model = coordinator.train(net)
        context = net.context(coordinator.name)
        coordinator.model = model = defense.finish(model, context)
        if protocol.released:
            net.publish(as_message(model), why="the released model, for whoever wants it")
        coordinator.finished(net)
    net.settle(net.names)
    net.transcript.costs = net.costs(sealing)
    return model, replace(context, ledger=net.transcript.events, acted=net.transcript.acted)


def _shared(protocol: Protocol, schema: Schema) -> tuple[type[Message], ...]:
    """Return the messages that hold a share of noise, as a protocol states."""
    laws = protocol.laws(schema).items()
    return tuple(k for (k, _), law in laws if isinstance(law, Share) and not isinstance(k, str))


def _made(protocol: Protocol, host: Host, held: LocalData | None) -> Party:
    """Make a party around what it holds, as its defenses change its labels."""
    schema, defense = host.agreement.schema, host.agreement.defense
    if held is not None and held.y is not None:
        with acting(Party(host.name)):  # the hook is its own, though it has yet to be made
            y = defense.rows(Stage("labels"), held.y, host.context)
        held = held if y is held.y else replace(held, y=y)
    return protocol.party(host.name, host.role, held, schema, defense)


def _driving(protocol: Protocol, parties: Sequence[Party]) -> Coordinator:
    """Return the one party that drives."""
    driving = [party for party in parties if isinstance(party, Coordinator)]
    if len(driving) != 1:
        raise UsageError(f"{protocol.name!r} needs one coordinator; it has {len(driving)}")
    return driving[0]
