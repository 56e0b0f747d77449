"""Sums under a Paillier key in bytes, each side by itself; and the same without work.

One party has the private key. The others encrypt with the public key, whoever adds cannot read, and
the holder opens the sum, to which it adds its own array in the open: nobody but itself would have
opened that.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.keys import KeyPair, PublicKey
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


class KeyHolder(Protocol):
    """The side of who has the key, as bytes."""

    def public_key(self) -> bytes:
        """Return what it tells everybody."""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Open the next sum of everybody else's arrays, int64, shape (size,)."""


class Encrypter(Protocol):
    """The side of a party without the private key."""

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key."""

    def encrypted(self, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt its next array, shape (m,)."""


class Adder(Protocol):
    """The side of who adds what it cannot read."""

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key."""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add the next arrays, of `size` numbers, of everybody but the holder, by party."""


class _Shape(NamedTuple):
    """What an array of so many numbers, a sum of so many arrays, is read as."""

    size: int
    slots: Slots
    terms: int = 1


class RealHolder(Unprintable):
    """Who draws the key, opens sums, and adds its own array to them."""

    def __init__(self, others: int, bits: int, djn: bool, ledger: Ledger) -> None:
        self._others, self._djn, self._ledger = others, djn, ledger
        self._keys = KeyPair.generate(bits)
        self._opened = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._keys.public.payload(self._djn)

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Decrypt the sum of so many others' arrays."""
        number, shape = self._opened + 1, _Shape(size, slots, self._others)
        sealed = _read(_ADDER, number, total, shape, self._keys.public)
        found = sealed.opened(self._keys, self._ledger)
        self._opened = number
        return found


class RealEncrypter(Unprintable):
    """Who encrypts its arrays under the public key.

    `djn`: Whether obfuscators are DJN's short powers, or ``r^n``.
    """

    def __init__(self, name: str, djn: bool, ledger: Ledger) -> None:
        self._name, self._djn, self._ledger = name, djn, ledger
        self._made = 0

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key; raises `MalformedError` if it is none."""
        kind = DJNObfuscators if self._djn else PlainObfuscators
        self._obfuscators: Obfuscators = kind(PublicKey.from_payload(key, bits), self._ledger)

    def encrypted(self, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt."""
        sealed = EncryptedArray.of(array, slots, self._obfuscators, self._ledger)
        self._made += 1
        return sealed.payload_of(_place(self._name, self._made))


class RealAdder(Unprintable):
    """Who multiplies ciphertexts modulo n^2; `others`: Whose."""

    def __init__(self, others: Sequence[str], ledger: Ledger) -> None:
        self._others, self._ledger = others, ledger
        self._added = 0

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key; raises `MalformedError` if it is none."""
        self._public = PublicKey.from_payload(key, bits)

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
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
        number, shape = self._added + 1, _Shape(size, slots)
        first, *others = (
            _read(name, number, arrays[name], shape, self._public) for name in self._others
        )
        total = first
        for other in others:
            total = total.plus(other, self._ledger)
        self._added = number
        return total.payload_of(_place(_ADDER, number))


def _read(name: str, number: int, text: bytes, shape: _Shape, public: PublicKey) -> EncryptedArray:
    try:
        return EncryptedArray.from_payload(
            text, public, shape.slots, (shape.size,), shape.terms, _place(name, number)
        )
    except (MalformedError, WrongKeyError) as err:
        raise type(err)(f"of {name}: {err}") from None


def _place(name: str, number: int) -> str:
    return f"{number} of {name}"


class IdealHolder(Ideal):
    """The holder's way to the ideal functionality, which keeps sums by their number."""

    _opened = 0

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Return the next sum."""
        self._opened += 1
        self.ledger.enter("decrypted", sizes.array(size, slots, self._bits).ciphertexts)
        return self._inside.pop(str(self._opened))


class IdealEncrypter(Ideal):
    """The way to it of a party that encrypts."""

    _made = 0

    def encrypted(self, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Add the array to its sum; refuse what the slots would refuse."""
        slots.check(array)
        self._made += 1
        count, at = sizes.array(array.size, slots, self._bits).ciphertexts, str(self._made)
        self.ledger.enter("obfuscators", count)
        self.ledger.enter("encrypted", count)
        self._inside[at] = self._inside[at] + array if at in self._inside else array
        return b""


class IdealAdder(Ideal):
    """The way to it of who adds."""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add nothing: it is done."""
        count = sizes.array(size, slots, self._bits).ciphertexts
        self.ledger.enter("added", (len(arrays) - 1) * count)
        return b""
