"""Named random streams: a draw depends on who draws and why, never on who drew before."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, get_args

import numpy as np

from fedtrees.core.errors import check_known
from fedtrees.core.keystream import Keystream

#: ``system``: 256 bits of the operating system's; ``seed``: whoever knows or tries out the seed
#: draws the same, and no bound on what noise hides holds.
NoiseFrom = Literal["system", "seed"]


class Streams:
    """A tree of independent random streams, addressed by names.

    ``Streams(seed).child("client-0").rng("columns", 3)`` gives the same generator whatever else
    was drawn, so adding a party or a message never shifts another's draw. A child does not hold
    its parent's key, but seeds are few and can be tried out: what a released model shows of one
    draw tells the seed, and with it all others. What hides something is therefore drawn from
    `noise`, whose root nobody can try out; of a seed, its root is another hash of that seed.

    Raises `UsageError` if `noise_from` is neither.

    `secret`: Whether nobody can draw `noise` again.
    `seed`: Seed of the experiment.
    `noise_from`: {"system", "seed"}. Where the root of `noise` comes from.
    """

    __slots__ = ("_hides", "_key", "_noise", "secret")

    def __init__(self, seed: int, noise_from: NoiseFrom = "system") -> None:
        check_known("noise_from", noise_from, get_args(NoiseFrom))
        self._key, self._hides = _root(seed), False
        self.secret = noise_from == "system"
        self._noise = secrets.token_bytes(32) if self.secret else _root(seed, b"noise")

    @classmethod
    def _of(cls, key: bytes, noise: bytes, secret: bool, hides: bool) -> Streams:
        streams = cls.__new__(cls)
        streams._key, streams._noise = key, noise
        streams.secret, streams._hides = secret, hides
        return streams

    @property
    def noise(self) -> Streams:
        """The same scope for draws that must stay secret: noise, and samples that hide a row."""
        return self._of(self._noise, self._noise, self.secret, True)

    def child(self, *names: str) -> Streams:
        """Return the streams of a named sub-scope (a party, a stage)."""
        key, noise = (_derived(k, "child", *names) for k in (self._key, self._noise))
        return self._of(key, noise, self.secret, self._hides)

    def deciding(self) -> Streams:
        """Return the streams of whoever decides on splits."""
        return self.child("server")

    def client(self, index: int) -> Streams:
        """Return the streams of one of those who hold rows."""
        return self.child(f"client-{index}")

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Return the generator for one purpose (and round, tree, ...).

        Generators of `noise` draw from a cryptographic keystream under a key of their own, so that
        known draws do not reveal others. All others are numpy's, which are faster.
        """
        digest = _derived(self._key, "rng", purpose, *map(str, index))
        if self._hides:
            return np.random.Generator(Keystream(digest))  # type: ignore[arg-type]
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
        return np.random.default_rng(np.random.SeedSequence(words))


def _root(seed: int, purpose: bytes = b"") -> bytes:
    text = f"fedtrees:{seed}".encode()
    return hashlib.blake2b(text, digest_size=32, person=purpose).digest()


def _derived(key: bytes, *names: str) -> bytes:
    text = "\x1f".join(names).encode()
    return hashlib.blake2b(text, key=key, digest_size=32).digest()
