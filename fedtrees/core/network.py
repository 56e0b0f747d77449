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
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, overload
from warnings import warn
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Context, CutPlan, OpenNodes
from fedtrees.core.errors import ProtocolError, did_you_mean
from fedtrees.core.host import Agreement, Host, Reply
from fedtrees.core.local_data import LocalData
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
    rows : int or None
        Declared number of training rows of all parties. None if rows have weights.
    transcript : Transcript, optional
        Transcript that records the messages of the training. By default a new one.

    Attributes
    ----------
    declared : mapping of str to int
        Number of rows that each party declared, by name. Empty if the parties were not asked.
    weighted : bool
        Whether rows have sample weights.
    """

    declared: Mapping[str, int] = MappingProxyType({})
    weighted: bool = False

    def __init__(
        self,
        agreement: Agreement,
        streams: Streams,
        rows: int | None = None,
        transcript: Transcript | None = None,
    ) -> None:
        self.agreement, self.defense = agreement, agreement.defense
        self._streams, self._rows = streams, rows
        self._hosts: dict[str, Host] = {}
        self._all_hosts: dict[str, Host | RemoteHost] = {}
        self.transcript, self.inference = transcript or Transcript(), Transcript()
        self._ledger = self.transcript  # ledger of training and of predictions
        self.aggregation: SecureAggregation = (
            self.defense.secure_aggregation() or IdealAggregation()
        )
        self._aggregator = self.aggregation.server_side()

    def join(self, host: Host) -> None:
        """Connect the host of a party. Replies are returned in the order of joining.

        Parameters
        ----------
        host : Host
            Host of a party in this process.

        Raises
        ------
        ProtocolError
            If the name is taken.
        """
        self.connect(host.name, host)
        self._hosts[host.name] = host
        with acting(host.party):
            # A weak reference, so that a party gives no access to another one.
            host.party.net = proxy(self)

    def connect(self, name: str, host: Host | RemoteHost) -> None:
        """Connect a party by its host, which may be on another machine.

        Parameters
        ----------
        name : str
            Name of the party.
        host : Host or RemoteHost
            Its host.

        Raises
        ------
        ProtocolError
            If the name is taken.
        """
        if name in self._all_hosts:
            raise ProtocolError(f"party names must be unique; {name!r} joined twice")
        self._all_hosts[name] = host
        self.transcript.roles[name] = self.agreement.roles[name]
        self.collect_spending([name])

    @property
    def names(self) -> list[str]:
        """Names of all parties, in the order of joining."""
        return list(self._all_hosts)

    @property
    def parties(self) -> list[Party]:
        """The parties in this process, protected by their local data boundary."""
        return [host.party for host in self._hosts.values()]

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
        return self._hosts[name].party

    def context(self, name: str) -> Context:
        """Return the defense context of a party.

        Parameters
        ----------
        name : str
            Name of a party in this process.

        Returns
        -------
        Context
            Information that the hooks of the defenses may use.
        """
        return self._hosts[name].context

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
        host_replies = self.call_and_record(
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
        self.call_and_record(receivers, lambda host: host.handle_message(sent, reason))
        return sent

    def ask(self, to: str, message: Message, *, why: str) -> list[Message]:
        """Call `request` by its former name, which works for one release.

        Parameters
        ----------
        to : str
            Name of a role or of a party.
        message : Message
            The request.
        why : str
            Reason for this disclosure.

        Returns
        -------
        list of Message
            The replies.
        """
        warn("Network.ask is now Network.request", DeprecationWarning, stacklevel=2)
        return self.request(to, message, reason=why)

    def tell(self, to: str, message: AnyMessage, *, why: str) -> AnyMessage:
        """Call `send` by its former name, which works for one release.

        Parameters
        ----------
        to : str
            Name of a role or of a party.
        message : Message
            The message.
        why : str
            Reason for this disclosure.

        Returns
        -------
        Message
            The message as it was sent.
        """
        warn("Network.tell is now Network.send", DeprecationWarning, stacklevel=2)
        return self.send(to, message, reason=why)

    def costs(self, encryption: EncryptedComputation | None) -> dict[str, float]:
        """Return the costs of all parties' cryptography.

        Parameters
        ----------
        encryption : EncryptedComputation or None
            Computation on encrypted values of the run, None if there is none.

        Returns
        -------
        dict of str to float
            Operation counts, and CPU seconds in keys that start with ``cpu_seconds``.
        """
        ledgers = self.call_hosts(self.names, lambda host: host.ledgers())
        sums = {name: sums for name, (sums, _) in ledgers.items() if sums}
        if self._aggregator.ledger is not None:
            sums[self.transcript.coordinator] = self._aggregator.ledger.counts()
        encryption_ledgers = [ledger for _, ledger in ledgers.values() if ledger]
        return {
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
        self.context(self._sender().name).record_release(mechanism, **release)

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
            self._hosts[name].expect(query)
        coordinator: Any = self.party(self.transcript.coordinator)
        # Predictions are recorded separately from the training, also if they fail.
        training, self.transcript = self.transcript, self.inference
        try:
            with acting(coordinator):
                answers: NDArray[Any] = getattr(coordinator, what)(self)
        finally:
            self.transcript = training
        return answers

    def encryption_states(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the parties' parts of the computation on encrypted values.

        Parameters
        ----------
        names : sequence of str
            Names of parties, possibly with the role ``public``, which has no host.

        Returns
        -------
        dict of str to object
            Parts by the name of the party.
        """
        computing = [name for name in names if name in self._hosts]  # the role public has no host
        return {name: self._hosts[name].encryption for name in computing}

    def read_truth(self, method: Callable[[Party], T]) -> dict[str, T]:
        """Return the results of a method of every party, by party, as ground truth of metrics.

        Parameters
        ----------
        method : callable
            The method. For example, `Party.own_bins` returns the bins of the rows of a party.

        Returns
        -------
        results : dict of str to object
            Result of the method by the name of the party.
        """
        return {name: host.read_truth(method) for name, host in self._hosts.items()}

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
        return [name for name in self._all_hosts if self.agreement.roles[name] == role]

    def allowed_splits(
        self, tree: int, nodes: int, bins: int, level: OpenNodes | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits the defenses allow.

        Parameters
        ----------
        tree : int
            Number of the tree.
        nodes, bins : int
            Number of nodes that are to be split, and of candidate splits of each node.
        level : OpenNodes, optional
            Statistics of the nodes, for a defense that reads them.

        Returns
        -------
        bool array, shape (nodes, bins), or None
            None if no defense restricts splits.
        """
        party = acting_party()
        if party is None or "allowed_splits" not in self.defense.hooks:
            return None
        mask = np.ones((nodes, bins), dtype=bool)
        return self.defense.allowed_splits(
            mask, tree, replace(self.context(party.name), open_nodes=level)
        )

    def shown_nodes(self, level: OpenNodes) -> NDArray[np.bool_]:
        """Return of which nodes the defenses let other parties learn the rows.

        A party that knows the rows of a node and of one of its children can compute those of the
        second child. Therefore, both children are shown or both are hidden.

        Parameters
        ----------
        level : OpenNodes
            Nodes that are to be split, and their statistics.

        Returns
        -------
        bool array, shape (k,)
            True for the nodes that are shown.
        """
        context = replace(self.context(self._sender().name), open_nodes=level)
        mask = self.defense.visible_nodes(
            np.ones(len(level.nodes), dtype=bool), level.tree, context
        )
        if len(mask) > 1:
            # Nodes are in pairs of siblings, except the root.
            mask = np.repeat(mask.reshape(-1, 2).all(axis=1), 2)
        return mask

    def reads_levels(self) -> tuple[bool, bool]:
        """Return whether a defense reads `OpenNodes`, and whether it reads their class counts."""
        reads = bool(self.defense.hooks & {"allowed_splits", "visible_nodes"})
        return reads, self.defense.requirements.class_counts

    def cut_plan(self) -> CutPlan | None:
        """Return how the defenses choose cut points, None if no defense changes the protocol."""
        # A part that chooses cut points counts as acting.
        settling = [i for i, p in enumerate(self.defense.parts) if p.cut_plan() is not None]
        self.transcript.acted.update(settling)
        return self.defense.cut_plan()

    def call_hosts(
        self, names: Iterable[str], call: Callable[[Host | RemoteHost], T]
    ) -> dict[str, T]:
        """Call a function with the host of each party.

        Parameters
        ----------
        names : iterable of str
            Names of the parties.
        call : callable
            Function of a host.

        Returns
        -------
        dict of str to object
            Results by the name of the party, in order.
        """
        return {name: call(self._all_hosts[name]) for name in names}

    def call_and_record(
        self, names: Iterable[str], call: Callable[[Host | RemoteHost], Reply]
    ) -> dict[str, Reply]:
        """Call a function with the host of each party, and record the parties' budget events.

        Parameters
        ----------
        names : iterable of str
            Names of the parties.
        call : callable
            Function from a host to a `fedtrees.core.host.Reply`.

        Returns
        -------
        dict of str to Reply
            Replies by the name of the party, in order.
        """
        replies = self.call_hosts(names, call)
        for reply in replies.values():
            self._ledger.events += reply.events
            self._ledger.acted |= reply.acted
        return replies

    def collect_spending(self, names: Iterable[str]) -> None:
        """Record the budget events of parties since their last reply.

        Parameters
        ----------
        names : iterable of str
            Names of the parties.
        """
        self.call_and_record(names, lambda host: host.take_events())

    def _apply_defenses(self, name: str, message: AnyMessage) -> AnyMessage:
        """Return a message of the acting party after its defenses."""
        message = self._hosts[name].apply_defenses(message)
        self.collect_spending([name])
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
        receivers = self.defense.audience(message, other_receivers, self.context(name))
        message = self._apply_defenses(name, message)
        self.transcript.record(name, tuple(receivers), message, reason)
        # The server side also digests what it sent, to compare it with the clients' digests.
        self._aggregator.record_sent(receivers, message)
        return name, message, receivers

    def _exchange(self, server: str, pending_replies: Mapping[str, Message]) -> AggregationExchange:
        """Return the access to this network that the server side of one secure sum needs."""
        context = self.agreement.sums(self.agreement.roles[next(iter(pending_replies))])
        shares, kinds = context.min_noise_shares, {type(r) for r in pending_replies.values()}
        # A sum over fewer replies would contain less noise than the privacy claim assumes.
        min_replies = max((shares[kind] for kind in kinds & {*shares}), default=0)
        # Losses of messages are simulated with separate randomness.
        streams = self._streams.child("network")
        return AggregationExchange(self, server, self._rows, context, streams, min_replies)

    def record_sealed_replies(
        self, server: str, replies: Mapping[str, Reply], reason: str
    ) -> dict[str, Message]:
        """Record replies that parties protected themselves.

        Parameters
        ----------
        server : str
            Name of the receiver.
        replies : mapping of str to Reply
            Replies by party. A reply without a message is left out.
        reason : str
            Recorded reason of the replies.

        Returns
        -------
        dict of str to Message
            Messages by the name of the party.
        """
        for name, reply in replies.items():
            host = self._hosts.get(name)
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

    def _sender(self) -> Party:
        """Return the acting party, or raise `ProtocolError` if it is not in this network."""
        party = acting_party()
        if party is None or party.name not in self._hosts:
            raise ProtocolError("only a party of this network can send; run it with acting(party)")
        return party

    def _resolve(self, to: str) -> list[str]:
        """Return the names of the parties of a role, or the name of a single party."""
        if to in self._all_hosts:
            return [to]
        members = self.members(to)
        if not members:
            names = {*self._all_hosts, *(self.agreement.roles[name] for name in self._all_hosts)}
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
