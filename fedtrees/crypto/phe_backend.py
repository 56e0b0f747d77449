"""Paillier with python-paillier: keys, encryption, addition and decryption by the package phe.

The package phe implements Paillier (1999) with ``r^n`` as the only obfuscators, and one number per
ciphertext. The classes here use its keys and its arithmetic in place of ours, with the same
packing, marks and encodings. A message has the same length with both backends, and parties with
different backends understand each other.

The functions convert keys and ciphertexts between phe and this package in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gmpy2 import mpz
from phe import EncodedNumber, EncryptedNumber, PaillierPrivateKey, PaillierPublicKey
from phe.paillier import generate_paillier_keypair

from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.keys import KeyPair, Prime, PublicKey, check_length, draw_base
from fedtrees.crypto.obfuscators import Backend, Obfuscators
from fedtrees.crypto.primitives import SYSTEM, MalformedError, Randomness, Secret


@dataclass(frozen=True, repr=False)
class PhePublicKey(PublicKey):
    """A public key whose ciphertexts are computed by phe."""

    @cached_property
    def phe(self) -> PaillierPublicKey:
        """The key as an object of phe."""
        return PaillierPublicKey(self.n)

    def _number(self, ciphertext: int) -> EncryptedNumber:
        return EncryptedNumber(self.phe, int(ciphertext), 0)

    def _encoded(self, value: int) -> EncodedNumber:
        # A negative number m is the plaintext n + m, as in phe.
        return EncodedNumber(self.phe, int(value) % self.n, 0)

    def encrypt(self, values: Sequence[int], obfuscators: Sequence[mpz]) -> list[mpz]:
        """Encrypt integers with the given obfuscators."""
        encrypted = []
        for value, rho in zip(values, obfuscators, strict=True):
            # phe encrypts with the obfuscator 1^n = 1. The addition of rho, an encryption of 0,
            # replaces it.
            number = self.phe.encrypt_encoded(self._encoded(value), 1) + self._number(rho)
            encrypted.append(_ciphertext(number))
        return encrypted

    def add(self, first: Sequence[mpz], second: Sequence[mpz]) -> list[mpz]:
        """Add plaintexts in pairs."""
        pairs = zip(first, second, strict=True)
        return [_ciphertext(self._number(a) + self._number(b)) for a, b in pairs]

    def add_to_cells(self, totals: list[mpz], ciphertext: mpz, cells: Iterable[int]) -> None:
        """Add a ciphertext to the totals at the given positions. Negative positions are skipped."""
        number = self._number(ciphertext)
        for cell in cells:
            if cell >= 0:
                totals[cell] = _ciphertext(self._number(totals[cell]) + number)

    def shift(self, ciphertexts: Sequence[mpz], values: Iterable[int]) -> list[mpz]:
        """Add a plain integer to every plaintext, without a new obfuscator."""
        pairs = zip(ciphertexts, values, strict=True)
        return [_ciphertext(self._number(c) + self._encoded(value)) for c, value in pairs]

    def multiply(self, ciphertext: mpz, factor: int) -> mpz:
        """Multiply a plaintext by a plain integer."""
        return _ciphertext(self._number(ciphertext) * self._encoded(factor))


class PheKeyPair(KeyPair):
    """A key pair whose ciphertexts are decrypted by phe."""

    __slots__ = ("_private",)

    def __init__(self, private: PaillierPrivateKey, base: int | None = None) -> None:
        n = mpz(private.public_key.n)
        primes = Prime(mpz(private.p), n, None), Prime(mpz(private.q), n, None)
        super().__init__(PhePublicKey(int(n), base), primes)
        self._private = Secret(private)

    def residues(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Decrypt. Return plaintexts from 0 to n - 1."""
        private = self._private.reveal()
        return [mpz(private.raw_decrypt(int(c))) for c in ciphertexts]


class PheObfuscators(Obfuscators):
    """``r^n mod n^2``: encryptions of 0 by phe."""

    __slots__ = ()

    public: PhePublicKey

    def _make(self, count: int) -> list[mpz]:
        return [mpz(self.public.phe.raw_encrypt(0)) for _ in range(count)]


class PheBackend(Backend):
    """Keys and obfuscators of phe. All obfuscators are ``r^n``, those of the owner included."""

    def generate(self, bits: int, base: bool) -> KeyPair:
        """Generate a key by phe. It gets a base of short obfuscators if `base`.

        Such a base requires primes that are 3 modulo 4 (`fedtrees.crypto.keys.generate_key_pair`),
        so that about six keys are generated until one fits. No party of this backend uses the base.
        It gives the message with the key the same length as with the other backend.
        """
        check_length(bits)
        while True:
            _, private = generate_paillier_keypair(n_length=bits)
            p, q = private.p, private.q
            if not base:
                return PheKeyPair(private)
            if p % 4 == q % 4 == 3 and math.gcd(p - 1, q - 1) == 2:
                return PheKeyPair(private, draw_base(mpz(p * q), SYSTEM))

    def read(self, payload: bytes, bits: int) -> PublicKey:
        return PhePublicKey.from_payload(payload, bits)

    def of_owner(self, keys: KeyPair, ledger: OperationCounter) -> Obfuscators:
        """Return ``r^n``. phe has no faster way for the owner of the key."""
        return PheObfuscators(keys.public, ledger)

    def short(self, public: PublicKey, ledger: OperationCounter) -> Obfuscators:
        """Return ``r^n``. phe has no short powers."""
        return PheObfuscators(public, ledger)

    def plain(
        self, public: PublicKey, ledger: OperationCounter, randomness: Randomness = SYSTEM
    ) -> Obfuscators:
        """Return ``r^n``. phe always uses the random numbers of the operating system."""
        return PheObfuscators(public, ledger)


def public_from_phe(public: PaillierPublicKey) -> PublicKey:
    """Return a public key of phe as a key of this package."""
    return PublicKey(int(public.n))


def public_to_phe(public: PublicKey) -> PaillierPublicKey:
    """Return a public key as a key of phe.

    Examples
    --------
    >>> from fedtrees.crypto.keys import KeyPair
    >>> keys = KeyPair.generate()
    >>> sent = public_to_phe(keys.public).encrypt(-7)
    >>> keys.decrypt(ciphertexts_from_phe([sent]))
    [-7]
    """
    return PaillierPublicKey(public.n)


def keys_from_phe(private: PaillierPrivateKey) -> KeyPair:
    """Return a private key of phe as a key pair of this package, which computes with gmpy2.

    The key has no base of short obfuscators, because phe does not choose suitable primes.
    """
    n = mpz(private.public_key.n)
    primes = Prime(mpz(private.p), n, None), Prime(mpz(private.q), n, None)
    return KeyPair(PublicKey(int(n)), primes)


def keys_to_phe(keys: KeyPair) -> PaillierPrivateKey:
    """Return a key pair as a private key of phe. phe does not prevent printing or pickling it."""
    first, second = keys.primes()
    return PaillierPrivateKey(public_to_phe(keys.public), int(first.p), int(second.p))


def ciphertexts_from_phe(numbers: Iterable[EncryptedNumber]) -> list[mpz]:
    """Return encrypted integers of phe as ciphertexts.

    phe obfuscates the result of a computation at this moment, unless this was done before.

    Raises
    ------
    MalformedError
        If a number is a fraction: phe stores its exponent outside of the ciphertext.
    """
    ciphertexts = []
    for number in numbers:
        if number.exponent:
            raise MalformedError(
                f"phe encrypted a fraction (exponent {number.exponent}); encrypt an integer"
            )
        ciphertexts.append(mpz(number.ciphertext()))
    return ciphertexts


def ciphertexts_to_phe(ciphertexts: Iterable[mpz], public: PublicKey) -> list[EncryptedNumber]:
    """Return ciphertexts of single integers as encrypted numbers of phe."""
    key = public_to_phe(public)
    return [EncryptedNumber(key, int(c), 0) for c in ciphertexts]


def _ciphertext(number: EncryptedNumber) -> mpz:
    # No new obfuscator: the callers add one to every ciphertext that is sent.
    return mpz(number.ciphertext(be_secure=False))
