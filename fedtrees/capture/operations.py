"""Collective operations, as decoders of several wires hand them on."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


class OtherOperation(Exception):
    """These bytes are not of that operation."""


class CutOff(OtherOperation):
    """The bytes end before the operation does."""


class Reader:
    """Reads operations up to some place, `_at`."""

    _at: Any

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Go back to where it was if what is tried is not there."""
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
    members: tuple[int, ...]  # whose numbers are in it


@dataclass(frozen=True, eq=False)
class Reduced:
    """What crossed in an all-reduce: all hops, and the numbers that everybody has at the end."""

    hops: tuple[Hop, ...]
    total: NDArray[Any]


@dataclass(frozen=True)
class Ended:
    """Where decoding ended: `left` bytes that were not understood; `why`, where there are any."""

    left: int = 0
    why: str = ""


def worker(rank: int) -> str:
    """Return the name of a worker."""
    return f"worker-{rank}"
