"""Sums of encrypted arrays under a Paillier key (Paillier 1999): computation of the three sides.

`Encrypter` encrypts arrays with the public key, `Adder` multiplies the ciphertexts, and `KeyHolder`
decrypts the sum. `IdealEncryptedSum` replaces any of them if no cryptography is computed.
`fedtrees.crypto.paillier_sum` exchanges their bytes in messages.

Each party adds a mask to every plaintext. The mask is statistically close to uniform modulo n, and
is derived from a seed that the party shares with the key holder, and from a digest of all messages
that the party received. The key holder subtracts the masks of all parties, derived from the digest
of the messages that it received. A ciphertext therefore decrypts to a meaningless number if it is
not the sum of the next arrays of all parties, or if the parties received different messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.ciphertexts import EncryptedArray, read_marked, write_marked
from fedtrees.crypto.costs import OperationCounter, array_traffic
from fedtrees.crypto.modes import IdealFunctionality, load_backend
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    SYSTEM,
    ExposureError,
    MalformedError,
    MissingPartyError,
    PlaintextOverflowError,
    Secret,
    SecretHolder,
    WrongKeyError,
    draw_key,
    expand_key,
    expand_mask,
)

if TYPE_CHECKING:
    from fedtrees.crypto.keys import PublicKey
    from fedtrees.crypto.obfuscators import Backend

_ADDER = "the party that adds"


def check_complete(parties: Sequence[str], sent: Collection[str]) -> None:
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
            f"{', '.join(parties)}. Wait for them, or use 'masking', which opens the sum of the "
            "remaining parties"
        )
    strangers = sorted({*sent} - {*parties})
    if strangers:
        raise MalformedError(
            f"{', '.join(strangers)} sent arrays, but the sum is over {', '.join(parties)} only"
        )


class _Shape(NamedTuple):
    """Expected layout of an encrypted array: its size, its slots and the number of summands."""

    size: int
    slots: Slots
    terms: int = 1


class KeyHolder(SecretHolder):
    """Key holder that draws a key and decrypts sums. By default it computes with gmpy2."""

    def __init__(
        self,
        n_other_parties: int,
        bits: int,
        djn: bool,
        ledger: OperationCounter,
        library: Backend | None = None,
    ) -> None:
        self._others, self._djn, self._ledger = n_other_parties, djn, ledger
        self._keys = (library or load_backend()).generate(bits, base=djn)
        self._seeds: list[Secret[bytes]] = []
        self._n_opened = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators if `djn`."""
        return self._keys.public.payload(self._djn)

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Decrypt and store the mask seeds of all remaining parties.

        It raises `MalformedError` if a plaintext is not a seed, and `WrongKeyError` if a seed was
        encrypted under another key.
        """
        for name, text in seeds.items():
            sealed = read_marked(text, 1, self._keys.public, f"seed of {name}")
            (seed,) = self._keys.decrypt(sealed, self._ledger)
            if not 0 <= seed < 1 << 8 * KEY_BYTES:
                raise MalformedError(f"of {name}: a seed has {KEY_BYTES} bytes; start a new run")
            self._seeds.append(Secret(seed.to_bytes(KEY_BYTES, "big")))

    def decrypt_sum(
        self, total: bytes, size: int, slots: Slots, history_digest: bytes = b""
    ) -> NDArray[np.int64]:
        """Decrypt the next sum of the arrays of all remaining parties.

        It raises `ExposureError` if the plaintexts do not fit the slots (`Slots.split`), because
        they are then not the sum of the expected arrays.
        """
        number, shape = self._n_opened + 1, _Shape(size, slots, self._others)
        sealed = _read(_ADDER, number, total, shape, self._keys.public)
        # The masks are subtracted from the plaintexts before the decryption, as they were added.
        for seed in self._seeds:
            sealed = _masked(sealed, seed, number, history_digest, sign=-1)
        try:
            totals = sealed.decrypt(self._keys, self._ledger)
        except PlaintextOverflowError:
            raise ExposureError(
                f"the array that arrived as sum {number} is not the sum of the arrays of all other "
                "parties, or not all parties received the same values. The key holder does not "
                "open it. Start a new run"
            ) from None
        self._n_opened = number
        return totals


class Encrypter(SecretHolder):
    """Party that encrypts its arrays with the public key.

    With `djn` the obfuscators are DJN's short powers, otherwise ``r^n``.
    """

    def __init__(
        self, name: str, djn: bool, ledger: OperationCounter, library: Backend | None = None
    ) -> None:
        self._name, self._djn, self._ledger = name, djn, ledger
        self._library = library or load_backend()
        self._seed = draw_key(SYSTEM)
        self._n_encrypted = 0

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        public = self._library.read(key, bits)
        kind = self._library.short if self._djn else self._library.plain
        self._obfuscators = kind(public, self._ledger)

    def encrypt_seed(self) -> bytes:
        """Return the encrypted seed of the masks."""
        seed = int.from_bytes(self._seed.reveal(), "big")
        sealed = self._obfuscators.encrypt([seed])
        return write_marked(sealed, self._obfuscators.public, f"seed of {self._name}")

    def encrypt(self, array: NDArray[np.int64], slots: Slots, history_digest: bytes = b"") -> bytes:
        """Encrypt and mask the next array."""
        # The number of the array is part of the mask's seed, so that no mask is used twice.
        sealed = EncryptedArray.of(array, slots, self._obfuscators)
        self._n_encrypted += 1
        sealed = _masked(sealed, self._seed, self._n_encrypted, history_digest, sign=1)
        return sealed.payload(_identify(self._name, self._n_encrypted))


class Adder(SecretHolder):
    """Party that multiplies the ciphertexts of the given parties modulo n^2."""

    def __init__(
        self, other_parties: Sequence[str], ledger: OperationCounter, library: Backend | None = None
    ) -> None:
        self._others, self._ledger = other_parties, ledger
        self._library, self._n_added = library or load_backend(), 0

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)

    def add(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Multiply ciphertexts modulo n^2.

        Parameters
        ----------
        arrays, size, slots
            Encrypted arrays by party, the number of elements of each, and their layout.

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
        check_complete(self._others, arrays)
        number, shape = self._n_added + 1, _Shape(size, slots)
        first, *remaining = (
            _read(name, number, arrays[name], shape, self._public) for name in self._others
        )
        total = first
        for array in remaining:
            total = total.add(array, self._ledger)
        self._n_added = number
        return total.payload(_identify(_ADDER, number))


def _read(name: str, number: int, text: bytes, shape: _Shape, public: PublicKey) -> EncryptedArray:
    try:
        return EncryptedArray.from_payload(
            text, public, shape.slots, (shape.size,), shape.terms, _identify(name, number)
        )
    except (MalformedError, WrongKeyError) as err:
        raise type(err)(f"of {name}: {err}") from None


def _identify(name: str, number: int) -> str:
    """Return the part of an array's mark that names its number and its sender."""
    return f"{number} of {name}"


def _masked(
    sealed: EncryptedArray, seed: Secret[bytes], number: int, history: bytes, sign: int
) -> EncryptedArray:
    """Add the masks of one party's array to the plaintexts, or subtract them (`sign` -1).

    `number` is the number of the sum, and `history` the digest of all received messages.
    """
    # 128 bits more than n make the masks statistically close to uniform below n.
    words = sealed.public.bits // 64 + 2
    mask_seed = expand_key(seed, b"masks of %d, told " % number + history)
    stream = expand_mask(mask_seed, words * len(sealed.ciphertexts)).reshape(-1, words)
    masks = (sign * int.from_bytes(row.astype("<u8").tobytes(), "little") for row in stream)
    return replace(sealed, ciphertexts=tuple(sealed.public.shift(sealed.ciphertexts, masks)))


class IdealEncryptedSum(IdealFunctionality):
    """Any of the three sides with access to the ideal functionality.

    The functionality stores the sums of plain arrays, by the number of the sum and the digest of
    all messages that the parties received.
    """

    _number = 0  # of the last array or sum of this party

    def encrypt_seed(self) -> bytes:
        """Return no seed, and count its encryption."""
        self.ledger.enter("obfuscators", 1)
        self.ledger.enter("encrypted", 1)
        return b""

    def take_seeds(self, seeds: Mapping[str, bytes]) -> None:
        """Count the decryption of the seeds."""
        self.ledger.enter("decrypted", len(seeds))

    def encrypt(self, array: NDArray[np.int64], slots: Slots, history_digest: bytes = b"") -> bytes:
        """Add the array to the stored sum. Refuse numbers that the slots would refuse."""
        slots.check(array)
        self._number += 1
        count = array_traffic(array.size, slots, self._bits).ciphertexts
        key = f"{self._number} {history_digest.hex()}"
        self.ledger.enter("obfuscators", count)
        self.ledger.enter("encrypted", count)
        self._inside[key] = self._inside[key] + array if key in self._inside else array
        return b""

    def add(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Count the additions. The sum is stored already."""
        count = array_traffic(size, slots, self._bits).ciphertexts
        self.ledger.enter("added", (len(arrays) - 1) * count)
        return b""

    def decrypt_sum(
        self, total: bytes, size: int, slots: Slots, history_digest: bytes = b""
    ) -> NDArray[np.int64]:
        """Return the next sum. Raise `ExposureError` as `KeyHolder.decrypt_sum` does."""
        self._number += 1
        self.ledger.enter("decrypted", array_traffic(size, slots, self._bits).ciphertexts)
        # A further key of the same number shows that the parties received different messages.
        keys_of_sum = {key for key in self._inside if key.startswith(f"{self._number} ")}
        if keys_of_sum != {f"{self._number} {history_digest.hex()}"}:
            raise ExposureError(
                f"not all parties received the same values before sum {self._number}, so that the "
                "key holder does not open it. Start a new run"
            )
        return self._inside.pop(keys_of_sum.pop())
