"""Key agreement of two parties, masks from the agreed seed, and the randomness of keys.

Masks are the key stream of ChaCha20 (RFC 8439) of a seed. Keys, obfuscators and mask seeds are
drawn from the operating system. The seed of the experiment is not used. It is a small number that
is printed in tables, so that every reader could compute the keys.
"""

from __future__ import annotations

import hmac
import secrets

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.secret import Secret

# Counter and nonce are 0, because every seed is derived for one message and expanded only once.
_START = bytes(16)


def expand(seed: Secret[bytes], count: int) -> NDArray[np.uint64]:
    """Return `count` numbers from a seed of 32 bytes.

    They are pseudorandom and uniform below 2^64 for a party that does not know the seed.
    """
    stream = Cipher(ChaCha20(seed.reveal(), _START), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)


class Randomness:
    """Random numbers of the operating system."""

    def take(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return secrets.token_bytes(count)

    def below(self, bound: int) -> int:
        """Return an integer from 0 to ``bound - 1``, all with the same probability."""
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:  # a draw is accepted with probability above 1/2
            drawn = int.from_bytes(self.take(size), "little") >> (8 * size - bits)
            if drawn < bound:
                return drawn


SYSTEM = Randomness()


KEY_BYTES = 32


def draw_key(randomness: Randomness) -> Secret[bytes]:
    """Draw a private key of 32 bytes."""
    return Secret(randomness.take(KEY_BYTES))


def public_of(private: Secret[bytes]) -> bytes:
    """Return the public key of a private key, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private.reveal()).public_key().public_bytes_raw()


def agree(private: Secret[bytes], public: bytes) -> Secret[bytes]:
    """Return the shared secret of one party's private key and another party's public key, 32 bytes.

    Raises
    ------
    MalformedError
        If the public key has another length, or is of low order. The secret would then be the same
        for every private key.
    """
    if len(public) != KEY_BYTES:
        raise MalformedError(f"a public key has {KEY_BYTES} bytes; got {len(public)}")
    try:
        other = X25519PublicKey.from_public_bytes(public)
        shared = X25519PrivateKey.from_private_bytes(private.reveal()).exchange(other)
    # The library raises ValueError if the shared secret is zero.
    except ValueError:
        raise MalformedError(
            "a public key of low order: the secret would not depend on the private key; the party "
            "that sent it must draw another"
        ) from None
    return Secret(shared)


def derive(secret: Secret[bytes], *names: bytes) -> Secret[bytes]:
    """Derive a key of 32 bytes for the purpose that the names state in order."""
    # The lengths make the encoding injective: two lists of names never give the same bytes.
    info = b"".join(len(name).to_bytes(4, "big") + name for name in names)
    return Secret(hkdf(secret.reveal(), b"", info, KEY_BYTES))


def expanded(key: Secret[bytes], info: bytes) -> Secret[bytes]:
    """Derive a key from a key that is uniform: HKDF without extraction (RFC 5869, 3.3)."""
    return Secret(hmac.digest(key.reveal(), info + b"\1", "sha256"))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Compute HKDF-SHA256 (RFC 5869)."""
    return HKDF(SHA256(), length, salt, info).derive(secret)
