"""Convert guesses to values, and validate them where the bench receives them."""

import math
from collections.abc import Collection, Iterable
from typing import Any

from fedtrees.core.claims import Guess
from fedtrees.core.errors import ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.wire import type_name
from fedtrees.isolation import replies

#: Largest number of notes of a guess. Each becomes a row of the results.
MOST_NOTES = replies.MOST_ENTRIES


def guess_as_value(guess: object, attack: str, scored: Collection[str]) -> dict[str, Any]:
    """Return a guess as a value: its claims, its notes and its reason.

    If all claims are empty, for example tables without rows, they are replaced by the reason
    ``empty-claims``.

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
        If the value is not a guess, if no metric scores the type of a claim, or if there are
        neither claims nor a reason.
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
    """Return the guess that a value describes (`guess_as_value`).

    Raises
    ------
    ProtocolError
        If the value is not a guess, has more than `MOST_NOTES` notes, or a note is not a number.
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
    no_claim_reason = None if reason is None else replies.reason(reason)
    guess = Guess(claims, notes, no_claim_reason)
    return Guess(
        guess.claims, {name: _number(note) for name, note in guess.notes.items()}, no_claim_reason
    )


def scored() -> tuple[type, ...]:
    """Return the types of claims that can be scored.

    The bench creates no other types, because this would run the code of their class in the process
    with the ground truth. Only the author of a metric is trusted with that.
    """
    metrics: Iterable[Any] = (register.get("metric", name) for name in register.names("metric"))
    return tuple(dict.fromkeys(metric.of for metric in metrics))


def _number(note: Any) -> float:
    """Return a note as a float."""
    try:
        return float(note)
    except OverflowError:  # an integer with more than 308 digits
        return math.inf if note > 0 else -math.inf
