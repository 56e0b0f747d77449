"""Arrays of whole numbers that are added while encrypted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fedtrees.core.sealed import Sealed
from fedtrees.crypto import marked, paillier
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.sealing import sizes
from fedtrees.sealing.errors import MalformedError, PlaintextOverflowError, WrongKeyError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.slots import Slots


@dataclass(frozen=True)
class EncryptedArray:
    """An int64 array under a key, many elements to a ciphertext."""

    public: PublicKey
    slots: Slots
    shape: tuple[int, ...]
    terms: int  # how many arrays were added to make it
    # in the order of the elements, the last one not full
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        array: NDArray[np.int64],
        slots: Slots,
        obfuscators: Obfuscators,
        ledger: Ledger | None = None,
    ) -> EncryptedArray:
        """Encrypt an array.

        Raises `PlaintextOverflowError` if an element is beyond the limit of the slots.
        """
        per = slots.per_plaintext(obfuscators.public.bits)
        rows = np.zeros((-(-array.size // per), per), dtype=np.int64)
        rows.ravel()[: array.size] = array.ravel()
        sealed = paillier.encrypt(slots.join(rows), obfuscators, ledger)
        return cls(obfuscators.public, slots, array.shape, 1, tuple(sealed))

    def plus(self, other: EncryptedArray, ledger: Ledger | None = None) -> EncryptedArray:
        """Add two arrays.

        Raises `WrongKeyError` if they are under different keys.
        Raises `MalformedError` if their shapes or slots differ.
        Raises `PlaintextOverflowError` if the sum has more terms than its slots have room for.
        """
        if self.public.n != other.public.n:
            raise WrongKeyError(f"arrays of {self.public!r} and {other.public!r} do not add up")
        if (self.shape, self.slots) != (other.shape, other.slots):
            raise MalformedError(
                f"arrays of {self.shape} in {self.slots} and {other.shape} in {other.slots} "
                "do not add up"
            )
        terms = self.terms + other.terms
        if terms > self.slots.terms:
            raise PlaintextOverflowError(
                f"a sum of {terms} arrays; their slots have room for {self.slots.terms}: "
                "make slots for more terms"
            )
        both = paillier.add(self.ciphertexts, other.ciphertexts, self.public, ledger)
        return EncryptedArray(self.public, self.slots, self.shape, terms, tuple(both))

    def opened(self, keys: KeyPair, ledger: Ledger | None = None) -> NDArray[np.int64]:
        """Decrypt, int64, shape `shape`.

        Raises `WrongKeyError` if the key is another one. Raises `PlaintextOverflowError` if what is
        inside does not fit the slots.
        """
        if keys.public.n != self.public.n:
            raise WrongKeyError(f"an array of {self.public!r} does not open with {keys!r}")
        plain = paillier.decrypt(self.ciphertexts, keys, ledger)
        found = self.slots.split(plain, self.slots.per_plaintext(self.public.bits))
        return found.ravel()[: math.prod(self.shape)].reshape(self.shape)

    @property
    def payload(self) -> bytes:
        """The ciphertexts as they are sent, marked as what they are."""
        return self.payload_of("")

    def payload_of(self, place: str) -> bytes:
        """Return the ciphertexts as they are sent, marked as of one place, such as a sum's."""
        read_as = _reading(self.slots, self.shape, self.terms, place)
        return marked.to_bytes(self.ciphertexts, self.public, read_as)

    def sealed(self, *keyholders: str) -> Sealed:
        """Return it as a message field that the holders of the key can open."""
        payload = self.payload
        return Sealed(keyholders, self.shape, "<i8", len(payload), payload)

    @classmethod
    def from_payload(
        cls,
        payload: bytes,
        public: PublicKey,
        slots: Slots,
        shape: tuple[int, ...],
        terms: int = 1,
        place: str = "",
    ) -> EncryptedArray:
        """Read an array that was sent.

        `terms`: How many arrays it is the sum of.
        `place`: As in `payload_of`.

        Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key.
        Raises `WrongKeyError` if it was sent under another key, in another shape, other slots, as
        the sum of more or fewer arrays, or from another place.
        """
        count = sizes.array(math.prod(shape), slots, public.bits).ciphertexts
        read_as = _reading(slots, shape, terms, place)
        sealed = marked.from_bytes(payload, count, public, read_as)
        return cls(public, slots, tuple(shape), terms, tuple(sealed))


def _reading(slots: Slots, shape: tuple[int, ...], terms: int, place: str) -> str:
    return marked.reading("array", slots, shape, int(terms), place)
