"""Collective operations, in the form in which the decoders of several wires return them."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


class OtherOperation(Exception):
    """The bytes do not belong to the operation that was tried."""


class CutOff(OtherOperation):
    """The capture ends before the operation does."""


class Reader:
    """Reads operations up to a position, `_at`."""

    _at: Any

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Return to the current position if the operation that is tried raises `OtherOperation`."""
        before = copy(self._at)
        try:
            yield
        except OtherOperation:
            self._at = before
            raise


@dataclass(frozen=True, eq=False)
class Hop:
    """A part of the numbers of an all-reduce on its way, summed over some members."""

    sender: int
    receivers: tuple[int, ...]
    first: int  # position of the first number
    numbers: NDArray[Any]
    members: tuple[int, ...]  # members whose numbers are in the sum


@dataclass(frozen=True, eq=False)
class Reduced:
    """An all-reduce: all hops, and the numbers that every member has at the end."""

    hops: tuple[Hop, ...]
    total: NDArray[Any]


@dataclass(frozen=True)
class Ended:
    """The end of decoding: the number of bytes that were not understood, and the reason."""

    left: int = 0
    why: str = ""


def worker(rank: int) -> str:
    """Return the name of the worker with a rank."""
    return f"worker-{rank}"
