"""Secure sums under a Paillier key, as byte strings, for each side: real and ideal.

One party, the key holder, has the private key. All remaining parties encrypt their arrays with the
public key. The adder multiplies the ciphertexts, which it cannot decrypt. The key holder decrypts
the sum and adds its array, which needs no encryption, because only the key holder would decrypt it.

Each party adds a mask to every plaintext. The mask is statistically close to uniform modulo n, and
is derived from a seed that the party shares with the key holder, and from a digest of all messages
that the party received. The key holder subtracts the masks of all parties, derived from the digest
of the messages that it received. A ciphertext therefore decrypts to a meaningless number if it is
not the sum of the next arrays of all parties, or if the parties received different messages.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import marked, paillier
from fedtrees.crypto.agreement import KEY_BYTES, SYSTEM, draw_key, expand, expanded
from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.backends import Backend, backend
from fedtrees.crypto.keys import PublicKey
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
    """Check that exactly the given parties sent an array.

    Raises
    ------
    MissingPartyError
        If the array of a party is missing.
    MalformedError
        If another party sent an array.
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
    """Side of the party that has the private key."""

    def public_key(self) -> bytes:
        """Return the public key in its transmitted encoding."""

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Decrypt and store the mask seeds of all remaining parties, by party."""

    def opened(
        self, total: bytes, size: int, slots: Slots, history_digest: bytes = b""
    ) -> NDArray[np.int64]:
        """Decrypt the next sum of the arrays of all remaining parties, int64, shape (size,).

        The last argument is a digest of all messages that the key holder received.
        """


class Encrypter(Protocol):
    """Side of a party without the private key."""

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key."""

    def seed(self) -> bytes:
        """Return the encrypted seed of the masks for the key holder."""

    def encrypted(
        self, array: NDArray[np.int64], slots: Slots, history_digest: bytes = b""
    ) -> bytes:
        """Encrypt the next array, int64, shape (m,).

        The last argument is a digest of all messages that the party received.
        """


class Adder(Protocol):
    """Side of the party that adds ciphertexts which it cannot decrypt."""

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key."""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add the next arrays of all parties except the key holder.

        Parameters
        ----------
        arrays : mapping of str to bytes
            Encrypted arrays by party.
        size : int
            Number of elements of each array.
        slots : Slots
            Layout of the elements in plaintexts.
        """


class _Shape(NamedTuple):
    """Expected layout of an encrypted array: its size, its slots and the number of summands."""

    size: int
    slots: Slots
    terms: int = 1


class RealHolder(Unprintable):
    """Key holder that draws a key and decrypts sums. By default it computes with gmpy2."""

    def __init__(
        self,
        n_other_parties: int,
        bits: int,
        djn: bool,
        ledger: Ledger,
        library: Backend | None = None,
    ) -> None:
        self._others, self._djn, self._ledger = n_other_parties, djn, ledger
        self._keys = (library or backend()).generate(bits, base=djn)
        self._seeds: list[Secret[bytes]] = []
        self._opened = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators if `djn`."""
        return self._keys.public.payload(self._djn)

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Decrypt and store the mask seeds of all remaining parties.

        It raises `MalformedError` if a plaintext is not a seed, and `WrongKeyError` if a seed was
        encrypted under another key.
        """
        for name, text in seeds.items():
            sealed = marked.from_bytes(text, 1, self._keys.public, f"seed of {name}")
            (seed,) = paillier.decrypt(sealed, self._keys, self._ledger)
            if not 0 <= seed < 1 << 8 * KEY_BYTES:
                raise MalformedError(f"of {name}: a seed has {KEY_BYTES} bytes; start anew")
            self._seeds.append(Secret(seed.to_bytes(KEY_BYTES, "big")))

    def opened(
        self, total: bytes, size: int, slots: Slots, history_digest: bytes = b""
    ) -> NDArray[np.int64]:
        """Decrypt the next sum of the arrays of all remaining parties.

        It raises `ExposureError` if the plaintexts do not fit the slots (`Slots.split`), because
        they are then not the sum of the expected arrays.
        """
        number, shape = self._opened + 1, _Shape(size, slots, self._others)
        sealed = _read(_ADDER, number, total, shape, self._keys.public)
        # The masks are subtracted from the plaintexts before the decryption, as they were added.
        for seed in self._seeds:
            sealed = _masked(sealed, seed, number, history_digest, sign=-1)
        try:
            totals = sealed.opened(self._keys, self._ledger)
        except PlaintextOverflowError:
            raise ExposureError(
                f"what came as sum {number} is not the sum of what all others were to send, or not "
                "all were told the same; the holder of the key opens nothing else. Start anew"
            ) from None
        self._opened = number
        return totals


class RealEncrypter(Unprintable):
    """Party that encrypts its arrays with the public key.

    With `djn` the obfuscators are DJN's short powers, otherwise ``r^n``.
    """

    def __init__(
        self, name: str, djn: bool, ledger: Ledger, library: Backend | None = None
    ) -> None:
        self._name, self._djn, self._ledger = name, djn, ledger
        self._library = library or backend()
        self._seed = draw_key(SYSTEM)
        self._made = 0

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        public = self._library.read(key, bits)
        kind = self._library.short if self._djn else self._library.plain
        self._obfuscators = kind(public, self._ledger)

    def seed(self) -> bytes:
        """Return the encrypted seed of the masks."""
        seed = int.from_bytes(self._seed.reveal(), "big")
        sealed = paillier.encrypt([seed], self._obfuscators, self._ledger)
        return marked.to_bytes(sealed, self._obfuscators.public, f"seed of {self._name}")

    def encrypted(
        self, array: NDArray[np.int64], slots: Slots, history_digest: bytes = b""
    ) -> bytes:
        """Encrypt and mask the next array."""
        # The number of the array is part of the mask's seed, so that no mask is used twice.
        sealed = EncryptedArray.of(array, slots, self._obfuscators, self._ledger)
        self._made += 1
        sealed = _masked(sealed, self._seed, self._made, history_digest, sign=1)
        return sealed.payload_of(_place(self._name, self._made))


class RealAdder(Unprintable):
    """Party that multiplies the ciphertexts of the given parties modulo n^2."""

    def __init__(
        self, other_parties: Sequence[str], ledger: Ledger, library: Backend | None = None
    ) -> None:
        self._others, self._ledger = other_parties, ledger
        self._library, self._added = library or backend(), 0

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Multiply ciphertexts modulo n^2.

        Parameters
        ----------
        arrays, size, slots
            As in `Adder.added`.

        Raises
        ------
        MissingPartyError
            If the array of a party is missing, because the sum would have another meaning.
        MalformedError
            If another party sent an array, or if an array has a wrong length or invalid
            ciphertexts.
        WrongKeyError
            If an array is under another key, belongs to another sum or party, or was changed.
        """
        check_all(self._others, arrays)
        number, shape = self._added + 1, _Shape(size, slots)
        first, *remaining = (
            _read(name, number, arrays[name], shape, self._public) for name in self._others
        )
        total = first
        for array in remaining:
            total = total.plus(array, self._ledger)
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
    # Part of the mark of an array: its number and its sender.
    return f"{number} of {name}"


def _masked(
    sealed: EncryptedArray, seed: Secret[bytes], number: int, history: bytes, sign: int
) -> EncryptedArray:
    """Add the masks of one party's array to the plaintexts, or subtract them (`sign` -1).

    `number` is the number of the sum, and `history` the digest of all received messages.
    """
    words = (
        sealed.public.bits // 64 + 2
    )  # 128 bits more than n: statistically close to uniform below n
    mask_seed = expanded(seed, b"masks of %d, told " % number + history)
    stream = expand(mask_seed, words * len(sealed.ciphertexts)).reshape(-1, words)
    masks = (sign * int.from_bytes(row.astype("<u8").tobytes(), "little") for row in stream)
    return replace(sealed, ciphertexts=tuple(sealed.public.shift(sealed.ciphertexts, masks)))


class IdealHolder(Ideal):
    """Key holder with access to the ideal functionality, which stores sums by their number."""

    _opened = 0

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Count the decryption of the seeds."""
        self.ledger.enter("decrypted", len(seeds))

    def opened(
        self, total: bytes, size: int, slots: Slots, history_digest: bytes = b""
    ) -> NDArray[np.int64]:
        """Return the next sum. Raise `ExposureError` as `RealHolder.opened` does."""
        self._opened += 1
        self.ledger.enter("decrypted", sizes.array(size, slots, self._bits).ciphertexts)
        # Arrays are stored under their number and the digest of received messages. A further key
        # shows that the parties received different messages.
        keys_of_sum = {key for key in self._inside if key.startswith(f"{self._opened} ")}
        if keys_of_sum != {f"{self._opened} {history_digest.hex()}"}:
            raise ExposureError(
                f"of sum {self._opened} not all were told the same; the holder of "
                "the key opens nothing else. Start anew"
            )
        return self._inside.pop(keys_of_sum.pop())


class IdealEncrypter(Ideal):
    """Encrypting party with access to the ideal functionality."""

    _made = 0

    def seed(self) -> bytes:
        """Return no seed, and count its encryption."""
        self.ledger.enter("obfuscators", 1)
        self.ledger.enter("encrypted", 1)
        return b""

    def encrypted(
        self, array: NDArray[np.int64], slots: Slots, history_digest: bytes = b""
    ) -> bytes:
        """Add the array to the stored sum. Refuse numbers that the slots would refuse."""
        slots.check(array)
        self._made += 1
        count = sizes.array(array.size, slots, self._bits).ciphertexts
        key = f"{self._made} {history_digest.hex()}"
        self.ledger.enter("obfuscators", count)
        self.ledger.enter("encrypted", count)
        self._inside[key] = self._inside[key] + array if key in self._inside else array
        return b""


class IdealAdder(Ideal):
    """Adder with access to the ideal functionality."""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Count the additions. The sum is stored already."""
        count = sizes.array(size, slots, self._bits).ciphertexts
        self.ledger.enter("added", (len(arrays) - 1) * count)
        return b""
