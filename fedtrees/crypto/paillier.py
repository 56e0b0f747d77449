"""Paillier encryption of integers: encrypt, add, decrypt and encode (Paillier 1999)."""

from collections.abc import Iterable, Sequence

from gmpy2 import mpz

from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.sealing.errors import MalformedError, PlaintextOverflowError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.sizes import ciphertext_bytes


def greatest(public: PublicKey) -> int:
    """Return the largest absolute value of a plaintext, ``n // 3 - 1`` as in phe.

    Numbers between n/3 and 2n/3 are not encrypted, so that such a plaintext shows an overflow.
    Every number of up to ``bits - 3`` bits is smaller, because ``n / 3 > 2^(bits - 1) / 4``.
    """
    return public.n // 3 - 1


def encrypt(
    values: Sequence[int], obfuscators: Obfuscators, ledger: Ledger | None = None
) -> list[mpz]:
    """Encrypt integers, also negative ones.

    Parameters
    ----------
    values : sequence of int
    obfuscators : Obfuscators
        One is used for each value.
    ledger : Ledger, optional
        Counts the operations.

    Raises
    ------
    PlaintextOverflowError
        If a value is beyond `greatest`.
    """
    public, ledger = obfuscators.public, ledger or Ledger()
    bound = greatest(public)
    # It is sufficient to check the smallest and the largest value.
    if any(not -bound <= v <= bound for v in (min(values, default=0), max(values, default=0))):
        raise PlaintextOverflowError(
            f"a value beyond +-(n // 3 - 1) of a {public.bits}-bit key; encrypt smaller numbers"
        )
    hiding = obfuscators.take(len(values))
    with ledger.timed("encrypted", len(values)):
        return public.encrypt(values, hiding)


def decrypt(ciphertexts: Sequence[mpz], keys: KeyPair, ledger: Ledger | None = None) -> list[int]:
    """Decrypt ciphertexts, and return signed integers.

    Parameters
    ----------
    ciphertexts : sequence of mpz
    keys : KeyPair
    ledger : Ledger, optional
        Counts the operations.

    Raises
    ------
    PlaintextOverflowError
        If a plaintext is between n/3 and 2n/3: a sum was too large, or the key is wrong.
    """
    ledger = ledger or Ledger()
    n, bound = keys.public.n, greatest(keys.public)
    with ledger.timed("decrypted", len(ciphertexts)):
        # Remainders above n/3 represent negative numbers.
        residues = map(int, keys.residues(ciphertexts))
        plaintexts = [m if m <= bound else m - n for m in residues]
    if any(v < -bound for v in plaintexts):
        raise PlaintextOverflowError(
            "a plaintext is between n/3 and 2n/3: a sum has overflowed, or it was encrypted under "
            "another key"
        )
    return plaintexts


def add(
    first: Sequence[mpz], second: Sequence[mpz], public: PublicKey, ledger: Ledger | None = None
) -> list[mpz]:
    """Add plaintexts in pairs by multiplying their ciphertexts modulo n^2."""
    if len(first) != len(second):
        raise MalformedError(f"{len(first)} ciphertexts cannot be added to {len(second)}")
    ledger = ledger or Ledger()
    with ledger.timed("added", len(first)):
        return public.add(first, second)


def rerandomise(
    ciphertexts: Sequence[mpz], obfuscators: Obfuscators, ledger: Ledger | None = None
) -> list[mpz]:
    """Hide from the key holder which ciphertexts a sum consists of.

    The party that encrypted the summands knows their obfuscators, and would recognise their
    product. One new obfuscator is used for each ciphertext.
    """
    hiding = obfuscators.take(len(ciphertexts))
    return add(ciphertexts, hiding, obfuscators.public, ledger)


def to_bytes(ciphertexts: Iterable[mpz], public: PublicKey) -> bytes:
    """Write ciphertexts one after the other, big-endian, all with the same length."""
    size = ciphertext_bytes(public.bits)
    return b"".join(int(c).to_bytes(size, "big") for c in ciphertexts)


def from_bytes(payload: bytes, count: int, public: PublicKey) -> list[mpz]:
    """Read `count` ciphertexts.

    It raises `MalformedError` if the length is wrong, or a number is not a ciphertext of this key.
    """
    size = ciphertext_bytes(public.bits)
    if len(payload) != count * size:
        raise MalformedError(
            f"{count} ciphertexts of {public!r} are {count * size} bytes; {len(payload)} came"
        )
    ciphertexts = [
        mpz(int.from_bytes(payload[i : i + size], "big")) for i in range(0, len(payload), size)
    ]
    # Multiples of n have no inverse, and are not ciphertexts.
    if not all(0 < c < public.square and c % public.modulus for c in ciphertexts):
        raise MalformedError(f"a number that is no ciphertext of {public!r} came")
    return ciphertexts
