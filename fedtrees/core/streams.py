"""Named random streams: a draw depends on its party and purpose, never on earlier draws."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, get_args

import numpy as np

from fedtrees.core.errors import check_known
from fedtrees.core.keystream import Keystream

#: ``system``: 256 bits of the operating system. ``seed``: an adversary that knows the seed, or
#: tries out seeds, can reproduce the noise, so that no privacy claim holds.
NoiseFrom = Literal["system", "seed"]


class Streams:
    """Tree of independent random streams, addressed by names.

    ``Streams(seed).child("client-0").rng("columns", 3)`` gives the same generator, whatever else
    was drawn. Adding a party or a message therefore never changes the draws of another one.

    A child does not contain the key of its parent. But there are few seeds, which an adversary can
    try out: if a released model shows one draw, it determines the seed and all further draws.
    Values that must hide something are therefore drawn from `noise`. Its root is random or, if
    `noise_from` is ``seed``, another hash of the seed.

    Parameters
    ----------
    seed : int
        Seed of the experiment.
    noise_from : {"system", "seed"}
        Source of the root of `noise`.

    Attributes
    ----------
    secret : bool
        Whether the draws of `noise` cannot be reproduced.

    Raises
    ------
    UsageError
        If `noise_from` has another value.
    """

    __slots__ = ("_hides", "_key", "_noise", "secret")

    def __init__(self, seed: int, noise_from: NoiseFrom = "system") -> None:
        check_known("noise_from", noise_from, get_args(NoiseFrom))
        self._key, self._hides = _root(seed), False
        self.secret = noise_from == "system"
        self._noise = secrets.token_bytes(32) if self.secret else _root(seed, b"noise")

    @classmethod
    def _of(cls, key: bytes, noise: bytes, secret: bool, hides: bool) -> Streams:
        """Create streams from keys."""
        streams = cls.__new__(cls)
        streams._key, streams._noise = key, noise
        streams.secret, streams._hides = secret, hides
        return streams

    @property
    def noise(self) -> Streams:
        """The same scope for secret draws: noise, and samples that hide a row."""
        return self._of(self._noise, self._noise, self.secret, True)

    def child(self, *names: str) -> Streams:
        """Return the streams of a named scope (a party, a stage)."""
        key, noise = (_derive_key(k, "child", *names) for k in (self._key, self._noise))
        return self._of(key, noise, self.secret, self._hides)

    def deciding(self) -> Streams:
        """Return the streams of the server, which decides on splits."""
        return self.child("server")

    def client(self, index: int) -> Streams:
        """Return the streams of a client."""
        return self.child(f"client-{index}")

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Return the generator for one purpose (and round, tree, ...).

        Generators of `noise` draw from a cryptographic keystream with a separate key, so that known
        draws do not reveal further draws. All remaining generators are those of numpy, which are
        faster.
        """
        digest = _derive_key(self._key, "rng", purpose, *map(str, index))
        if self._hides:
            return np.random.Generator(Keystream(digest))  # type: ignore[arg-type]
        # The seed sequence receives all 256 bits of the digest.
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
        return np.random.default_rng(np.random.SeedSequence(words))


def _root(seed: int, purpose: bytes = b"") -> bytes:
    """Return the root key of a seed."""
    text = f"fedtrees:{seed}".encode()
    return hashlib.blake2b(text, digest_size=32, person=purpose).digest()


def _derive_key(key: bytes, *names: str) -> bytes:
    # The separator is a control character, so that names cannot be joined in two ways.
    """Return the key of a named child."""
    text = "\x1f".join(names).encode()
    return hashlib.blake2b(text, key=key, digest_size=32).digest()
