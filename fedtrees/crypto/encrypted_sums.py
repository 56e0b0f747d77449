"""Sums under a Paillier key in bytes, each side by itself; and the same without work.

One party has the private key. The others encrypt with the public key, whoever adds cannot read, and
the holder opens the sum, to which it adds its own array in the open: nobody but itself would have
opened that.

To every plaintext a party adds a mask, as good as uniform modulo n, of a seed that it shares with
the holder and a digest of all that it was told. The holder takes off the masks of all, by what it
was told itself: what is no sum of everybody's next arrays, or of parties that were told otherwise,
opens to a number that tells nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import marked, paillier
from fedtrees.crypto.agreement import KEY_BYTES, draw_key, expanded
from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.expansion import expand
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import DJNObfuscators, Obfuscators, PlainObfuscators
from fedtrees.crypto.randomness import SYSTEM
from fedtrees.sealing import sizes
from fedtrees.sealing.errors import (
    ExposureError,
    MalformedError,
    MissingPartyError,
    PlaintextOverflowError,
    WrongKeyError,
)
from fedtrees.sealing.ideal import Ideal
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Secret, Unprintable
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

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Take in the sealed seeds of everybody else, by party."""

    def opened(self, total: bytes, size: int, slots: Slots, told: bytes = b"") -> NDArray[np.int64]:
        """Open the next sum of everybody else's arrays, int64, shape (size,).

        `told`: A digest of all that it was told.
        """


class Encrypter(Protocol):
    """The side of a party without the private key."""

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key."""

    def seed(self) -> bytes:
        """Return the seed of its masks, for the holder."""

    def encrypted(self, array: NDArray[np.int64], slots: Slots, told: bytes = b"") -> bytes:
        """Encrypt its next array, shape (m,); `told`: a digest of all that it was told."""


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
        self._seeds: list[Secret[bytes]] = []
        self._opened = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._keys.public.payload(self._djn)

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Decrypt them; raises `MalformedError` if one is none, `WrongKeyError` if not for it."""
        for name, text in seeds.items():
            sealed = marked.from_bytes(text, 1, self._keys.public, f"seed of {name}")
            (seed,) = paillier.decrypt(sealed, self._keys, self._ledger)
            if not 0 <= seed < 1 << 8 * KEY_BYTES:
                raise MalformedError(f"of {name}: a seed has {KEY_BYTES} bytes; start anew")
            self._seeds.append(Secret(seed.to_bytes(KEY_BYTES, "big")))

    def opened(self, total: bytes, size: int, slots: Slots, told: bytes = b"") -> NDArray[np.int64]:
        """Decrypt the sum of so many others' arrays.

        Raises `ExposureError` if what opens is no sum of theirs (`Slots.split`).
        """
        number, shape = self._opened + 1, _Shape(size, slots, self._others)
        sealed = _read(_ADDER, number, total, shape, self._keys.public)
        for seed in self._seeds:
            sealed = _masked(sealed, seed, number, told, sign=-1)
        try:
            found = sealed.opened(self._keys, self._ledger)
        except PlaintextOverflowError:
            raise ExposureError(
                f"what came as sum {number} is not the sum of what all others were to send, or not "
                "all were told the same; the holder of the key opens nothing else. Start anew"
            ) from None
        self._opened = number
        return found


class RealEncrypter(Unprintable):
    """Who encrypts its arrays under the public key.

    `djn`: Whether obfuscators are DJN's short powers, or ``r^n``.
    """

    def __init__(self, name: str, djn: bool, ledger: Ledger) -> None:
        self._name, self._djn, self._ledger = name, djn, ledger
        self._seed = draw_key(SYSTEM)
        self._made = 0

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key; raises `MalformedError` if it is none."""
        kind = DJNObfuscators if self._djn else PlainObfuscators
        self._obfuscators: Obfuscators = kind(PublicKey.from_payload(key, bits), self._ledger)

    def seed(self) -> bytes:
        """Encrypt the seed of its masks."""
        seed = int.from_bytes(self._seed.reveal(), "big")
        sealed = paillier.encrypt([seed], self._obfuscators, self._ledger)
        return marked.to_bytes(sealed, self._obfuscators.public, f"seed of {self._name}")

    def encrypted(self, array: NDArray[np.int64], slots: Slots, told: bytes = b"") -> bytes:
        """Encrypt, and mask."""
        sealed = EncryptedArray.of(array, slots, self._obfuscators, self._ledger)
        self._made += 1
        sealed = _masked(sealed, self._seed, self._made, told, sign=1)
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

        Raises `MissingPartyError` if somebody's array is not there: a sum over the others has
        another meaning.
        Raises `MalformedError` if somebody has no part in it, or an array has the wrong length or
        no ciphertexts.
        Raises `WrongKeyError` if an array is under another key, of another sum or party, or was
        changed.
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


def _masked(
    sealed: EncryptedArray, seed: Secret[bytes], number: int, told: bytes, sign: int
) -> EncryptedArray:
    """Add the masks of one party's array of a number to plaintexts, or take them off (-1)."""
    n, square = sealed.public.modulus, sealed.public.square
    words = sealed.public.bits // 64 + 2  # 128 bits more than n has: as good as uniform below n
    of = expanded(seed, b"masks of %d, told " % number + told)
    stream = expand(of, words * len(sealed.ciphertexts)).reshape(-1, words)
    masks = (sign * int.from_bytes(row.astype("<u8").tobytes(), "little") for row in stream)
    moved = (c * (1 + n * (m % n)) % square
             for c, m in zip(sealed.ciphertexts, masks, strict=True))  # fmt: skip
    return replace(sealed, ciphertexts=tuple(moved))


class IdealHolder(Ideal):
    """The holder's way to the ideal functionality, which keeps sums by their number."""

    _opened = 0

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Take in nothing."""
        self.ledger.enter("decrypted", len(seeds))

    def opened(self, total: bytes, size: int, slots: Slots, told: bytes = b"") -> NDArray[np.int64]:
        """Return the next sum; raises `ExposureError` as `RealHolder.opened`."""
        self._opened += 1
        self.ledger.enter("decrypted", sizes.array(size, slots, self._bits).ciphertexts)
        of = {at for at in self._inside if at.startswith(f"{self._opened} ")}
        if of != {f"{self._opened} {told.hex()}"}:
            raise ExposureError(
                f"of sum {self._opened} not all were told the same; the holder of "
                "the key opens nothing else. Start anew"
            )
        return self._inside.pop(of.pop())


class IdealEncrypter(Ideal):
    """The way to it of a party that encrypts."""

    _made = 0

    def seed(self) -> bytes:
        """Return nothing."""
        self.ledger.enter("obfuscators", 1)
        self.ledger.enter("encrypted", 1)
        return b""

    def encrypted(self, array: NDArray[np.int64], slots: Slots, told: bytes = b"") -> bytes:
        """Add the array to its sum; refuse what the slots would refuse."""
        slots.check(array)
        self._made += 1
        count = sizes.array(array.size, slots, self._bits).ciphertexts
        at = f"{self._made} {told.hex()}"
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
