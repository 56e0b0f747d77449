"""Hosts run one party each and apply its defenses to every message before it is sent.

A host owns the randomness, the keys and the defense context of its party. The network
(`fedtrees.core.network`) communicates with hosts and never with a party directly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import (
    AnyMessage,
    EncryptedComputation,
    Message,
    check_fields,
    seal_sums,
)
from fedtrees.core.party import Party, acting
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import ClientAggregator, SecureAggregation, SumContext
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import BudgetEvent


@dataclass(frozen=True, eq=False)
class Agreement:
    """Public facts about a run that all parties know before it begins.

    Attributes
    ----------
    schema : Schema
        Columns and classes of the table.
    parameters : mapping
        Public parameters of the protocol.
    defense : Composition
        All defenses of the run.
    roles : mapping of str to str
        Role of every party by name, in the order in which replies are taken.
    summed : tuple of Message types
        Reply types that are summed by the protocol's own secure sum. It is the ideal functionality
        unless a defense supplies cryptography.
    noise_share_types : tuple of Message types
        The types in `summed` whose messages also contain the sender's share of the protocol's
        noise. This share is drawn at random, so that it does not follow from the sender's rows.
    """

    schema: Schema
    parameters: Mapping[str, Any]
    defense: Composition
    roles: Mapping[str, str]
    summed: tuple[type[Message], ...] = ()
    noise_share_types: tuple[type[Message], ...] = ()

    def members(self, role: str) -> tuple[str, ...]:
        """Return the names of the parties of a role, in order."""
        return tuple(name for name, other in self.roles.items() if other == role)

    def sums(self, role: str) -> SumContext:
        """Return the public facts about secure sums of the replies of a role."""
        parties, classes = self.members(role), len(self.schema.classes)
        exact = self.defense.sums_exactly
        return SumContext(parties, exact, classes, self.parameters, self.min_noise_shares(role))

    def min_noise_shares(self, role: str) -> dict[type[Message], int]:
        """Return the reply types that contain a share of noise, with the required number of shares.

        A sum over fewer replies of such a type would contain less noise than claimed.
        """
        declared = {
            **dict.fromkeys(self.noise_share_types, 0),
            **self.defense.min_noise_shares(self.schema, self.parameters),
        }
        n_members = len(self.members(role))
        # 0 means that the shares of all parties are required.
        return {kind: least or n_members for kind, least in declared.items()}


@dataclass(frozen=True, eq=False)
class Reply:
    """Result of a call to a host.

    Attributes
    ----------
    message : Message or None
        The reply after the defenses. If `awaits_sum` is True, its summed fields are sealed and
        empty.
    awaits_sum : bool
        Whether the reply is summed securely. The host then stores the complete reply until
        `protect` is called.
    events : tuple of BudgetEvent
        Noisy releases of the party since its previous reply.
    acted : frozenset of int
        Positions of the defenses that have changed something at this party so far.
    """

    message: Message | None = None
    awaits_sum: bool = False
    events: tuple[BudgetEvent, ...] = ()
    acted: frozenset[int] = frozenset()


class Host:
    """One party with its defenses, its randomness and its keys.

    Parameters
    ----------
    agreement : Agreement
        Public facts about the run.
    name : str
        Name of the party.
    streams : Streams
        Parent of the party's random streams.
    aggregation : SecureAggregation
        Implementation of secure sums. All hosts of one process share one object. On separate
        machines, each host has a separate one.
    local_data : LocalData, optional
        Local data of the party. None for a party without rows, for example the server.
    encryption : EncryptedComputation, optional
        Implementation of the computation on encrypted values.

    Attributes
    ----------
    plain_reply : Message or None
        Plain content of the reply that the party last sent in protected form. It is stored only if
        it contains randomness, so that it does not follow from the party's rows. It enters the view
        of this party only.
    """

    party: Party

    def __init__(
        self,
        agreement: Agreement,
        name: str,
        streams: Streams,
        *,
        aggregation: SecureAggregation,
        local_data: LocalData | None = None,
        encryption: EncryptedComputation | None = None,
    ) -> None:
        self.name, self.agreement = name, agreement
        self.plain_reply: Message | None = None
        self._stored_reply: Message | None = None  # reply that `protect` will send
        self._is_random = False  # whether the stored reply contains randomness, see `plain_reply`
        self._streams = streams.child(name)
        self._encryption, self._aggregation = encryption, aggregation
        self._sums = bool(agreement.summed or agreement.defense.summed_types)
        # With sample weights, the number of rows does not bound the sums of the party.
        self._rows = (
            None if local_data is None or local_data.weight is not None else len(local_data)
        )
        # The rows are stored only for defenses that read them.
        reads = agreement.defense.requirements.reads_local_data
        self.context = Context(
            party=name,
            role=agreement.roles[name],
            schema=agreement.schema,
            parameters=agreement.parameters,
            streams=streams.child(name, "defense"),
            ledger=[],
            columns=None if local_data is None else local_data.columns,
            roles=agreement.roles,
            _local_data=local_data if reads else None,
        )

    def join(self, party: Party) -> None:
        """Attach the party, and give it its streams, its agreement and its defenses."""
        self.party = party
        with acting(party):
            party.streams, party.agreement = self._streams, self.agreement
            # The context is bound here, so that the party passes only its rows and messages.
            party.row_hook = partial(self.agreement.defense.transform_examples, ctx=self.context)
            party.before_encryption = partial(
                self.agreement.defense.transform_message, ctx=self.context
            )
            party.encryption = (
                None if self._encryption is None else self._encryption.part(self.context.role)
            )

    @property
    def encryption(self) -> Any:
        """The party's part of the computation on encrypted values."""
        with acting(self.party):
            return self.party.encryption

    def read_truth(self, method: Callable[[Party], Any]) -> Any:
        """Return the result of a method of the party, as ground truth for the harness.

        For example, `Party.own_bins` returns the bins of its rows.
        """
        with acting(self.party):
            return getattr(self.party, method.__name__)()

    def ledgers(self) -> tuple[Any, Any]:
        """Return the operation counts of the secure sums and of the encrypted computation."""
        return _operation_counts(self._aggregator), _operation_counts(self.encryption)

    @cached_property
    def _aggregator(self) -> ClientAggregator:
        """Client side of the secure sums of this party, created at first use."""
        agreed_sums = self.agreement.sums(self.context.role)
        return self._aggregation.client_side(self.name, self._rows, agreed_sums)

    def apply_defenses(self, message: AnyMessage) -> AnyMessage:
        """Apply the party's defenses to a message that it sends."""
        with acting(self.party):
            # A defense changes values, and never the type of a message.
            return cast(AnyMessage, self.agreement.defense.transform_message(message, self.context))

    def take_opened_messages(self) -> list[tuple[Message, str]]:
        """Return the messages that the party decrypted since the last call, with their reasons."""
        messages, self._aggregator.opened_messages[:] = [*self._aggregator.opened_messages], []
        return messages

    def handle_message(self, message: Message, reason: str = "") -> Reply:
        """Deliver a message that has no reply."""
        self._record_received(message)
        self.party.answer(message)
        return self._reply()

    def handle_request(self, message: Message, reason: str = "") -> Reply:
        """Deliver a request and return the reply.

        A reply that is summed securely is stored until `protect` is called. The returned message
        then has empty summed fields.

        Raises
        ------
        ProtocolError
            If the party does not reply.
        """
        if self._aggregator.accepts(message):
            return self._reply(self._aggregator.handle(message))
        self._record_received(message)
        reply = self.party.answer(message)
        if reply is None:
            raise ProtocolError(f"{self.name!r} sent no reply to {type(message).__name__}")
        reply, agreed = self.apply_defenses(reply), self.agreement
        # A reply is summed securely if a defense or the protocol demands it.
        by_defense = agreed.defense.requires_secure_sum(reply, self.context)
        if not by_defense and type(reply) not in agreed.summed:
            return self._reply(reply)
        check_fields(reply)
        self._stored_reply = reply
        self._is_random = by_defense or type(reply) in agreed.noise_share_types
        return self._reply(seal_sums(reply), awaits_sum=True)

    def _record_received(self, message: Message) -> None:
        """Add a received message to the digest of the party's secure sums.

        Nothing happens if the run has no such sums.
        """
        if self._sums:
            self._aggregator.record_received(message)

    def protect(self, arguments: Mapping[str, Any], reason: str = "") -> Reply:
        """Send the stored reply in protected form.

        Parameters
        ----------
        arguments : mapping of str to object
            Arguments of the server side, see `ClientAggregator.protect`.
        reason : str
            Recorded reason of the protected reply.
        """
        message = self._aggregator.protect(self._stored_reply, arguments)
        # The server side may also request other messages, for example keys. Only a protected reply
        # has plain content.
        is_protected_reply = message is not None and type(message) is type(self._stored_reply)
        self.plain_reply = self._stored_reply if is_protected_reply and self._is_random else None
        return self._reply(message)

    def _reply(self, message: Message | None = None, *, awaits_sum: bool = False) -> Reply:
        """Return a reply with the budget events since the previous reply."""
        return replace(self.take_events(), message=message, awaits_sum=awaits_sum)

    def take_events(self) -> Reply:
        """Return a reply without a message: only budget events, and the defenses that acted."""
        # Each budget event is reported once.
        events, self.context.ledger[:] = tuple(self.context.ledger), []
        return Reply(events=events, acted=frozenset(self.context.acted))


def _operation_counts(party_part: Any) -> Any:
    """Return the operation counts of an object, None if it has no ledger."""
    ledger = getattr(party_part, "ledger", None)
    return None if ledger is None else ledger.counts()
