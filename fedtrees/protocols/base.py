"""What every protocol is: parties and a coordinator, run over a federation's local data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation
from fedtrees.core.behaviour import turn
from fedtrees.core.channel import Change, Share
from fedtrees.core.codec import encode
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context, Place, Stage
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import DataError, FedtreesError, ProtocolError, UsageError
from fedtrees.core.files import write_whole
from fedtrees.core.guarantee import Guarantee, NoGuarantee, without_noise
from fedtrees.core.host import Agreement, Host
from fedtrees.core.local_data import (
    Declared,
    LocalData,
    check_ids,
    check_own,
    check_together,
    client_names,
    rows_declared,
)
from fedtrees.core.messages import Message
from fedtrees.core.model import Model
from fedtrees.core.network import LocalNetwork, Network
from fedtrees.core.party import Party, acting
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.rows import LOCAL_ONLY
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import NoiseFrom, Streams
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import Seen, View
from fedtrees.messages.models import as_message
from fedtrees.protocols.fit import Data, fit
from fedtrees.protocols.limits import check_channels
from fedtrees.trees.forest.random_decision import undeclared

#: `Protocol.file` of a model that is no forest: as messages are encoded.
ENCODED_FILE = (".ftm", "a model that is no forest; XGBoost has no such one")


class Coordinator(Party):
    """The party that drives; the others answer.

    `model`: What `train` returned, as the defenses left it.
    """

    role = "server"
    model: Any

    def train(self, net: Network) -> Model:
        """Run the protocol and return the model it ends with."""
        raise TypeError(f"{type(self).__name__} must define train(net)")

    def predict(self, net: Network) -> NDArray[np.float64]:
        """Return the scores of everybody's `queries`; only where no model is released."""
        raise TypeError(f"{type(self).__name__} must define predict(net): no model is released")

    def leaves(self, net: Network) -> NDArray[np.int32]:
        """Return the leaves of everybody's `queries`, int32, (n, T); only where no model is."""
        raise ProtocolError(f"a {type(self).__name__} answers no leaf ids; ask for scores")

    def finished(self, net: Network) -> None:
        """Do what is left to do once the defenses have left `model` as it stays."""


class Protocol(ABC):
    """Base of all protocols: a frozen dataclass whose fields are public parameters.

    Attributes
    ----------
    name : str
        Set by ``@register.protocol``.
    layout : str
        How the data layer spreads a table over the parties that hold some of it
        (`fedtrees.data.layout`): ``horizontal``, ``vertical``, ``centralised``.
    holders : tuple of str
        Roles that hold data.
    says : tuple of Message types
        What may cross in training; defenses that act on nothing of it are refused.
    sometimes : mapping of Message type to str
        Of `says`, what crosses only under some parameters or defenses, each with when.
    serves : frozenset of str
        Hooks and limits of defenses that its parties keep to (`fedtrees.protocols.fit`): of
        ``rows``, ``candidates``, ``shown``, ``gradient_clip``, ``least_leaf_rows``,
        ``poisson_sampling``, ``declared_rows`` and ``row_bounds``.
    summed : tuple of Message types
        Replies of which the coordinator learns only the sum, by an ideal secure sum.
    noised : tuple of Message types
        What a protocol that claims a budget adds noise to, at its holders or on the way from them:
        no defense may act there before. Empty: anything that it says.
    released : bool
        Whether the model is told to the role ``public``; otherwise nobody holds it whole.
    adversaries : tuple of str
        Threats under which a suite attacks it that names none of its roles.
    usual_parties : int
        How many hold data where nobody says it.
    alone : str
        What the reference is called of who holds labels and trains with nobody else.
    example : str
        A dataset that needs no file to show it on.
    called : mapping of str to (str, str)
        What a reader calls one party of a role, and several.
    file : tuple of str
        How the name of a file with its model ends, and what that is.
    needs : tuple of str
        Modules of an extra that it trains with.
    deployed : mapping of str to Deployed
        Systems that run it, with what is set there.
    peers : bool
        Whether parties tell one another what no coordinator asked for.
    """

    name: ClassVar[str] = "protocol"
    layout: ClassVar[str] = "horizontal"
    holders: ClassVar[tuple[str, ...]] = ("client",)
    says: ClassVar[tuple[type[Message], ...]] = ()
    sometimes: ClassVar[Mapping[type[Message], str]] = {}
    serves: ClassVar[frozenset[str]] = frozenset()
    summed: ClassVar[tuple[type[Message], ...]] = ()
    noised: ClassVar[tuple[type[Message], ...]] = ()
    released: ClassVar[bool] = True
    adversaries: ClassVar[tuple[str, ...]] = ("client",)
    usual_parties: ClassVar[int] = 3
    alone: ClassVar[str] = LOCAL_ONLY
    example: ClassVar[str] = "breast-cancer"
    called: ClassVar[Mapping[str, tuple[str, str]]] = {
        "server": ("your server", "servers"),
        "client": ("one of the clients", "clients together"),
        "public": ("whoever has the released model", "holders of the released model"),
    }
    file: ClassVar[tuple[str, str]] = (".json", "an XGBoost model")
    needs: ClassVar[tuple[str, ...]] = ()
    deployed: ClassVar[Mapping[str, Deployed]] = {}
    peers: ClassVar[bool] = False

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the role of every party by name, given how many hold data.

        The order is that in which they join, and get their local data.
        """
        return {"server": "server", **dict.fromkeys(client_names(parties), "client")}

    def holder_names(self, parties: int) -> list[str]:
        """Return the names of the parties that hold data, in order."""
        return [name for name, role in self.roles(parties).items() if role in self.holders]

    @abstractmethod
    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> Party:
        """Make one party around what it holds; one of them is a `Coordinator`."""

    @classmethod
    def missing(cls) -> list[str]:
        """Return the modules it needs that are not installed."""
        return [module for module in cls.needs if find_spec(module) is None]

    def claim(self) -> Guarantee:
        """State what the protocol guarantees by itself; most protocols guarantee nothing."""
        return NoGuarantee()

    def claimed(self, defense: Composition) -> Guarantee:
        """State what it guarantees where a defense settles cut points; by default `claim`."""
        return self.claim()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what a run of the protocol by itself spent; by default the claim."""
        return self.claim()

    def laws(self, schema: Schema) -> Mapping[Place, Change]:
        """State what the protocol itself does to what rows bring (`Defense.channels`)."""
        return {}

    def exact(self) -> Protocol | None:
        """Return the same protocol without what `laws` states, drawn otherwise alike; None: no."""
        return None

    def nodes_shown(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of every node that somebody is shown; none where nodes are not shown."""
        return iter(())

    def save(self, training: Training, path: Path) -> None:
        """Write a model that was trained, into a file of its `file`'s suffix."""
        if self.file == ENCODED_FILE:
            write_whole(path, encode(as_message(training.model)))
            return
        from fedtrees.trees.boosted.params import TreeParams
        from fedtrees.trees.files.xgboost import save_xgboost, writable

        names = training.schema.names
        params = self if isinstance(self, TreeParams) else None
        save_xgboost(training.model, path, len(names), writable(names), params)

    def canaries(self) -> Any:
        """Make the rows an audit looks for (`fedtrees.protocols.canaries.Canaries`), or None."""
        return None

    def worst_case(self, defense: Composition) -> tuple[Protocol, Any] | None:
        """Return the parameters, and the rows, by which an audit sees most of a row; None: as is.

        A claim of epsilon holds whatever the table and the public parameters are, so that an
        auditor chooses both: one tree, few columns, gradients near their bound.
        """
        return None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The public parameters, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def check(self, schema: Schema) -> None:  # noqa: B027 - most take any target
        """Refuse a target that this protocol cannot train on.

        Raises `UsageError`.
        """

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:  # noqa: B027
        """Refuse what one party holds, at its host, before it is made.

        Raises `DataError`.
        """

    def check_declared(self, said: Mapping[str, Declared], schema: Schema) -> None:  # noqa: B027
        """Refuse what the parties say they hold together, by name.

        Raises `DataError`.
        """

    def grown_on(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which of a party's n rows a round of training uses, bool (n,); None: all.

        ``streams`` are the party's; a ``defense`` may say how rows are drawn. What the harness
        knows, and nobody else does.
        """
        return None

    def sealing(self) -> Sealing | None:
        """Say how one run computes on sealed values; None: nothing is sealed."""
        return None

    def opened_together(self, seen: Sequence[Seen], sealing: Mapping[str, Any]) -> list[Seen]:
        """Return what colluding parties open of what they saw, as one alone could not; nothing.

        ``sealing`` is what each of them computes with, by name.
        """
        return []

    def lacks(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return what such a table lacks for this protocol under a defense, None if nothing."""
        plan = defense.cut_plan
        return undeclared(schema) if plan is not None and plan.method == "public" else None

    def predict(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.float64]:
        """Return the scores of rows that nobody trained on; by default of the model alone.

        A model that nobody holds whole predicts by messages, which are on record.

        Parameters
        ----------
        net : LocalNetwork or None
            Of the training; None where that was in an earlier process.
        model : Model
            What the coordinator ended with.
        queries : mapping of str to LocalData
            What each holder has of the rows, without labels.
        """
        if self.released:
            scores: NDArray[np.float64] = model.predict(next(iter(queries.values())).X)
            return scores
        return _still_there(net).predict(queries)

    def leaves(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T); otherwise as `predict`.

        Raises `ProtocolError` if the model has no leaves.
        """
        if not self.released:
            return _still_there(net).predict(queries, "leaves")
        reached = getattr(model, "apply", None)
        if reached is None:
            raise ProtocolError(f"a {type(model).__name__} has no leaves; ask for scores")
        found: NDArray[np.int32] = reached(next(iter(queries.values())).X)
        return found


def _still_there(net: LocalNetwork | None) -> LocalNetwork:
    if net is None:
        raise ProtocolError("nobody holds this model whole, and its parties are gone: train it")
    return net


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
        found = [self.protocol.spent(self.transcript), *self.defense.spent(self.transcript)]
        return [without_noise(g) for g in found] if self.void else found

    @property
    def splits(self) -> dict[tuple[int, int], tuple[str, int, float]]:
        """Owner, column and threshold of the splits that one party alone knows, by tree and node.

        For the harness. Empty where the model is released, or the parties are gone.
        """
        told = {} if self.net is None else self.net.own_thresholds()
        return {at: (name, *split) for name, own in told.items() for at, split in own.items()}

    @property
    def bins_of_rows(self) -> dict[tuple[str, int], NDArray[np.int64]]:
        """Bins of the rows of each party, by name and column; -1: no value.

        For the harness. Empty where parties have no bins of their own, or are gone.
        """
        told = {} if self.net is None else self.net.own_bins()
        return {(name, c): bin for name, own in told.items() for c, bin in own.items()}

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
        kept, self.net.inference = self.net.inference, on
        try:
            return answer(self.net, self.model, queries)
        finally:
            self.net.inference = kept


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
    for name, own in local_data.items():
        check_own(name, own, schema)
    said = {name: Declared.of(own) for name, own in local_data.items()}
    n_rows = rows_agreed(protocol, agreement, said)
    check_ids(local_data)
    for name, own in local_data.items():
        protocol.check_held(name, own, schema)
    sealing = protocol.sealing()
    weighted = any(one.weighted for one in said.values())
    net = LocalNetwork(agreement, Streams(seed, noise_from), None if weighted else n_rows)
    net.declared, net.weighted = {name: one.rows for name, one in said.items()}, weighted
    for name in agreement.roles:
        streams = Streams(seed, noise_from)  # of its own: nobody draws another's noise
        held, sums = local_data.get(name), net.aggregation
        net.join(seated(protocol, agreement, name, streams, sums, held, sealing))
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
        {name: held.columns for name, held in local_data.items()},
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
    given: dict[str, Any] = {"aggregation": aggregation, "held": held, "sealing": sealing}
    host = Host(agreement, name, streams, **given)
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
