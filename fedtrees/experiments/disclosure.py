"""List which party receives which messages, why, and which defense protects them.

The list is computed from the transcript of a real training.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fedtrees.core.composition import Composition
from fedtrees.core.messages import Message, Sealed, has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import Transcript


def disclosures(transcript: Transcript, defense: Composition) -> list[dict[str, Any]]:
    """Return every kind of message of a run, in the order of first appearance.

    Each entry is a row of ``disclosure.json`` with the following keys.

    - ``type``: type of the message.
    - ``from``, ``to``: roles of the sender and the receiver.
    - ``sealed``: whether a field is encrypted or masked. ``readable_by`` then names the role with
      the key, or a placeholder if no party has the key.
    - ``why``: reason for the message.
    - ``reveals``: tags of the information about records that it reveals.
    - ``carries``, ``withheld``: fields with and without a value.
    - ``guards``: list of the defenses (``defense``) that protect (``act`` is ``guards``) or exempt
      the message (``exempts``), with the reason for an exemption (``why``).
    - ``count``, ``bytes``: number of deliveries and their total size.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for d in transcript:
        name, sealed = type(d.message).__name__, has_sealed_field(d.message)
        sender = transcript.roles.get(d.sender, d.sender)
        receiver = transcript.roles[d.receivers[0]] if d.receivers else "nobody"
        values = {item.name: getattr(d.message, item.name) for item in fields(d.message)}
        filled = [field for field, value in values.items() if value is not None]
        # Messages of one type that fill different fields are listed separately.
        key = (name, sender, receiver, str(sealed), *filled)
        if key not in entries:
            entries[key] = {
                "type": name,
                "from": sender,
                "to": receiver,
                "sealed": any(isinstance(value, Sealed) for value in values.values()),
                "readable_by": _readers(d.message, receiver),
                "why": d.why,
                "reveals": [] if sealed else sorted(map(str, d.message.reveals)),
                "carries": filled,
                "withheld": [field for field in values if field not in filled],
                "guards": list(_guards(d.message, sender, defense)),
                "count": 0,
                "bytes": 0,
            }
        entries[key]["count"] += len(d.receivers)
        entries[key]["bytes"] += d.nbytes * len(d.receivers)
    return list(entries.values())


def _readers(message: Message, receiver: str) -> str:
    """Return the role that can read a message: the receiver, or the role with the key."""
    values = [getattr(message, item.name) for item in fields(message)]
    seals = [value for value in values if isinstance(value, Sealed)]
    holders = dict.fromkeys(name for seal in seals for name in seal.keyholders)
    return ", ".join(holders) or ("nobody" if seals else receiver)


def _guards(message: Message, role: str, defense: Composition) -> Iterator[dict[str, str]]:
    """Yield the parts of a defense that protect or exempt a message of a role."""
    for part in (part for part in defense.parts if role in part.roles):
        if isinstance(message, part.handled_types):
            yield {"defense": part.name, "act": "guards", "why": ""}
        else:
            for kind, why in part.permitted_types.items():
                if isinstance(message, kind):
                    yield {"defense": part.name, "act": "exempts", "why": why}


def briefly(protocol: Spec) -> Spec:
    """Return a protocol with only two trees or rounds, which are enough to show every message."""
    parameters = inspect.signature(register.get("protocol", protocol.name)).parameters
    few = {name: 2 for name in ("trees", "rounds") if name in parameters}
    return Spec(protocol.name, {**protocol.params, **few})
