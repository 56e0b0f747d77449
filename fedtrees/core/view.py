"""Views: all that the curious parties of a threat saw, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedtrees.core.defense import Composition
from fedtrees.core.messages import Message
from fedtrees.core.schema import Schema, Table
from fedtrees.core.transcript import Delivery, Transcript

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Opaque:
    """A message that passed through a principal's hands sealed: only its type and size show."""

    type_name: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class Seen:
    """One crossing as a principal saw it."""

    round: int
    sender: str
    receivers: tuple[str, ...]
    message: Message | Opaque
    why: str


@dataclass(frozen=True, eq=False)
class View:
    """What the principals of a threat know after a run.

    Attributes
    ----------
    principals : tuple of str
        Names of the colluding parties.
    roles : mapping of str to str
        Role of every party by name (public).
    own : Table or None
        Rows of the principals together; None where they hold none.
    schema : Schema
    protocol : str
    parameters : mapping
        The protocol's public parameters.
    n_rows : int
        Declared number of training rows over all parties, own ones included.
    defense : Composition
        What defended the run: its parameters are public, its coins are not.
    seen : tuple of Seen
        Messages received or sent by a principal, in order.
    """

    principals: tuple[str, ...]
    roles: Mapping[str, str]
    own: Table | None
    schema: Schema
    protocol: str
    parameters: Mapping[str, Any]
    n_rows: int
    defense: Composition
    seen: tuple[Seen, ...]

    def messages(self, kind: type[M]) -> Iterator[tuple[Seen, M]]:
        """Yield the readable messages of one type, with how they crossed, in order."""
        for item in self.seen:
            if isinstance(item.message, kind):
                yield item, item.message

    def blinded(self) -> View:
        """Return the same view with an empty transcript: what a blind adversary has."""
        from dataclasses import replace

        return replace(self, seen=())


def see(transcript: Transcript, principals: tuple[str, ...]) -> tuple[Seen, ...]:
    """Return the crossings the principals took part in; sealed messages become `Opaque`."""
    who = set(principals)
    return tuple(
        Seen(d.round, d.sender, d.receivers, _open(d, who), d.why)
        for d in transcript
        if d.sender in who or who & set(d.receivers)
    )


def _open(delivery: Delivery, who: set[str]) -> Message | Opaque:
    if delivery.sender in who or who & set(delivery.readers):
        return delivery.message
    return Opaque(type(delivery.message).__name__, delivery.nbytes)
