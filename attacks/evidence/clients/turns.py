"""Determine who grew which trees in cyclic boosting if some clients grow no trees.

A client without rows passes its turn on without an announcement. A party of the adversary sees the
model at each of its turns, and knows the number of turns in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees


@dataclass(frozen=True)
class Span:
    """The turns between two observations of the model.

    Attributes
    ----------
    who : tuple of str
        Clients in the order of their turns, none twice.
    first, last : int
        They grew the blocks ``first <= block < last``.
    """

    who: tuple[str, ...]
    # half-open range of blocks
    first: int
    last: int


@dataclass
class ClientAttendance:
    """Clients that grow trees, clients that do not, and clients whose state is guessed."""

    present: set[str]
    absent: set[str]
    # Their number is right, but not necessarily their names.
    guessed: set[str] = field(default_factory=set)

    def call(self, spans: Sequence[Span]) -> None:
        """Determine who grows trees from the number of blocks of every span, and guess the rest."""
        all_turns = [w for span in spans for w in span.who]
        is_certain = True
        while any(map(self.open, all_turns)):
            before = len(self.present) + len(self.absent)
            for span in spans:
                self._settle(span, is_certain)
            if len(self.present) + len(self.absent) == before:
                is_certain = False
                self._take(True, next(filter(self.open, all_turns)), is_certain)

    def open(self, name: str) -> bool:
        """Return whether the state of a client is undetermined."""
        return name not in self.present | self.absent

    def _settle(self, span: Span, is_certain: bool) -> None:
        left = [w for w in span.who if self.open(w)]
        missing_blocks = span.last - span.first - sum(w in self.present for w in span.who)
        if missing_blocks in (0, len(left)):
            for name in left:
                self._take(missing_blocks > 0, name, is_certain)

    def _take(self, present: bool, name: str, is_certain: bool) -> None:
        (self.present if present else self.absent).add(name)
        if not is_certain:
            self.guessed.add(name)


def turns_of(view: View, blocks: int, each: int) -> list[tuple[str, bool]]:
    """Return the grower of each block of a cyclic model, and whether it is certain.

    Blocks with the same name come from one client, even if its name is a guess.

    Parameters
    ----------
    view : View
        The adversary's view.
    blocks : int
        Number of blocks.
    each : int
        Number of trees per block.
    """
    names = [name for name, role in view.roles.items() if role == "client"]
    looks = {(m.round, (m.first + len(m.sizes)) // each) for _, m in view.messages(GlobalTrees)}
    looks |= {(0, 0), (int(view.parameters["trees"]), blocks)}
    spans = [
        Span(tuple(names[t % len(names)] for t in range(a[0], b[0])), a[1], b[1])
        for a, b in pairwise(sorted(looks))
    ]
    replies = [(d.sender, len(m.sizes)) for d, m in view.messages(ClientTrees)]
    roll = ClientAttendance(
        {w for w, size in replies if size}, {w for w, size in replies if not size}
    )
    roll.call(spans)
    out = [("", False)] * blocks
    for span in spans:
        growing = [w for w in span.who if w in roll.present]
        for block, name in zip(range(span.first, span.last), growing, strict=False):
            out[block] = (name, name not in roll.guessed)
    return out
