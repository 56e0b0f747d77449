"""Lines: what a network and a host say to one another, as bytes. Never pickle.

A frame is a header in JSON, and the encoding of a message behind it, byte for byte as the
transcript counts it.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from fedtrees.core.codec import decode, encode
from fedtrees.core.errors import DataError, PartyError, ProtocolError
from fedtrees.core.host import Host, Reply
from fedtrees.core.messages import Message
from fedtrees.core.transcript import BudgetEvent

_MAGIC = b"FTL1"
_PREFIX = len(_MAGIC) + 4


def framed(header: Mapping[str, Any], message: Message | None = None) -> bytes:
    """Return a frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"" if message is None else encode(message)
    return b"".join([_MAGIC, struct.pack("<I", len(text)), text, body])


def unframed(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a frame and the bytes of its message, which may be empty.

    Raises
    ------
    DataError
        If the bytes are no frame.
    """
    if len(blob) < _PREFIX or blob[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"not a frame: it starts with {blob[:4]!r}")
    end = _PREFIX + struct.unpack_from("<I", blob, len(_MAGIC))[0]
    try:
        header = json.loads(blob[_PREFIX:end])
    except (ValueError, RecursionError) as err:
        raise DataError("malformed frame: its header is no JSON, or is nested too deep") from err
    if end > len(blob) or not isinstance(header, dict):
        raise DataError("malformed frame: its header is cut off, or no object")
    return header, blob[end:]


class Served:
    """A host at its end of a line.

    Whatever goes wrong there crosses as the type of the error alone, for its text may hold values
    of rows, and the host answers nothing after it.

    `log`: ``log(message, why, sent)``: writes down what the party sent, or was sent; `sent` is None
    for what it opened for itself.
    `failed`: Takes what went wrong, for the eyes of whoever keeps the host.
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
        """Answer a frame with a frame."""
        if not self._stopped:
            try:
                return self._answered(blob)
            except Exception as err:  # of which nothing but the type may leave
                self._failed(err)
                self._stopped = type(err).__name__
        return framed({"error": self._stopped})

    def _answered(self, blob: bytes) -> bytes:
        header, body = unframed(blob)
        does, why = header.get("does"), str(header.get("why", ""))
        if does == "ledgers":
            return framed({"ledgers": self._host.ledgers()})
        if does == "spent":
            reply = self._host.spent()
        elif does == "seal":
            reply = self._host.seal(header["how"])
        elif does in ("ask", "tell"):
            message = decode(body)
            if self._log is not None:
                self._log(message, why, False)
            reply = self._host.ask(message) if does == "ask" else self._host.tell(message)
        else:
            raise ProtocolError(f"a host does not {does!r}")
        if self._log is not None:
            for kept, reason in self._host.kept():
                self._log(kept, reason, None)
            if reply.message is not None and not reply.waits:
                self._log(reply.message, why, True)
        told = {
            "waits": reply.waits,
            "events": [vars(event) for event in reply.events],
            "acted": sorted(reply.acted),
        }
        return framed(told, reply.message)


class Far:
    """A host at the other end of a line: what a network says to it is what it says to a `Host`.

    `send`: Carries a frame there, and returns the one that comes back.
    """

    def __init__(self, name: str, send: Callable[[bytes], bytes]) -> None:
        self.name, self._send = name, send

    def ask(self, message: Message, why: str = "") -> Reply:
        """As `Host.ask`."""
        return self._reply({"does": "ask", "why": why}, message)

    def tell(self, message: Message, why: str = "") -> Reply:
        """As `Host.tell`."""
        return self._reply({"does": "tell", "why": why}, message)

    def seal(self, how: Mapping[str, Any], why: str = "") -> Reply:
        """As `Host.seal`."""
        return self._reply({"does": "seal", "how": how, "why": why})

    def spent(self) -> Reply:
        """As `Host.spent`."""
        return self._reply({"does": "spent"})

    def ledgers(self) -> tuple[Any, Any]:
        """As `Host.ledgers`."""
        sums, own = self._call({"does": "ledgers"})[0]["ledgers"]
        return sums, own

    def _reply(self, header: Mapping[str, Any], message: Message | None = None) -> Reply:
        told, body = self._call(header, message)
        events = tuple(BudgetEvent(**event) for event in told["events"])
        acted = frozenset(map(int, told["acted"]))
        return Reply(decode(body) if body else None, bool(told["waits"]), events, acted)

    def _call(
        self, header: Mapping[str, Any], message: Message | None = None
    ) -> tuple[dict[str, Any], bytes]:
        told, body = unframed(self._send(framed(header, message)))
        if "error" in told:
            raise PartyError(
                f"{self.name!r} stopped the run ({str(told['error'])[:60]}); its own log says why"
            )
        return told, body
