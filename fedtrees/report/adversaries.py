"""Describe adversaries and the messages that they receive, in words."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedtrees.core.errors import UsageError
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.report.results import UNDEFENDED, Setting


def adversary_named(threat: str, words: Mapping[str, tuple[str, str]]) -> tuple[str, bool]:
    """Return a description of an adversary, and whether it consists of several parties.

    Parameters
    ----------
    threat : str
        Threat in the notation of the command line, for example ``server+client``.
    words : mapping of str to (str, str)
        Singular and plural name of each role.
    """
    try:
        parsed = Threat.parse(threat)
    # The run of another release can contain a threat that this release does not know.
    except UsageError:
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        role, _, behaviour = part.name.partition(":")
        one, several = words.get(role, (f"the party {role!r}", f"{role} parties"))
        count = part.params.get("count", 1)
        cheats = f", cheating ({behaviour})" if behaviour else ""
        parts.append((one if count == 1 else f"{count} {several}") + cheats)
    counts = {"queries": parsed.queries, "labels": parsed.labels, "attributes": parsed.attributes}
    knowledge = [f"{n} {kind}" for kind, n in counts.items() if n]
    if parsed.sensitive is not None:
        knowledge.append(f"all but attribute {parsed.sensitive} of others' rows")
    text = " and ".join(parts) + (f" (with {', '.join(knowledge)})" if knowledge else "")
    count = sum(int(p.params.get("count", 1)) for p in parsed.parts)  # type: ignore[call-overload]
    return text, count > 1


def seen_by(threat: str, setting: Setting, seen: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the types of messages that an adversary can read in the undefended run, in words.

    A setting in which the adversary only receives the finished model has the single entry "the
    finished model".

    Parameters
    ----------
    threat : str
        Threat in the notation of the command line.
    setting : Setting
        Only messages of its protocol are considered.
    seen : sequence of mapping
        Entries of ``disclosure.json``, one per type of message and receiver.
    """
    try:
        roles = {*Threat.parse(threat).roles}
    except UsageError:
        return ()
    message_types = []
    for entry in seen:
        if not of_protocol(entry, setting) or str(entry.get("defense")) != UNDEFENDED:
            continue
        reader = str(entry.get("readable_by") or entry.get("to"))
        if reader in roles and entry.get("reveals") and not entry.get("sealed"):
            message_types.append(words_of(str(entry.get("type", ""))))
    return tuple(dict.fromkeys(message_types)) or (
        ("the finished model",) if roles == {PUBLIC} else ()
    )


def of_protocol(entry: Mapping[str, Any], setting: Setting) -> bool:
    """Return whether an entry of ``disclosure.json`` belongs to the protocol of a setting.

    Parameters of the protocol are ignored.
    """
    name = str(entry.get("protocol", "")).partition("[")[0]
    return name == setting.protocol.partition("[")[0]


def words_of(message: str) -> str:
    """Return the type of a message in words: ``LeafValues`` becomes ``leaf values``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message).lower()
