"""A guess as a value, and back: made anew of plain arrays and numbers where it is scored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedtrees.core.errors import ProtocolError
from fedtrees.core.guess import Claim, Guess
from fedtrees.core.schema import Table


def told(guess: object, attack: str) -> dict[str, Any]:
    """Return a guess as a value.

    Raises
    ------
    ProtocolError
        If it is none.
    """
    if not isinstance(guess, Guess):
        raise ProtocolError(f"attack {attack!r} returned a {type(guess).__name__}; return a Guess")
    return {"claims": guess.claims, "notes": dict(guess.notes)}


def guess_of(value: Any) -> Guess:
    """Return the guess that was told.

    Raises
    ------
    ProtocolError
        If the value is no guess.
    """
    if not isinstance(value, dict) or set(value) != {"claims", "notes"}:
        raise ProtocolError("an attack answered with something else than a guess")
    claims, notes = value["claims"], value["notes"]
    if not isinstance(notes, dict):
        raise ProtocolError(f"the notes of a guess are a {type(notes).__name__}, not a mapping")
    guess = Guess(claims, notes)
    return Guess(guess.claims, {name: _number(note) for name, note in guess.notes.items()})


def types() -> Iterator[type]:
    """Yield the dataclasses that a guess is made of: tables, and every type of claim."""
    yield Table
    waiting: list[type] = [Claim]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += kind.__subclasses__()


def _number(note: Any) -> float:
    try:
        return float(note)
    except OverflowError:  # a whole number of more than 308 digits
        return math.copysign(np.inf, note)
