"""Who sees what, why, and what guards it: read off a real run's transcript."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedtrees.core.defense import Composition
from fedtrees.core.messages import Message, closed
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import Transcript


@dataclass
class Disclosure:
    """One kind of crossing between two roles.

    Attributes
    ----------
    type_name, sender, receiver : str
        Message type and roles.
    readers : str
        Role that can open it, or ``nobody`` (sealed).
    why : str
    reveals, carries, withheld : list of str
        Tags; fields with content; fields that were left empty.
    guarded_by : list of str
        Defenses that changed or checked it, exemptions with their reason.
    count, nbytes : int
    """

    type_name: str
    sender: str
    receiver: str
    readers: str
    why: str
    reveals: list[str]
    carries: list[str]
    withheld: list[str]
    guarded_by: list[str]
    count: int = 0
    nbytes: int = field(default=0)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, under the names of ``disclosure.json``."""
        return {
            "type": self.type_name,
            "from": self.sender,
            "to": self.receiver,
            "readable_by": self.readers,
            "why": self.why,
            "reveals": self.reveals,
            "carries": self.carries,
            "withheld": self.withheld,
            "guarded_by": self.guarded_by,
            "count": self.count,
            "bytes": self.nbytes,
        }


def disclosures(transcript: Transcript, defense: Composition) -> list[Disclosure]:
    """Return every kind of crossing of a run, in the order of first appearance."""
    found: dict[tuple[str, ...], Disclosure] = {}
    for d in transcript:
        sender = transcript.roles.get(d.sender, d.sender)
        receiver = transcript.roles[d.receivers[0]] if d.receivers else "nobody"
        readers = "nobody (sealed)" if closed(d.message) else receiver
        filled, empty = _fields(d.message)
        key = (type(d.message).__name__, sender, receiver, readers, ",".join(filled))
        if key not in found:
            found[key] = Disclosure(
                type_name=key[0],
                sender=sender,
                receiver=receiver,
                readers=readers,
                why=d.why,
                reveals=[] if closed(d.message) else sorted(map(str, d.message.reveals)),
                carries=filled,
                withheld=empty,
                guarded_by=_guards(d.message, sender, defense),
            )
        found[key].count += len(d.receivers)
        found[key].nbytes += d.nbytes * len(d.receivers)
    return list(found.values())


def _fields(message: Message) -> tuple[list[str], list[str]]:
    values = {item.name: getattr(message, item.name) for item in fields(message)}
    empty = [name for name, value in values.items() if value is None]
    return [name for name in values if name not in empty], empty


def _guards(message: Message, role: str, defense: Composition) -> list[str]:
    texts = []
    for part in defense.parts:
        if role not in part.at:
            continue
        if isinstance(message, part.guards):
            texts.append(part.name)
        else:
            texts += [
                f"{part.name}: exempt, {reason}"
                for kind, reason in part.exempts.items()
                if isinstance(message, kind)
            ]
    return texts


def visible_to(rows: Sequence[Disclosure], role: str) -> list[Disclosure]:
    """Return the crossings a role can read or has sent."""
    return [r for r in rows if role in (r.readers, r.sender)]


def briefly(protocol: Spec) -> Spec:
    """Return a protocol with two trees only, if it has trees: enough to show every crossing."""
    known = inspect.signature(register.get("protocol", protocol.name)).parameters
    return Spec(protocol.name, {**protocol.params, **({"trees": 2} if "trees" in known else {})})
