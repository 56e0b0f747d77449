"""`lying-count` and `asking-twice`: coordinators whose requests differ from the agreement.

Both take the place of any coordinator. They change requests on their way from the honest code of
the protocol to the network, so that all other parties receive typed messages of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.messages import Message, names_of
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.protocols.base import Coordinator

#: Given a message and what sends it to its receivers, return the replies to go on with.
Asking = Callable[[Message, Callable[[Message], list[Message]]], list[Message]]


class _ChangedRequests:
    """A network whose requests pass through a function; all else is that of the network."""

    def __init__(self, net: Network, asking: Asking) -> None:
        self._net, self._asking = net, asking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)

    def ask(self, to: str, message: Message, *, why: str) -> list[Message]:
        """Send what the function makes of a request."""
        return self._asking(message, lambda sent: self._net.ask(to, sent, why=why))


class _DishonestRequests(Behaviour, Coordinator):
    """Base of coordinators that change requests and are honest in everything else."""

    def train(self, net: Network) -> Any:
        """Run the protocol over a network that changes requests."""
        return super().train(cast(Network, _ChangedRequests(net, self.asking)))

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request, or others in its place, and return the replies to go on with."""
        raise TypeError(f"{type(self).__name__} must define asking(message, send)")


@register.behaviour("lying-count")
class LyingCount(_DishonestRequests):
    """Write other numbers into every request than the parties agreed on.

    Whole numbers (of a tree, a round or bins, the length of a key) are one larger. Lists of whole
    numbers, and what belongs to them, come twice: leaves, nodes, tests of trees. Of the clients
    that take part in a round only the first is named. A client that took these numbers from the
    request would draw too little noise, answer for more than its budget covers, or be summed alone.
    """

    beyond = "writes other numbers into requests: of trees, rounds, bins, leaves, or participants"
    noticed = "yes: a party compares every number with its own copy of the agreement, and refuses"

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request with other counts."""
        return send(with_other_counts(message, self.agreement.members("client")))


@register.behaviour("asking-twice")
class AskingTwice(_DishonestRequests):
    """Send every request a second time, its lists in reverse order.

    Two answers to one request cost the privacy budget twice; if both used one stream of noise, the
    difference of two leaves would be exact.
    """

    beyond = "sends every request a second time, with its lists in reverse order"
    noticed = "yes: a party answers each request once, in order, and refuses the second one"

    def asking(self, message: Message, send: Callable[[Message], list[Message]]) -> list[Message]:
        """Send a request twice, and go on with the first replies."""
        replies = send(message)
        send(reversed_lists(message))
        return replies


def with_other_counts(message: Message, clients: Sequence[str] = ()) -> Message:
    """Return a message with other numbers (`LyingCount`); itself if it states none.

    Parameters
    ----------
    clients : sequence of str
        All clients, of which the first is named as the only participant of a round.
    """
    fields = {name: getattr(message, name) for name in names_of(message)}
    changed: dict[str, Any] = {}
    sizes = {len(a) for a in fields.values() if _is_list(a)}
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool):
            changed[name] = value + 1
        elif isinstance(value, np.ndarray) and value.ndim and len(value) in sizes:
            changed[name] = np.concatenate([value, value])
    if "chosen" in fields and clients:
        changed["chosen"] = clients[0]
    return replace(message, **changed) if changed else message


def reversed_lists(message: Message) -> Message:
    """Return a message with its lists of whole numbers, and what belongs to them, in reverse."""
    fields = {name: getattr(message, name) for name in names_of(message)}
    sizes = {len(a) for a in fields.values() if _is_list(a)}
    changed = {
        name: value[::-1].copy()
        for name, value in fields.items()
        if isinstance(value, np.ndarray) and value.ndim and len(value) in sizes
    }
    return replace(message, **changed) if changed else message


def _is_list(value: Any) -> bool:
    """Tell whether a field lists whole numbers."""
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "iu"
