"""Compare two trainings, guesses or values bit by bit."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedtrees.core.codec import encode
from fedtrees.core.guess import Guess
from fedtrees.core.messages import emptied
from fedtrees.protocols.training import Training


def same_run(a: Training, b: Training) -> bool:
    """Return whether two trainings send the same messages, except for sealed contents."""
    return len(a.transcript.deliveries) == len(b.transcript.deliveries) and all(
        x.sender == y.sender and alike(emptied(x.message), emptied(y.message))
        for x, y in zip(a.transcript, b.transcript, strict=True)
    )


def same_transcript(a: Training, b: Training) -> bool:
    """Return whether two trainings send the same bytes."""
    return [encode(d.message) for d in a.transcript] == [encode(d.message) for d in b.transcript]


def same(a: Guess, b: Guess) -> bool:
    """Return whether two guesses make the same claims."""
    return len(a.claims) == len(b.claims) and all(
        type(x) is type(y) and alike(x, y) for x, y in zip(a.claims, b.claims, strict=True)
    )


def alike(a: Any, b: Any) -> bool:
    """Return whether two values, arrays, or dataclasses of them are equal.

    NaN equals NaN in float arrays.
    """
    if is_dataclass(a) and is_dataclass(b):
        return type(a) is type(b) and all(
            alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return bool(a == b)
