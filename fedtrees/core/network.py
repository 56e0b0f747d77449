"""The network carries messages between parties and records each of them in the transcript.

A coordinator sends requests with `Network.request` and broadcasts with `Network.send`. Before a
message leaves a party, its host applies the defenses. All parties can run in one process, and a
federation (`fedtrees.federation`) connects parties on other machines by a `RemoteHost`.

A request for histograms, for example, takes these steps:

1. `Network.request` applies the defenses of the server to the request, records the request, and
   calls `Host.handle_request` of every client.
2. The host passes the request to its party (`Party.answer`), which calls the handler of the message
   type. The host applies the client's defenses to the reply (`Composition.transform_message`).
3. Without a secure sum, the transcript records each reply, and `Network.request_sum` adds the
   replies. With a secure sum, the host stores the reply. `ServerAggregator.open_sum` requests it in
   protected form (`Host.protect`) and computes the sum. The transcript records the replies with
   sealed fields, and the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload
from warnings import warn
from weakref import proxy

from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError, did_you_mean, missing_attribute
from fedtrees.core.host import Agreement, Host, Reply
from fedtrees.core.local_data import LocalData, LocalDataSummary, rows_declared
from fedtrees.core.messages import (
    AnyMessage,
    AnyReply,
    EncryptedComputation,
    Message,
    Request,
    reply_type,
)
from fedtrees.core.party import Party, acting, acting_party
from fedtrees.core.remote import RemoteHost
from fedtrees.core.secure_sum import (
    AggregationExchange,
    IdealAggregation,
    SecureAggregation,
    add_messages,
)
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import PUBLIC, Transcript
from fedtrees.moved import NETWORK_NAMES, REMOVED_FROM_NETWORK

T = TypeVar("T")


class Network:
    """Connection of the parties of a run, through which a coordinator communicates with them.

    `request` sends a request to several parties and returns their replies, `request_sum` returns
    the sum of the replies, and `send` sends a message without a reply. A protocol must not depend
    on where the parties run: the network calls the host of a party in this process directly, and
    that of a party on another machine through a `RemoteHost`.

    Parameters
    ----------
    agreement : Agreement
        Public facts that all parties know.
    streams : Streams
        Randomness of the simulated network, for example of lost messages.
    declared : mapping of str to LocalDataSummary
        Declaration of each party with rows, by name. Empty if the parties were not asked.
    transcript : Transcript, optional
        Transcript that records the messages of the training. By default a new one.

    Attributes
    ----------
    declared : mapping of str to LocalDataSummary
        The argument of the same name.
    defense : Composition
        Defenses of the run.
    aggregation : SecureAggregation
        Implementation of secure sums.
    hosts : dict of str to Host
        Host of each party in this process, by name, in the order of joining.
    transcript, inference : Transcript
        Messages of the training, and of joint predictions.
    """

    def __init__(
        self,
        agreement: Agreement,
        streams: Streams,
        declared: Mapping[str, LocalDataSummary] = MappingProxyType({}),
        transcript: Transcript | None = None,
    ) -> None:
        self._agreement, self.defense = agreement, agreement.defense
        self._streams, self.declared = streams, declared
        self.hosts: dict[str, Host] = {}
        self._all_hosts: dict[str, Host | RemoteHost] = {}
        self.transcript, self.inference = transcript or Transcript(), Transcript()
        self._ledger = self.transcript  # ledger of training and of predictions
        self.aggregation: SecureAggregation = (
            self.defense.secure_aggregation() or IdealAggregation()
        )
        self._aggregator = self.aggregation.server_side()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in NETWORK_NAMES:
                raise missing_attribute(self, name, REMOVED_FROM_NETWORK)
            present = NETWORK_NAMES[name]
            warn(f"Network.{name} is now Network.{present}", DeprecationWarning, stacklevel=2)
            # The former methods call the reason `why`.
            return lambda to, message, *, why: getattr(self, present)(to, message, reason=why)

    def join(self, host: Host | RemoteHost) -> None:
        """Connect a party by its host. Replies are returned in the order of joining.

        Parameters
        ----------
        host : Host or RemoteHost
            Host of a party in this process, or the connection to the host on another machine.

        Raises
        ------
        ProtocolError
            If the name is taken.
        """
        if host.name in self._all_hosts:
            raise ProtocolError(f"party names must be unique; {host.name!r} joined twice")
        self._connect(host)
        if isinstance(host, Host):
            self.hosts[host.name] = host
            with acting(host.party):
                # A weak reference, so that a party gives no access to another one.
                host.party.net = proxy(self)

    def _connect(self, host: Host | RemoteHost) -> None:
        """Deliver the messages of a party to this host."""
        self._all_hosts[host.name] = host
        self.transcript.roles[host.name] = self._agreement.roles[host.name]
        self._collect_spending([host.name])

    def party(self, name: str) -> Party:
        """Return a party, protected by its local data boundary.

        Parameters
        ----------
        name : str
            Name of a party in this process.

        Returns
        -------
        Party
            The party, whose private attributes cannot be read from outside.
        """
        return self.hosts[name].party

    @overload
    def request(self, to: str, message: Request[AnyReply], *, reason: str) -> list[AnyReply]: ...

    @overload
    def request(self, to: str, message: Message, *, reason: str) -> list[Message]: ...

    def request(self, to: str, message: Any, *, reason: str) -> list[Any]:
        """Send a request and return the replies in party order.

        If the replies are summed securely, the list contains one message, which is their sum.

        Parameters
        ----------
        to : str
            Name of a role or of a party.
        message : Request
            The request before the sender's defenses.
        reason : str
            Reason for this disclosure, recorded in the transcript.

        Returns
        -------
        replies : list of Message
            One reply per party, in the order of joining, or one message with the sum of all
            replies.

        Raises
        ------
        ProtocolError
            If a party does not reply, or with another type of message than the request declares,
            or if some replies are summed securely and some are not.
        """
        self.transcript.rounds += 1
        sender, message, receivers = self._send(to, message, reason)
        host_replies = self._call_and_record(
            receivers, lambda host: host.handle_request(message, reason)
        )
        replies = {
            name: _check_reply(name, reply.message, message) for name, reply in host_replies.items()
        }
        # Without a secure sum, the transcript records each reply in plain form.
        if not any(reply.awaits_sum for reply in host_replies.values()):
            for name, reply in replies.items():
                self.transcript.record(name, (sender,), reply, reason)
            return list(replies.values())
        if not all(reply.awaits_sum for reply in host_replies.values()):
            raise ProtocolError(
                f"only some replies to {type(message).__name__} are summed securely"
            )
        total = self._aggregator.open_sum(replies, self._exchange(sender, replies), reason)
        self.transcript.record(sender, (sender,), total, f"{reason} (sum only)")
        return [total]

    def request_sum(self, to: str, message: Request[AnyReply], *, reason: str) -> AnyReply:
        """Send a request and return the sum of the replies (`add_messages`).

        The server sees only the sum if a defense or the protocol sums the replies securely.

        Parameters
        ----------
        to : str
            Name of a role or of a party.
        message : Request
            The request before the sender's defenses.
        reason : str
            Reason for this disclosure, recorded in the transcript.

        Returns
        -------
        Message
            A message of the type of the replies. Fields declared by `summable` contain sums.

        Raises
        ------
        ProtocolError
            As in `request`, or if a field that is not summed differs between replies.
        """
        return add_messages(self.request(to, message, reason=reason))

    def send(self, to: str, message: AnyMessage, *, reason: str) -> AnyMessage:
        """Send a message that has no reply.

        Parameters
        ----------
        to : str
            Name of a role or of a party.
        message : Message
            The message before the sender's defenses.
        reason : str
            Reason for this disclosure, recorded in the transcript.

        Returns
        -------
        Message
            The message as it was sent, after the sender's defenses.
        """
        _, sent, receivers = self._send(to, message, reason)
        self._call_and_record(receivers, lambda host: host.handle_message(sent, reason))
        return sent

    def finish(self, encryption: EncryptedComputation | None) -> None:
        """Record the last budget events of all parties, and the costs of their cryptography.

        Parameters
        ----------
        encryption : EncryptedComputation or None
            Computation on encrypted values of the run, None if there is none.
        """
        self._collect_spending(self._all_hosts)
        ledgers = self._call_hosts(self._all_hosts, lambda host: host.ledgers())
        sums = {name: sums for name, (sums, _) in ledgers.items() if sums}
        if self._aggregator.ledger is not None:
            sums[self.transcript.coordinator] = self._aggregator.ledger.counts()
        encryption_ledgers = [ledger for _, ledger in ledgers.values() if ledger]
        self.transcript.costs = {
            **self.aggregation.costs(sums),
            **(encryption.costs(encryption_ledgers) if encryption else {}),
        }

    def record_opened(self, message: Message, *, reason: str) -> None:
        """Record a message that the acting party decrypted. Nothing is sent.

        Parameters
        ----------
        message : Message
            The decrypted message.
        reason : str
            Reason for this disclosure, recorded in the transcript.
        """
        name = self._sender().name
        self.transcript.record(name, (name,), message, reason)

    def publish(self, message: Message, *, reason: str) -> Message:
        """Release the model to the role ``public``.

        Parameters
        ----------
        message : Message
            The model before the sender's defenses.
        reason : str
            Reason for this disclosure, recorded in the transcript.

        Returns
        -------
        Message
            The model as it was released.
        """
        name = self._sender().name
        message = self._apply_defenses(name, message)
        self.transcript.roles[PUBLIC] = PUBLIC
        self.transcript.record(name, (PUBLIC,), message, reason)
        return message

    def record_release(self, mechanism: str, **release: Any) -> None:
        """Enter noisy releases of the protocol itself into the ledger of the acting party.

        Parameters
        ----------
        mechanism : str
            Distribution of the noise, see `fedtrees.core.transcript.BudgetEvent`.
        **release : float, int or str
            Further arguments of `fedtrees.core.defense.Context.record_release`.
        """
        self.hosts[self._sender().name].context.record_release(mechanism, **release)

    def predict(self, queries: Mapping[str, LocalData], what: str = "predict") -> NDArray[Any]:
        """Predict rows of which each party has some of the columns.

        The messages are recorded in a separate transcript, `inference`.

        Parameters
        ----------
        queries : mapping of str to LocalData
            Columns of the rows to predict, without labels, by party.
        what : {"predict", "leaves"}
            Method of the coordinator that computes the answers.

        Returns
        -------
        answers : array
            Result of this method.
        """
        for name, query in queries.items():
            party = self.party(name)
            with acting(party):
                party.queries = query
        coordinator: Any = self.party(self.transcript.coordinator)
        # Predictions are recorded separately from the training, also if they fail.
        training, self.transcript = self.transcript, self.inference
        try:
            with acting(coordinator):
                answers: NDArray[Any] = getattr(coordinator, what)(self)
        finally:
            self.transcript = training
        return answers

    def members(self, role: str) -> list[str]:
        """Return the names of the parties of a role.

        Parameters
        ----------
        role : str
            The role.

        Returns
        -------
        list of str
            Names in the order of joining.
        """
        return [name for name in self._all_hosts if self._agreement.roles[name] == role]

    def request_sealed(
        self,
        server: str,
        names: Iterable[str],
        call: Callable[[Host | RemoteHost], Reply],
        reason: str,
    ) -> dict[str, Message]:
        """Request replies that parties protect themselves, and record them.

        Parameters
        ----------
        server : str
            Name of the receiver.
        names : iterable of str
            Names of the parties.
        call : callable
            Function from the host of a party to its `fedtrees.core.host.Reply`.
        reason : str
            Recorded reason of the replies.

        Returns
        -------
        dict of str to Message
            Messages by the name of the party. A reply without a message is left out.
        """
        replies = self._call_and_record(names, call)
        for name, reply in replies.items():
            host = self.hosts.get(name)
            if host is not None:
                # A key holder may have decrypted a sum for itself.
                for opened_message, reason_to_open in host.take_opened_messages():
                    self.transcript.record(name, (name,), opened_message, reason_to_open)
            if reply.message is None:
                continue
            if host is not None and host.plain_reply is not None:
                index = len(self.transcript.deliveries)
                self.transcript.plain_replies[index] = host.plain_reply
                host.plain_reply = None
            self.transcript.record(name, (server,), reply.message, reason)
        return {n: reply.message for n, reply in replies.items() if reply.message is not None}

    def _call_hosts(
        self, names: Iterable[str], call: Callable[[Host | RemoteHost], T]
    ) -> dict[str, T]:
        """Call a function with the host of each party, and return the results in order."""
        return {name: call(self._all_hosts[name]) for name in names}

    def _call_and_record(
        self, names: Iterable[str], call: Callable[[Host | RemoteHost], Reply]
    ) -> dict[str, Reply]:
        """Call a function with the host of each party, and record the parties' budget events."""
        replies = self._call_hosts(names, call)
        for reply in replies.values():
            self._ledger.events += reply.events
            self._ledger.acted |= reply.acted
        return replies

    def _collect_spending(self, names: Iterable[str]) -> None:
        """Record the budget events of parties since their last reply."""
        self._call_and_record(names, lambda host: host.take_events())

    def _apply_defenses(self, name: str, message: AnyMessage) -> AnyMessage:
        """Return a message of the acting party after its defenses."""
        message = self.hosts[name].apply_defenses(message)
        self._collect_spending([name])
        return message

    def _send(
        self, to: str, message: AnyMessage, reason: str
    ) -> tuple[str, AnyMessage, Sequence[str]]:
        """Apply the defenses to a message of the acting party and record it.

        Return the sender, the message as it was sent, and the receivers.
        """
        if not reason:
            raise ProtocolError(f"{type(message).__name__} needs a reason: reason=...")
        name = self._sender().name
        self.transcript.coordinator = self.transcript.coordinator or name
        # The first sender is the coordinator. A party does not send to itself.
        other_receivers = [receiver for receiver in self._resolve(to) if receiver != name]
        receivers = self.defense.audience(message, other_receivers, self.hosts[name].context)
        message = self._apply_defenses(name, message)
        self.transcript.record(name, tuple(receivers), message, reason)
        # The server side also digests what it sent, to compare it with the clients' digests.
        self._aggregator.record_sent(receivers, message)
        return name, message, receivers

    def _exchange(self, server: str, pending_replies: Mapping[str, Message]) -> AggregationExchange:
        """Return the access to this network that the server side of one secure sum needs."""
        context = self._agreement.sums(self._agreement.roles[next(iter(pending_replies))])
        shares, kinds = context.min_noise_shares, {type(r) for r in pending_replies.values()}
        # A sum over fewer replies would contain less noise than the privacy claim assumes.
        min_replies = max((shares[kind] for kind in kinds & {*shares}), default=0)
        # With sample weights, the number of rows does not bound a sum.
        weighted = any(one.weighted for one in self.declared.values())
        rows = None if weighted or not self.declared else rows_declared(self.declared.values())
        # Losses of messages are simulated with separate randomness.
        streams = self._streams.child("network")
        return AggregationExchange(self, server, rows, context, streams, min_replies)

    def _sender(self) -> Party:
        """Return the acting party, or raise `ProtocolError` if it is not in this network."""
        party = acting_party()
        if party is None or party.name not in self.hosts:
            raise ProtocolError("only a party of this network can send; run it with acting(party)")
        return party

    def _resolve(self, to: str) -> list[str]:
        """Return the names of the parties of a role, or the name of a single party."""
        if to in self._all_hosts:
            return [to]
        members = self.members(to)
        if not members:
            names = {*self._all_hosts, *(self._agreement.roles[name] for name in self._all_hosts)}
            raise ProtocolError(f"no party or role {to!r}{did_you_mean(to, names)}")
        return members


def _check_reply(name: str, reply: Message | None, request: Message) -> Message:
    """Return a reply, or raise `ProtocolError` if it is missing or has another declared type."""
    if reply is None:
        raise ProtocolError(f"{name!r} sent no reply to {type(request).__name__}")
    expected = reply_type(type(request))
    if not isinstance(reply, expected):
        raise ProtocolError(
            f"{name!r} replied to {type(request).__name__} with {type(reply).__name__}; the "
            f"request declares {expected.__name__}"
        )
    return reply
