"""Named random streams: a draw depends on who draws and why, never on who drew before."""

from __future__ import annotations

import hashlib

import numpy as np


class Streams:
    """A tree of independent random streams, addressed by names.

    ``Streams(seed).child("client-0").rng("noise", 3)`` gives the same generator whatever else
    was drawn, so adding a party or a message never shifts another's draw. A child does not hold
    its parent's key, but experiment seeds are few and can be tried out: no view hands out streams.

    Parameters
    ----------
    seed : int
        Seed of the experiment.
    """

    __slots__ = ("_key",)

    def __init__(self, seed: int) -> None:
        self._key = hashlib.blake2b(f"fedtrees:{seed}".encode(), digest_size=32).digest()

    def child(self, *names: str) -> Streams:
        """Return the streams of a named sub-scope (a party, a stage)."""
        streams = Streams.__new__(Streams)
        streams._key = self._derive("child", *names)
        return streams

    def deciding(self) -> Streams:
        """Return the streams of whoever decides on splits."""
        return self.child("server")

    def holding(self, index: int) -> Streams:
        """Return the streams of one of those who hold rows."""
        return self.child(f"client-{index}")

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Return the generator for one purpose (and round, tree, ...)."""
        digest = self._derive("rng", purpose, *map(str, index))
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
        return np.random.default_rng(np.random.SeedSequence(words))

    def _derive(self, *names: str) -> bytes:
        text = "\x1f".join(names).encode()
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()
