"""A guess as a value, and back: made anew of plain arrays and numbers where it is scored."""

import math
from collections.abc import Collection, Iterable
from typing import Any

from fedtrees.core.errors import ProtocolError
from fedtrees.core.guess import Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.values import type_name
from fedtrees.isolation import replies

#: The most notes of one guess. Each becomes a row of the results.
MOST_NOTES = replies.MOST_ENTRIES


def told(guess: object, attack: str, scored: Collection[str]) -> dict[str, Any]:
    """Return a guess as a value: its claims, its notes and its reason.

    Claims that are all empty, such as a table without rows, are no claim (code ``empty-claims``).

    Parameters
    ----------
    guess : object
        Return value of `Attack.run`.
    attack : str
        Name of the attack.
    scored : collection of str
        Names of the types of claims that can be scored.

    Raises
    ------
    ProtocolError
        It is no guess, claims something that no metric scores, or claims nothing without a reason.
    """
    if not isinstance(guess, Guess):
        raise ProtocolError(f"attack {attack!r} returned a {type(guess).__name__}; return a Guess")
    for claim in guess.claims:
        if type_name(type(claim)) not in scored:
            raise ProtocolError(
                f"attack {attack!r} claims {type(claim).__name__}, which no metric scores; "
                "register one (`of` names the very type)"
            )
    claims, reason = guess.claims, guess.reason
    if not claims and reason is None:
        raise ProtocolError(
            f"attack {attack!r} returned a guess without claims and without a reason; return "
            "Guess.none(Reason(code)) or Guess.none('a sentence that says why')"
        )
    if claims and all(claim.empty for claim in claims):
        claims, reason = (), Reason("empty-claims")
    told_reason = None if reason is None else (reason.code, dict(reason.args))
    return {"claims": claims, "notes": dict(guess.notes), "reason": told_reason}


def guess_of(value: Any) -> Guess:
    """Return the guess that a value describes (`told`).

    Raises
    ------
    ProtocolError
        If the value is no guess, has more than `MOST_NOTES` notes, or a note is no number.
    """
    if not isinstance(value, dict) or set(value) != {"claims", "notes", "reason"}:
        raise ProtocolError("an attack answered with something else than a guess")
    claims, notes, reason = value["claims"], value["notes"], value["reason"]
    if not claims and reason is None:
        raise ProtocolError("an attack answered with a guess without claims and without a reason")
    if not isinstance(notes, dict):
        raise ProtocolError(f"the notes of a guess are a {type(notes).__name__}, not a mapping")
    if len(notes) > MOST_NOTES:
        raise ProtocolError(f"a guess has {len(notes)} notes; give {MOST_NOTES} at most")
    replies.texts(tuple(notes))
    given = None if reason is None else replies.reason(reason)
    guess = Guess(claims, notes, given)
    return Guess(guess.claims, {name: _number(note) for name, note in guess.notes.items()}, given)


def scored() -> tuple[type, ...]:
    """Return the types of claims that can be scored.

    No other is made here: making one runs the code of its class beside truth, and only who brings a
    metric is trusted with that.
    """
    metrics: Iterable[Any] = (register.get("metric", name) for name in register.names("metric"))
    return tuple(dict.fromkeys(metric.of for metric in metrics))


def _number(note: Any) -> float:
    try:
        return float(note)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if note > 0 else -math.inf
