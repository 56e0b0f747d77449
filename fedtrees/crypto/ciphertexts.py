"""Encrypted integer arrays with many elements per ciphertext, and the transmitted encoding.

Ciphertexts are plain numbers. Read under a wrong key, in another shape or with slots of another
width, they would decrypt to wrong numbers without an error. The encoding therefore begins with a
mark of key and layout, which detects such mistakes. It does not detect manipulation, because an
adversary can compute a new mark.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.costs import MARK_BYTES, OperationCounter, array_traffic, ciphertext_bytes
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import MalformedError, PlaintextOverflowError, WrongKeyError

if TYPE_CHECKING:
    from gmpy2 import mpz

    from fedtrees.crypto.keys import KeyPair, PublicKey
    from fedtrees.crypto.obfuscators import Obfuscators


def describe_layout(kind: str, slots: Slots, shape: Sequence[int], *more: object) -> str:
    """Return a text that describes the layout, the same for sender and receiver.

    Parameters
    ----------
    kind : str
        For example ``rows`` or ``histogram``.
    slots : Slots
        Layout of the numbers in plaintexts.
    shape : sequence of int
        Shape of the encrypted numbers.
    *more : object
        Further public values, for example the number of a sum.
    """
    ranges = [(int(low), int(high)) for low, high in slots.ranges]
    return f"{kind} {[*map(int, shape)]} {int(slots.limit)} {int(slots.terms)} {ranges} {more}"


def compute_mark(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Return the first `MARK_BYTES` bytes of the SHA-256 of key, layout and ciphertexts.

    Parameters
    ----------
    payload : bytes
        Everything that follows the mark.
    public : PublicKey
    read_as : str
        Layout, see `describe_layout`.
    """
    digest = hashlib.sha256(public.payload(obfuscators=False))
    # The length separates the description of the layout from the payload.
    digest.update(f"{len(read_as)} {read_as}".encode())
    digest.update(payload)
    return digest.digest()[:MARK_BYTES]


def write_marked(
    ciphertexts: Iterable[mpz], public: PublicKey, read_as: str, before: bytes = b""
) -> bytes:
    """Write a mark, the bytes `before` the ciphertexts (for example flags), and the ciphertexts."""
    payload = before + public.write_ciphertexts(ciphertexts)
    return compute_mark(payload, public, read_as) + payload


def check_mark(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Check the mark, and return the bytes that follow it.

    Parameters
    ----------
    payload, public, read_as
        As in `compute_mark`, with the mark at the beginning of the payload.

    Raises
    ------
    MalformedError
        If there is no mark.
    WrongKeyError
        If the mark is different.
    """
    if len(payload) < MARK_BYTES:
        raise MalformedError(
            f"{len(payload)} bytes arrived; they must start with a mark of {MARK_BYTES} bytes"
        )
    inside = payload[MARK_BYTES:]
    if payload[:MARK_BYTES] != compute_mark(inside, public, read_as):
        raise WrongKeyError(
            f"ciphertexts do not match their mark: they were encrypted with another key than "
            f"{public!r}, have another shape or other slots, belong to another sum or party, or "
            "were changed on the way. Send the same key to all parties, decode every message as "
            "its type, and start a new run"
        )
    return inside


def read_marked(payload: bytes, count: int, public: PublicKey, read_as: str) -> list[mpz]:
    """Read marked ciphertexts.

    Parameters
    ----------
    payload, public, read_as
        As in `check_mark`.
    count : int
        Expected number of ciphertexts.

    Raises
    ------
    MalformedError
        If the length is wrong, or a number is not a ciphertext of this key.
    WrongKeyError
        If the mark is different.
    """
    # A wrong length is reported first, because the mark would only state that something differs.
    expected = MARK_BYTES + ciphertext_bytes(public.bits) * count
    if len(payload) != expected:
        raise MalformedError(
            f"{len(payload)} bytes arrived; expected {expected}: request them again"
        )
    return public.read_ciphertexts(check_mark(payload, public, read_as), count)


@dataclass(frozen=True)
class EncryptedArray:
    """An int64 array under a Paillier key, many elements per ciphertext.

    It is the sum of `terms` arrays, 1 for a single array. The ciphertexts are in the order of the
    elements. The last plaintext can have empty slots.
    """

    public: PublicKey
    slots: Slots
    shape: tuple[int, ...]
    terms: int
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        array: NDArray[np.int64],
        slots: Slots,
        obfuscators: Obfuscators,
    ) -> EncryptedArray:
        """Encrypt an array.

        Parameters
        ----------
        array : int64 array
        slots : Slots
            Layout of the elements in plaintexts.
        obfuscators : Obfuscators
            One is used for each ciphertext.

        Raises
        ------
        PlaintextOverflowError
            If an element is beyond the limit of the slots.
        """
        # The last plaintext is padded with zeros.
        per = slots.per_plaintext(obfuscators.public.bits)
        rows = np.zeros((-(-array.size // per), per), dtype=np.int64)
        rows.ravel()[: array.size] = array.ravel()
        sealed = obfuscators.encrypt(slots.join(rows))
        return cls(obfuscators.public, slots, array.shape, 1, tuple(sealed))

    def add(self, other: EncryptedArray, ledger: OperationCounter | None = None) -> EncryptedArray:
        """Add two encrypted arrays.

        Raises
        ------
        WrongKeyError
            If they are under different keys.
        MalformedError
            If their shapes or slots differ.
        PlaintextOverflowError
            If the sum has more terms than the slots have room for.
        """
        if self.public.n != other.public.n:
            raise WrongKeyError(f"arrays of {self.public!r} and {other.public!r} do not add up")
        # Plaintexts with different layouts could be added without an error, to wrong numbers.
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
        ledger = ledger or OperationCounter()
        both = self.public.add_counted(self.ciphertexts, other.ciphertexts, ledger)
        return EncryptedArray(self.public, self.slots, self.shape, terms, tuple(both))

    def decrypt(self, keys: KeyPair, ledger: OperationCounter | None = None) -> NDArray[np.int64]:
        """Decrypt the array, int64, shape `shape`.

        Raises
        ------
        WrongKeyError
            If the key is another one.
        PlaintextOverflowError
            If a plaintext does not fit the slots.
        """
        if keys.public.n != self.public.n:
            raise WrongKeyError(f"an array of {self.public!r} does not open with {keys!r}")
        plain = keys.decrypt(self.ciphertexts, ledger)
        elements = self.slots.split(plain, self.slots.per_plaintext(self.public.bits))
        return elements.ravel()[: math.prod(self.shape)].reshape(self.shape)

    def payload(self, place: str = "") -> bytes:
        """Return the transmitted encoding: the ciphertexts, with a mark of the layout and a place.

        For example, the place is the number of a sum and the name of the sender.
        """
        read_as = _reading(self.slots, self.shape, self.terms, place)
        return write_marked(self.ciphertexts, self.public, read_as)

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
        """Read an array in its transmitted encoding.

        Parameters
        ----------
        payload : bytes
        public, slots, shape
            Expected key, layout and shape.
        terms : int
            Number of arrays that it is the sum of.
        place : str
            As in `payload`.

        Raises
        ------
        MalformedError
            If the length is wrong, or a number is not a ciphertext of this key.
        WrongKeyError
            If the mark is different: another key, shape, layout, number of terms or place.
        """
        # The number of ciphertexts follows from the expected layout, not from the message.
        count = array_traffic(math.prod(shape), slots, public.bits).ciphertexts
        read_as = _reading(slots, shape, terms, place)
        sealed = read_marked(payload, count, public, read_as)
        return cls(public, slots, tuple(shape), terms, tuple(sealed))


def _reading(slots: Slots, shape: tuple[int, ...], terms: int, place: str) -> str:
    return describe_layout("array", slots, shape, int(terms), place)
