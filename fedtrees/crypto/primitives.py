"""Building blocks of all cryptography of this package: secrets, randomness, key agreement, errors.

Two parties agree on a secret with X25519, derive keys from it with HKDF-SHA256 (RFC 5869), and
expand keys to masks with the key stream of ChaCha20 (RFC 8439). Keys, obfuscators and mask seeds
are drawn from the operating system. The seed of the experiment is not used. It is a small number
that is printed in tables, so that every reader could compute the keys.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Generic, NoReturn, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError


class CryptoError(ProtocolError):
    """Base of all errors about ciphertexts, masks and shares."""


class ExposureError(CryptoError):
    """An operation would reveal a secret: a key, both shares, or the summand of one party."""


class PlaintextOverflowError(CryptoError):
    """A value or a sum of values does not fit its slot of a plaintext."""


class WrongKeyError(CryptoError):
    """Ciphertexts, shares, boxes or tags belong to different keys, or were changed."""


class MalformedError(CryptoError):
    """A message has a wrong length, or contains numbers that an honest party does not send."""


class TooFewPartiesError(CryptoError):
    """Fewer parties remain than the threshold requires."""


class MissingPartyError(CryptoError):
    """A party is missing from a sum that needs all parties, or those of earlier sums."""


class LateError(CryptoError):
    """A message belongs to a round that has ended, or has not started."""


class RepeatedError(CryptoError):
    """A message was received twice, or a mask would be used twice."""


Value = TypeVar("Value")


class SecretHolder:
    """Base of classes that contain secrets: instances cannot be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, _: object = None) -> NoReturn:
        raise ExposureError(
            f"a {type(self).__name__} contains secrets and can be neither pickled nor "
            "copied; create it where it is used"
        )

    __copy__ = __deepcopy__ = __reduce_ex__


class Secret(SecretHolder, Generic[Value]):
    """One secret value. Only `reveal` returns it."""

    __slots__ = ("__value",)

    def __init__(self, value: Value) -> None:
        self.__value = value

    def reveal(self) -> Value:
        """Return the value."""
        return self.__value

    def __repr__(self) -> str:
        return "<secret>"


# Counter and nonce are 0, because every seed is derived for one message and expanded only once.
_START = bytes(16)


def expand_mask(seed: Secret[bytes], count: int) -> NDArray[np.uint64]:
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


def public_key_of(private: Secret[bytes]) -> bytes:
    """Return the public key of a private key, 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private.reveal()).public_key().public_bytes_raw()


def agree_on_secret(private: Secret[bytes], public: bytes) -> Secret[bytes]:
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


def derive_key(secret: Secret[bytes], *names: bytes) -> Secret[bytes]:
    """Derive a key of 32 bytes for the purpose that the names state in order."""
    # The lengths make the encoding injective: two lists of names never give the same bytes.
    info = b"".join(len(name).to_bytes(4, "big") + name for name in names)
    return Secret(hkdf(secret.reveal(), b"", info, KEY_BYTES))


def expand_key(key: Secret[bytes], info: bytes) -> Secret[bytes]:
    """Derive a key from a key that is uniform: HKDF without extraction (RFC 5869, 3.3)."""
    return Secret(hmac.digest(key.reveal(), info + b"\1", "sha256"))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Compute HKDF-SHA256 (RFC 5869)."""
    return HKDF(SHA256(), length, salt, info).derive(secret)
