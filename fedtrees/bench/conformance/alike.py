"""Whether two runs or guesses are the same, bit by bit."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedtrees.core.codec import encode
from fedtrees.core.guess import Guess
from fedtrees.core.messages import emptied
from fedtrees.protocols.training import Training


def same_run(a: Training, b: Training) -> bool:
    """Tell whether two trainings say the same, but for what is sealed."""
    return len(a.transcript.deliveries) == len(b.transcript.deliveries) and all(
        x.sender == y.sender and alike(emptied(x.message), emptied(y.message))
        for x, y in zip(a.transcript, b.transcript, strict=True)
    )


def same_transcript(a: Training, b: Training) -> bool:
    """Tell whether the same bytes cross in two trainings."""
    return [encode(d.message) for d in a.transcript] == [encode(d.message) for d in b.transcript]


def same(a: Guess, b: Guess) -> bool:
    """Tell whether two guesses claim the same."""
    return len(a.claims) == len(b.claims) and all(
        type(x) is type(y) and alike(x, y) for x, y in zip(a.claims, b.claims, strict=True)
    )


def alike(a: Any, b: Any) -> bool:
    """Compare values, arrays, and whatever dataclasses are made of them."""
    if is_dataclass(a) and is_dataclass(b):
        return type(a) is type(b) and all(
            alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return bool(a == b)
