"""The public plan of masked sums, and the keys of masks, boxes, locks and tags.

Clients and server derive keys in the same way.

Two parties agree on one secret for all sums of a plan, and expand it to a seed for each sum. Shares
of this secret would open earlier and later sums as well. Each party therefore encrypts its seeds of
a sum with a key that is drawn for this sum. It sends the result, the lock, to the server, and deals
shares of the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.poly1305 import Poly1305

from fedtrees.core.errors import UsageError
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    Secret,
    TooFewPartiesError,
    WrongKeyError,
    derive_key,
    expand_key,
)
from fedtrees.crypto.shamir import SHARE_BYTES

_NONCE = bytes(12)  # constant, because each box and each lock has a separate key


BOX_OVERHEAD = 16  # bytes of the tag of a box with shares, and of a lock
COMMITMENT_BYTES = 32
TAG_BYTES = 16  # of a masked array


@dataclass(frozen=True)
class MaskPlan:
    """Public parameters of a batch of sums.

    Attributes
    ----------
    parties : tuple of str
        All parties that may take part.
    threshold : int
        Number of parties that must stay until the end, more than half of them. Fewer parties cannot
        open a sum. With half or less, a server could send two groups different sets of survivors,
        and recover both secrets of a party from their shares.
    sums : int
        Number of sums that the first two rounds prepare. Each sum has separate masks and locks. A
        party that misses one sum, so that its lock is opened, can therefore take part in the next
        one.
    context : bytes
        Name of the run and batch. All keys depend on it.

    Raises
    ------
    UsageError
        If there are fewer than two parties or repeated names, if the threshold is not a majority of
        the parties, or if there is no sum.
    """

    parties: tuple[str, ...]
    threshold: int
    sums: int = 1
    context: bytes = b""

    def __post_init__(self) -> None:
        count = len(self.parties)
        if count < 2 or len(set(self.parties)) != count:
            raise UsageError(
                f"masks need two or more parties of different names; got {list(self.parties)}"
            )
        # Two disjoint groups of parties cannot both reach a majority.
        if not count // 2 < self.threshold <= count:
            raise UsageError(
                f"a threshold of {self.threshold} of {count} parties; choose one from "
                f"{count // 2 + 1} to {count} (two thirds and one, {usual_threshold(count)}, is "
                "usual)"
            )
        if self.sums < 1:
            raise UsageError(f"sums must be at least 1; got {self.sums}")

    @property
    def box_bytes(self) -> int:
        """Bytes of one encrypted box: two shares for each sum."""
        return BOX_OVERHEAD + 2 * self.sums * SHARE_BYTES

    @staticmethod
    def lock_bytes(advertised: int) -> int:
        """Return the bytes of one lock if `advertised` parties have keys."""
        return BOX_OVERHEAD + (advertised - 1) * KEY_BYTES

    def deal_bytes(self, advertised: int) -> int:
        """Return the bytes of one party's boxes, commitments and locks."""
        locks = self.sums * (COMMITMENT_BYTES + self.lock_bytes(advertised))
        return (advertised - 1) * self.box_bytes + locks

    def point(self, party: str) -> int:
        """Return the point at which a party's shares are evaluated, from 1."""
        return self.parties.index(party) + 1

    def need(self, names: Collection[str], did: str) -> None:
        """Raise `TooFewPartiesError` with the missing parties if fewer than `threshold` did it."""
        if len(names) < self.threshold:
            missing = [name for name in self.parties if name not in names]
            raise TooFewPartiesError(
                f"{len(names)} parties {did}, and the threshold is {self.threshold}; missing: "
                f"{', '.join(missing)}. Nothing is opened. Wait for them, or choose a lower "
                "threshold"
            )


def usual_threshold(parties: int) -> int:
    """Return ``floor(2 n / 3) + 1``, at most n. A third of the parties cannot recover a secret.

    >>> usual_threshold(5)
    4
    """
    return min(2 * parties // 3 + 1, parties)


def roster_digest(plan: MaskPlan, key_of: Mapping[str, bytes]) -> bytes:
    """Return a digest of the plan and of the public keys by party, 32 bytes.

    Boxes, locks and tags depend on it, so that masks cancel only between parties with the same
    roster.
    """
    parts = [plan.context, b"%d of %d" % (plan.threshold, plan.sums)]
    for name in plan.parties:
        # A party that is missing from the roster contributes an empty key.
        parts += [name.encode(), key_of.get(name, b"")]
    return hashlib.sha256(_joined(parts)).digest()


def pair_key(plan: MaskPlan, secret: Secret[bytes], pair: tuple[str, str]) -> Secret[bytes]:
    """Return the key of the masks of two parties.

    Parameters
    ----------
    plan : MaskPlan
    secret : Secret
        Result of the key agreement of the two parties.
    pair : (str, str)
        Names of the parties, in any order.
    """
    # Sorted, because both parties must derive the same key.
    first, second = sorted(name.encode() for name in pair)
    return derive_key(secret, b"pair", plan.context, first, second)


def pair_seed(key: Secret[bytes], index: int) -> Secret[bytes]:
    """Return the seed of the mask that two parties share in one sum."""
    return expand_key(key, b"pair mask %d" % index)


def bind_to_history(seed: Secret[bytes], history_digest: bytes) -> Secret[bytes]:
    """Return the seed of a mask that two parties share if they received the same messages.

    The second argument is a digest of all messages that one of them received. Masks of parties with
    different digests do not cancel. A sum can therefore only be opened over parties that received
    the same requests about the same trees.
    """
    return expand_key(seed, b"told " + history_digest)


def box_cipher(
    plan: MaskPlan, secret: Secret[bytes], sender: str, receiver: str
) -> ChaCha20Poly1305:
    """Return the cipher of the only box from sender to receiver.

    Parameters
    ----------
    plan : MaskPlan
    secret : Secret
        Result of the key agreement of the two parties.
    sender, receiver : str
        Names of the parties.
    """
    # Each direction has a separate key, because the nonce is constant.
    key = derive_key(secret, b"box", plan.context, sender.encode(), receiver.encode())
    return ChaCha20Poly1305(key.reveal())


def encrypt_once(cipher: ChaCha20Poly1305, text: bytes, keys: bytes) -> bytes:
    """Encrypt the only text of a cipher.

    Parameters
    ----------
    cipher : ChaCha20Poly1305
    text : bytes
    keys : bytes
        Digest of the roster (`roster_digest`). Only parties with the same roster can decrypt the
        text.
    """
    return cipher.encrypt(_NONCE, text, keys)


def decrypt_once(cipher: ChaCha20Poly1305, closed: bytes, keys: bytes) -> bytes:
    """Decrypt a text.

    Parameters
    ----------
    cipher, keys
        As in `encrypt_once`.
    closed : bytes
        Result of `encrypt_once`.

    Raises
    ------
    WrongKeyError
        If the text was changed, or was encrypted with another key or another roster.
    """
    try:
        return cipher.decrypt(_NONCE, closed, keys)
    except InvalidTag:
        raise WrongKeyError("a text was changed, or encrypted with another key") from None


# The following keys are derived from secrets that were drawn for one party and one sum. They need
# no further context.


def commitment(seed: Secret[bytes]) -> bytes:
    """Return a commitment to the seed of a self-mask. It does not reveal the seed."""
    return hashlib.sha256(expand_key(seed, b"commitment").reveal()).digest()


def self_seed(seed: Secret[bytes]) -> Secret[bytes]:
    """Return the seed of a self-mask from the secret that is shared."""
    return expand_key(seed, b"self mask")


def lock(secret: Secret[bytes], seeds: Sequence[Secret[bytes]], keys: bytes) -> bytes:
    """Encrypt a party's seeds of one sum.

    Parameters
    ----------
    secret : Secret
        Key that was drawn for this sum.
    seeds : sequence of Secret
        Seeds of the masks that the party shares with the remaining parties.
    keys : bytes
        Digest of the roster.
    """
    return encrypt_once(_lock(secret), b"".join(seed.reveal() for seed in seeds), keys)


def unlock(secret: Secret[bytes], closed: bytes, keys: bytes) -> list[Secret[bytes]]:
    """Decrypt a party's seeds of one sum.

    Parameters
    ----------
    secret, keys
        As in `lock`.
    closed : bytes
        Result of `lock`.

    Raises
    ------
    WrongKeyError
        If the key belongs to another lock, or the roster was another one.
    """
    text = decrypt_once(_lock(secret), closed, keys)
    return [Secret(text[i : i + KEY_BYTES]) for i in range(0, len(text), KEY_BYTES)]


def _lock(secret: Secret[bytes]) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(expand_key(secret, b"lock").reveal())


def tag(
    seed: Secret[bytes],
    keys: bytes,
    among: Sequence[str],
    index: int,
    values: bytes,
    history_digest: bytes,
) -> bytes:
    """Return the tag of a masked array: Poly1305 (RFC 8439), 16 bytes.

    Its key depends on this array, and on the seed of the self-mask. Only the owner knows the seed
    until the array has arrived and the survivors are decided. `keys` is the digest of the roster,
    and `among` contains the parties whose masks are on the array, its owner included, in the order
    of the plan. The last argument is the digest of received messages of `bind_to_history`.
    """
    place = f"{index} ({len(values) // 8},)".encode()  # the number of the sum, and the shape
    bound = [keys, history_digest, place, *(name.encode() for name in among)]
    # A Poly1305 key must be used for a single message. This key depends on everything that
    # identifies the array.
    key = expand_key(seed, _joined([b"tag", *bound]))
    return Poly1305.generate_tag(key.reveal(), values)


def _joined(parts: Iterable[bytes]) -> bytes:
    # The lengths make the encoding injective.
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
