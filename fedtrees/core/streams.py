"""Named random streams: a draw depends on who draws and why, never on who drew before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Streams:
    """A tree of independent random streams, addressed by names.

    ``Streams(seed).child("client-0").rng("noise", 3)`` gives the same generator whatever else
    was drawn, so adding a party or a message never shifts another's draw.
    """

    seed: int
    path: tuple[str, ...] = field(default=())

    def child(self, *names: str) -> Streams:
        """Return the streams of a named sub-scope (a party, a stage)."""
        return Streams(self.seed, (*self.path, *names))

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Return the generator for one purpose (and round, tree, ...)."""
        name = "\x1f".join((*self.path, purpose, *map(str, index)))
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
        return np.random.default_rng(np.random.SeedSequence([self.seed, *words]))
