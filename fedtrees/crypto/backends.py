"""The libraries that compute with Paillier ciphertexts: gmpy2 (the default) and python-paillier.

Both write the same keys and ciphertexts, so that parties with different backends can take part in
one run. `fedtrees.crypto.phe_backend` implements the second one. It is loaded on demand.
"""

from abc import ABC, abstractmethod

from fedtrees.core.errors import check_known
from fedtrees.crypto.agreement import SYSTEM, Randomness
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import (
    DJNObfuscators,
    Obfuscators,
    OwnerObfuscators,
    PlainObfuscators,
)
from fedtrees.sealing.ledger import Ledger

#: Names of the backends. The first one is the default.
BACKENDS = ("gmpy2", "phe")


class Backend(ABC):
    """Factory of keys and obfuscators of one library."""

    @abstractmethod
    def generate(self, bits: int, base: bool) -> KeyPair:
        """Generate a key of `bits` bits, with the base of short obfuscators if `base`."""

    @abstractmethod
    def read(self, payload: bytes, bits: int) -> PublicKey:
        """Read a received public key. Raise `MalformedError` if it is invalid."""

    @abstractmethod
    def of_owner(self, keys: KeyPair, ledger: Ledger) -> Obfuscators:
        """Return the obfuscators of the party that has the private key."""

    @abstractmethod
    def short(self, public: PublicKey, ledger: Ledger) -> Obfuscators:
        """Return the fastest obfuscators of a party that has only the public key."""

    @abstractmethod
    def plain(
        self, public: PublicKey, ledger: Ledger, randomness: Randomness = SYSTEM
    ) -> Obfuscators:
        """Return obfuscators ``r^n`` with uniform r, which need no additional assumption."""


class Gmpy2Backend(Backend):
    """Our implementation on gmpy2: tables of powers for the owner, and DJN's short powers."""

    def generate(self, bits: int, base: bool) -> KeyPair:
        """Generate a key. It always has a base of short obfuscators."""
        return KeyPair.generate(bits)

    def read(self, payload: bytes, bits: int) -> PublicKey:
        """Read a received public key."""
        return PublicKey.from_payload(payload, bits)

    def of_owner(self, keys: KeyPair, ledger: Ledger) -> Obfuscators:
        """Return powers of generators modulo p^2 and q^2."""
        return OwnerObfuscators(keys, ledger)

    def short(self, public: PublicKey, ledger: Ledger) -> Obfuscators:
        """Return DJN's short powers."""
        return DJNObfuscators(public, ledger)

    def plain(
        self, public: PublicKey, ledger: Ledger, randomness: Randomness = SYSTEM
    ) -> Obfuscators:
        """Return ``r^n``."""
        return PlainObfuscators(public, ledger, randomness)


def backend(name: str = BACKENDS[0]) -> Backend:
    """Return a backend by name, one of `BACKENDS`.

    Examples
    --------
    >>> keys = backend("phe").generate(2048, base=False)
    >>> keys.public.bits
    2048
    """
    check_known("backend", name, BACKENDS)
    if name == "phe":
        from fedtrees.crypto.phe_backend import PheBackend

        return PheBackend()
    return Gmpy2Backend()
