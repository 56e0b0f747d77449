"""Key agreement of two parties: X25519 (RFC 7748) and HKDF-SHA256 (RFC 5869)."""

import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedtrees.crypto.randomness import Randomness
from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.secret import Secret

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
