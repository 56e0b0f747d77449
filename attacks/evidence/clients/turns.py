"""Who grew which trees in cyclic boosting, where some clients grow none.

A client without rows passes its turn on, and nobody is told. But a principal sees the model at each
of its own turns, and knows how many turns there were in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fedtrees.core.view import View
from fedtrees.messages.shared_trees import ClientTrees, GlobalTrees


@dataclass(frozen=True)
class Span:
    """The turns between two looks at the model."""

    who: tuple[str, ...]  # Clients in the order of their turns; none twice
    # They grew the blocks ``first <= block < last``
    first: int
    last: int


@dataclass
class Roll:
    """Which clients grow trees."""

    present: set[str]
    absent: set[str]
    # Clients among them that are guessed: their number is right, but it may be others
    guessed: set[str] = field(default_factory=set)

    def call(self, spans: Sequence[Span]) -> None:
        """Tell who grows trees from the number of blocks of every span; guess the rest."""
        everyone = [w for span in spans for w in span.who]
        known = True
        while any(map(self.open, everyone)):
            before = len(self.present) + len(self.absent)
            for span in spans:
                self._settle(span, known)
            if len(self.present) + len(self.absent) == before:
                known = False
                self._take(True, next(filter(self.open, everyone)), known)

    def open(self, name: str) -> bool:
        """Tell whether nothing is settled about a client."""
        return name not in self.present | self.absent

    def _settle(self, span: Span, known: bool) -> None:
        left = [w for w in span.who if self.open(w)]
        wanted = span.last - span.first - sum(w in self.present for w in span.who)
        if wanted in (0, len(left)):
            for name in left:
                self._take(wanted > 0, name, known)

    def _take(self, present: bool, name: str, known: bool) -> None:
        (self.present if present else self.absent).add(name)
        if not known:
            self.guessed.add(name)


def turns_of(view: View, blocks: int, each: int) -> list[tuple[str, bool]]:
    """Return who grew each block (of ``each`` trees) of a cyclic model, and whether that is known.

    Blocks with the same name come from one client, even if its name is a guess.
    """
    names = [name for name, role in view.roles.items() if role == "client"]
    looks = {(m.round, (m.first + len(m.sizes)) // each) for _, m in view.messages(GlobalTrees)}
    looks |= {(0, 0), (int(view.parameters["trees"]), blocks)}
    spans = [
        Span(tuple(names[t % len(names)] for t in range(a[0], b[0])), a[1], b[1])
        for a, b in pairwise(sorted(looks))
    ]
    replies = [(d.sender, len(m.sizes)) for d, m in view.messages(ClientTrees)]
    roll = Roll({w for w, size in replies if size}, {w for w, size in replies if not size})
    roll.call(spans)
    out = [("", False)] * blocks
    for span in spans:
        there = [w for w in span.who if w in roll.present]
        for block, name in zip(range(span.first, span.last), there, strict=False):
            out[block] = (name, name not in roll.guessed)
    return out
