"""A guess as a value, and back: made anew of plain arrays and numbers where it is scored."""

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fedtrees.core.errors import ProtocolError
from fedtrees.core.guess import Guess
from fedtrees.core.registry import register
from fedtrees.core.values import type_name


def told(guess: object, attack: str, scored: Collection[str]) -> dict[str, Any]:
    """Return a guess as a value.

    `scored`: Names of the types of claims that can be scored.

    Raises `ProtocolError` if it is none, or claims something else.
    """
    if not isinstance(guess, Guess):
        raise ProtocolError(f"attack {attack!r} returned a {type(guess).__name__}; return a Guess")
    for claim in guess.claims:
        if type_name(type(claim)) not in scored:
            raise ProtocolError(
                f"attack {attack!r} claims {type(claim).__name__}, which no metric scores; "
                "register one (`of` names the very type)"
            )
    return {"claims": guess.claims, "notes": dict(guess.notes)}


def guess_of(value: Any) -> Guess:
    """Return the guess that was told.

    Raises `ProtocolError` if the value is no guess.
    """
    if not isinstance(value, dict) or set(value) != {"claims", "notes"}:
        raise ProtocolError("an attack answered with something else than a guess")
    claims, notes = value["claims"], value["notes"]
    if not isinstance(notes, dict):
        raise ProtocolError(f"the notes of a guess are a {type(notes).__name__}, not a mapping")
    guess = Guess(claims, notes)
    return Guess(guess.claims, {name: _number(note) for name, note in guess.notes.items()})


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
        return math.copysign(np.inf, note)
