"""Adversaries and what they see, in words."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedtrees.core.errors import UsageError
from fedtrees.core.threat import Threat
from fedtrees.core.transcript import PUBLIC
from fedtrees.report.rows import UNDEFENDED, Setting


def adversary_named(threat: str, words: Mapping[str, tuple[str, str]]) -> tuple[str, bool]:
    """Return an adversary in words and whether it is several."""
    try:
        parsed = Threat.parse(threat)
    except UsageError:  # of another release
        return f"the adversary {threat!r}", False
    parts = []
    for part in parsed.parts:
        role, _, behaviour = part.name.partition(":")
        one, several = words.get(role, (f"the party {role!r}", f"{role} parties"))
        count = part.params.get("count", 1)
        cheats = f", cheating ({behaviour})" if behaviour else ""
        parts.append((one if count == 1 else f"{count} {several}") + cheats)
    told = {"queries": parsed.queries, "labels": parsed.labels, "attributes": parsed.attributes}
    besides = [f"{n} {what}" for what, n in told.items() if n]
    if parsed.sensitive is not None:
        besides.append(f"all but attribute {parsed.sensitive} of others' rows")
    text = " and ".join(parts) + (f" (with {', '.join(besides)})" if besides else "")
    count = sum(int(p.params.get("count", 1)) for p in parsed.parts)  # type: ignore[call-overload]
    return text, count > 1


def seen_by(threat: str, setting: Setting, seen: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the kinds of messages that a threat reads in the undefended run, in words."""
    try:
        roles = {*Threat.parse(threat).roles}
    except UsageError:
        return ()
    found = []
    for entry in seen:
        if not of_protocol(entry, setting) or str(entry.get("defense")) != UNDEFENDED:
            continue
        reader = str(entry.get("readable_by") or entry.get("to"))
        if reader in roles and entry.get("reveals") and not entry.get("sealed"):
            found.append(words_of(str(entry.get("type", ""))))
    return tuple(dict.fromkeys(found)) or (("the finished model",) if roles == {PUBLIC} else ())


def of_protocol(entry: Mapping[str, Any], setting: Setting) -> bool:
    """Tell whether a crossing is of a setting's protocol, of whatever parameters."""
    name = str(entry.get("protocol", "")).partition("[")[0]
    return name == setting.protocol.partition("[")[0]


def words_of(message: str) -> str:
    """Return a message's type in words: ``LeafValues`` is ``leaf values``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", message).lower()
