"""Sums under a Paillier key in bytes: who encrypts, who adds, who opens; and the same without work.

One party has the private key. The others encrypt with the public key, whoever adds cannot read, and
the holder opens the sum, to which it adds its own array in the open: nobody but itself would have
opened that.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.obfuscators import DJNObfuscators, Obfuscators, PlainObfuscators
from fedtrees.sealing import sizes
from fedtrees.sealing.errors import MalformedError, MissingPartyError, WrongKeyError
from fedtrees.sealing.ideal import Ideal
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable
from fedtrees.sealing.slots import Slots

_ADDER = "whoever adds"


def check_all(parties: Sequence[str], sent: Collection[str]) -> None:
    """Raise unless each of the parties sent an array, and nobody else.

    Raises `MissingPartyError` or `MalformedError`.
    """
    missing = [name for name in parties if name not in sent]
    if missing:
        raise MissingPartyError(
            f"arrays of {', '.join(missing)} are missing; Paillier sums are over all of "
            f"{', '.join(parties)}. Wait for them, or use 'masking', which opens the sum of those "
            "who stay"
        )
    strangers = sorted({*sent} - {*parties})
    if strangers:
        raise MalformedError(
            f"{', '.join(strangers)} sent arrays; the sum is over {', '.join(parties)} alone"
        )


class EncryptedSums(Protocol):
    """What is sent, as bytes; what is received goes in likewise."""

    def public_key(self) -> bytes:
        """Return what the holder tells everybody."""

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Let a party without the private key encrypt an array, shape (m,)."""

    def added(self, adder: str, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Let a party add what it cannot read: everybody else's `size` numbers, by party."""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Let the holder of the key open a sum, int64, shape (size,)."""


class _Shape(NamedTuple):
    """What an array of so many numbers, a sum of so many arrays, is read as."""

    size: int
    slots: Slots
    terms: int = 1


class RealSums(Unprintable):
    """Ciphertexts as they are computed.

    Parameters
    ----------
    parties : sequence of str
        Whose arrays a sum is of, all of them. The first one draws the key, opens sums and adds its
        own array to them; the others encrypt theirs.
    djn : bool
        Whether the others make obfuscators by DJN's short powers, or by ``r^n``.
    ledgers : mapping of str to Ledger
        Of every party.
    """

    def __init__(
        self, parties: Sequence[str], bits: int, djn: bool, ledgers: Mapping[str, Ledger]
    ) -> None:
        self._holder, *self._others = parties
        self._ledgers, self._djn = ledgers, djn
        self._keys = KeyPair.generate(bits)
        self._public = self._keys.public
        kind = DJNObfuscators if djn else PlainObfuscators
        self._obfuscators: Obfuscators = kind(self._public)
        self._made: Counter[str] = Counter()  # arrays of each party
        self._added = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._public.payload(self._djn)

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt."""
        ledger = self._obfuscators.ledger = self._ledgers[name]  # one table serves all, as public
        sealed = EncryptedArray.of(array, slots, self._obfuscators, ledger)
        self._made[name] += 1
        return sealed.payload_of(_place(name, self._made[name]))

    def added(self, adder: str, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Multiply ciphertexts modulo n^2.

        Raises
        ------
        MissingPartyError
            If somebody's array is not there: a sum over the others has another meaning.
        MalformedError
            If somebody has no part in it, or an array has the wrong length or no ciphertexts.
        WrongKeyError
            If an array is under another key, of another sum or party, or was changed.
        """
        check_all(self._others, arrays)
        number = self._added + 1
        first, *others = (
            self._read(name, number, arrays[name], _Shape(size, slots)) for name in self._others
        )
        total = first
        for other in others:
            total = total.plus(other, self._ledgers[adder])
        self._added = number
        return total.payload_of(_place(_ADDER, number))

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Decrypt the sum of everybody else's arrays."""
        shape = _Shape(size, slots, len(self._others))
        sealed = self._read(_ADDER, self._added, total, shape)
        return sealed.opened(self._keys, self._ledgers[self._holder])

    def _read(self, name: str, number: int, text: bytes, shape: _Shape) -> EncryptedArray:
        try:
            return EncryptedArray.from_payload(
                text, self._public, shape.slots, (shape.size,), shape.terms, _place(name, number)
            )
        except (MalformedError, WrongKeyError) as err:
            raise type(err)(f"of {name}: {err}") from None


def _place(name: str, number: int) -> str:
    return f"{number} of {name}"


class IdealSums(Ideal):
    """The ideal functionality of `EncryptedSums`; ledgers are of every party."""

    def __init__(self, holder: str, bits: int, ledgers: Mapping[str, Ledger]) -> None:
        super().__init__(bits, ledgers[holder])
        self._ledgers = ledgers
        self._sum: NDArray[np.int64] | None = None

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Add the array to those since the last sum; refuse what the slots would refuse."""
        slots.check(array)
        count = self._count(array.size, slots)
        self._ledgers[name].enter("obfuscators", count)
        self._ledgers[name].enter("encrypted", count)
        self._sum = array if self._sum is None else self._sum + array
        return b""

    def added(self, adder: str, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add nothing: it is done."""
        self._ledgers[adder].enter("added", (len(arrays) - 1) * self._count(size, slots))
        return b""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Return the sum."""
        self.ledger.enter("decrypted", self._count(size, slots))
        found, self._sum = self._sum, None
        assert found is not None
        return found

    def _count(self, size: int, slots: Slots) -> int:
        return sizes.array(size, slots, self._bits).ciphertexts
