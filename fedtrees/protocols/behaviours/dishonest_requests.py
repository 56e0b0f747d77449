"""Behaviours `lying-count` and `asking-twice`: requests that differ from the agreement.

Both replace the coordinator of any protocol. They change requests between the honest code of the
protocol and the network, so that all other parties receive typed messages of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedtrees.core.messages import Message, names_of
from fedtrees.core.network import Network
from fedtrees.core.party import Behaviour
from fedtrees.core.registry import register
from fedtrees.core.secure_sum import add_messages
from fedtrees.protocols.base import Coordinator

#: Function of a request and of a function that sends it. It returns the replies to continue with.
Asking = Callable[[Message, Callable[[Message], list[Message]]], list[Message]]


class _ChangedRequests:
    """A network that changes requests with a function and forwards everything else."""

    def __init__(self, net: Network, asking: Asking) -> None:
        self._net, self._asking = net, asking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)

    def request_sum(self, to: str, message: Message, *, reason: str) -> Message:
        """Send the changed request, or several, and return the sum of the replies."""
        return add_messages(self.request(to, message, reason=reason))

    def request(self, to: str, message: Message, *, reason: str) -> list[Message]:
        """Send the changed request, or several."""
        return self._asking(message, lambda sent: self._net.request(to, sent, reason=reason))


class _DishonestRequests(Behaviour, Coordinator):
    """Base class of coordinators that change requests and are otherwise honest."""

    def train(self, net: Network) -> Any:
        """Run the protocol over a network that changes requests."""
        return super().train(cast(Network, _ChangedRequests(net, self.asking)))

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request or its replacement, and return the replies to continue with."""
        raise TypeError(f"{type(self).__name__} must define asking(message, send)")


@register.behaviour("lying-count")
class LyingCount(_DishonestRequests):
    """Write other numbers into every request than the parties agreed on.

    Integers (for example a tree, a round, a number of bins, or the length of a key) are increased
    by one. Lists of integers, and the lists that belong to them, are repeated: leaves, nodes, tests
    of trees. Of the participants of a round only the first client is named. A client that trusted
    these numbers would draw too little noise, answer more than its budget covers, or be summed
    without other clients.
    """

    deviation = (
        "writes other numbers into requests: of trees, rounds, bins, leaves, or participants"
    )
    detectable = (
        "yes: a party compares every number with its own copy of the agreement, and refuses"
    )

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request with other counts."""
        return send(with_other_counts(message, self.agreement.members("client")))


@register.behaviour("asking-twice")
class AskingTwice(_DishonestRequests):
    """Send every request a second time, with its lists in reverse order.

    Two replies to one request spend the privacy budget twice. If both used one stream of noise, the
    difference of two leaves would be exact.
    """

    deviation = "sends every request a second time, with its lists in reverse order"
    detectable = "yes: a party answers each request once, in order, and refuses the second one"

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request twice, and continue with the first replies."""
        replies = send(message)
        send(reversed_lists(message))
        return replies


def with_other_counts(message: Message, clients: Sequence[str] = ()) -> Message:
    """Return a message with other numbers (`LyingCount`). Unchanged if it contains none.

    Parameters
    ----------
    message : Message
        The honest request.
    clients : sequence of str
        Names of all clients. The first one is named as the only participant of a round.
    """
    fields = {name: getattr(message, name) for name in names_of(message)}
    changed: dict[str, Any] = {}
    sizes = {len(a) for a in fields.values() if _is_list(a)}
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool):
            changed[name] = value + 1
        elif isinstance(value, np.ndarray) and value.ndim and len(value) in sizes:
            changed[name] = np.concatenate([value, value])
    # A single participant would make the secure sum its reply.
    if "chosen" in fields and clients:
        changed["chosen"] = clients[0]
    return replace(message, **changed) if changed else message


def reversed_lists(message: Message) -> Message:
    """Return a message with its lists of integers, and lists of the same lengths, reversed."""
    fields = {name: getattr(message, name) for name in names_of(message)}
    sizes = {len(a) for a in fields.values() if _is_list(a)}
    changed = {
        name: value[::-1].copy()
        for name, value in fields.items()
        if isinstance(value, np.ndarray) and value.ndim and len(value) in sizes
    }
    return replace(message, **changed) if changed else message


def _is_list(value: Any) -> bool:
    """Return whether a field is a list of integers."""
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "iu"
