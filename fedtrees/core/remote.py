"""Calls from a network to the host of a party on another machine, as bytes.

`RemoteHost` has the methods of a `Host`, and sends each call to a `HostServer` on the other
machine, which executes it. Calls and results are written by `fedtrees.core.wire`. Their messages
have the bytes that the transcript counts.

The header of a call names the operation (key ``does``) by a word of the first release, so that
sites of different versions understand each other:

- ``ask``: `Host.handle_request`
- ``tell``: `Host.handle_message`
- ``seal``: `Host.protect`, with its arguments as ``how``
- ``spent``: `Host.take_events`
- ``ledgers``: `Host.ledgers`

In the header of a reply, ``waits`` is `Reply.awaits_sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtrees.core.errors import PartyError, ProtocolError
from fedtrees.core.host import Host, Reply
from fedtrees.core.messages import Message
from fedtrees.core.transcript import BudgetEvent
from fedtrees.core.wire import decode, read_call, write_call


class HostServer:
    """Server end of a connection: it executes the calls of the network on a host.

    If a call fails, only the type of the exception is sent, because its text may contain values of
    private rows. The host then refuses all further calls.

    Parameters
    ----------
    host : Host
        The host of the party.
    log : callable, optional
        ``log(message, reason, sent)`` records each message of the party. ``sent`` is True for a
        sent message, False for a received one, and None for a message that the party decrypted for
        itself.
    failed : callable
        Receives each exception, for the local log of the party's operator.
    """

    def __init__(
        self,
        host: Host,
        log: Callable[[Message, str, bool | None], None] | None = None,
        failed: Callable[[Exception], None] = lambda err: None,
    ) -> None:
        self._host, self._log, self._failed = host, log, failed
        self._stopped = ""

    def call(self, blob: bytes) -> bytes:
        """Execute the call in a frame, and return a frame with the result."""
        if not self._stopped:
            try:
                return self._answered(blob)
            except Exception as err:  # only the type of an exception may be sent
                self._failed(err)
                # After a failure the state of the host is undefined, so that it answers no further
                # call.
                self._stopped = type(err).__name__
        return write_call({"error": self._stopped})

    def _answered(self, blob: bytes) -> bytes:
        """Execute the call in a frame. Exceptions are handled by `call`."""
        header, body = read_call(blob)
        operation, reason = header.get("does"), str(header.get("why", ""))
        if operation == "ledgers":
            return write_call({"ledgers": self._host.ledgers()})
        if operation == "spent":
            reply = self._host.take_events()
        elif operation == "seal":
            reply = self._host.protect(header["how"])
        elif operation in ("ask", "tell"):
            message = decode(body)
            if self._log is not None:
                self._log(message, reason, False)
            handle = self._host.handle_request if operation == "ask" else self._host.handle_message
            reply = handle(message)
        else:
            raise ProtocolError(f"a host has no operation {operation!r}")
        if self._log is not None:
            for opened in self._host.take_opened_messages():
                self._log(*opened, None)
            if reply.message is not None and not reply.awaits_sum:
                self._log(reply.message, reason, True)
        reply_header = {
            "waits": reply.awaits_sum,
            "events": [vars(event) for event in reply.events],
            "acted": sorted(reply.acted),
        }
        return write_call(reply_header, reply.message)


class RemoteHost:
    """Client end of a connection, with the same methods as a `Host`.

    Parameters
    ----------
    name : str
        Name of the party.
    send : callable
        Sends a frame to the other end, and returns the frame of the reply.
    """

    def __init__(self, name: str, send: Callable[[bytes], bytes]) -> None:
        self.name, self._send = name, send

    def handle_request(self, message: Message, reason: str = "") -> Reply:
        """Call `Host.handle_request`."""
        return self._reply({"does": "ask", "why": reason}, message)

    def handle_message(self, message: Message, reason: str = "") -> Reply:
        """Call `Host.handle_message`."""
        return self._reply({"does": "tell", "why": reason}, message)

    def protect(self, arguments: Mapping[str, Any], reason: str = "") -> Reply:
        """Call `Host.protect`."""
        return self._reply({"does": "seal", "how": arguments, "why": reason})

    def take_events(self) -> Reply:
        """Call `Host.take_events`."""
        return self._reply({"does": "spent"})

    def ledgers(self) -> tuple[Any, Any]:
        """Call `Host.ledgers`."""
        sums, computation = self._call({"does": "ledgers"})[0]["ledgers"]
        return sums, computation

    def _reply(self, header: Mapping[str, Any], message: Message | None = None) -> Reply:
        """Send a call and return the reply of the host."""
        reply_header, body = self._call(header, message)
        events = tuple(BudgetEvent(**event) for event in reply_header["events"])
        acted = frozenset(map(int, reply_header["acted"]))
        return Reply(decode(body) if body else None, bool(reply_header["waits"]), events, acted)

    def _call(
        self, header: Mapping[str, Any], message: Message | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a call and return header and message of the resulting frame.

        Raises `PartyError` if the party stopped the run.
        """
        result, body = read_call(self._send(write_call(header, message)))
        if "error" in result:
            raise PartyError(
                f"{self.name!r} stopped the run ({str(result['error'])[:60]}); its log "
                "contains the reason"
            )
        return result, body
