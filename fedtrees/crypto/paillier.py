"""Encrypt, add, decrypt, send: whole numbers under a Paillier key (Paillier 1999)."""

from collections.abc import Iterable, Sequence

from gmpy2 import invert, mpz, powmod

from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.sealing.errors import MalformedError, PlaintextOverflowError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.sizes import ciphertext_bytes


def greatest(public: PublicKey) -> int:
    """Return the greatest absolute value of a plaintext, ``n // 3 - 1`` as in phe.

    Between n/3 and 2n/3 lies what nobody encrypts: a sum that ends there has overflowed. Every
    number of up to ``bits - 3`` bits is below, for ``n / 3 > 2^(bits - 1) / 4``.
    """
    return public.n // 3 - 1


def encrypt(
    values: Sequence[int], obfuscators: Obfuscators, ledger: Ledger | None = None
) -> list[mpz]:
    """Encrypt whole numbers, negative ones as well.

    `obfuscators`: One is used up by each value.

    Raises `PlaintextOverflowError` if a value is beyond `greatest`.
    """
    public, ledger = obfuscators.public, ledger or Ledger()
    bound = greatest(public)
    if any(not -bound <= v <= bound for v in (min(values, default=0), max(values, default=0))):
        raise PlaintextOverflowError(
            f"a value beyond +-(n // 3 - 1) of a {public.bits}-bit key; encrypt smaller numbers"
        )
    hiding = obfuscators.take(len(values))
    n, square = public.modulus, public.square
    with ledger.timed("encrypted", len(values)):
        return [(1 + n * m) * rho % square for m, rho in zip(values, hiding, strict=True)]


def decrypt(ciphertexts: Sequence[mpz], keys: KeyPair, ledger: Ledger | None = None) -> list[int]:
    """Decrypt modulo p^2 and q^2 (Paillier 1999, 7) and return signed numbers.

    Raises `PlaintextOverflowError` if a plaintext lies where only an overflow ends: a sum was too
    large, or the key is wrong.
    """
    ledger = ledger or Ledger()
    first, second = keys.primes()
    inverse = invert(first.p, second.p)
    n, bound = keys.public.modulus, greatest(keys.public)
    found = []
    with ledger.timed("decrypted", len(ciphertexts)):
        for c in ciphertexts:
            a, b = (
                (powmod(c, part.p - 1, part.square) - 1) // part.p * part.h % part.p
                for part in (first, second)
            )
            m = a + (b - a) * inverse % second.p * first.p
            found.append(int(m if m <= bound else m - n))
    if any(v < -bound for v in found):
        raise PlaintextOverflowError(
            "a plaintext is between n/3 and 2n/3: a sum has overflowed, or it was encrypted under "
            "another key"
        )
    return found


def add(
    first: Sequence[mpz], second: Sequence[mpz], public: PublicKey, ledger: Ledger | None = None
) -> list[mpz]:
    """Add plaintexts pair by pair: a product of ciphertexts each."""
    if len(first) != len(second):
        raise MalformedError(f"{len(first)} ciphertexts cannot be added to {len(second)}")
    square, ledger = public.square, ledger or Ledger()
    with ledger.timed("added", len(first)):
        return [a * b % square for a, b in zip(first, second, strict=True)]


def rerandomise(
    ciphertexts: Sequence[mpz], obfuscators: Obfuscators, ledger: Ledger | None = None
) -> list[mpz]:
    """Hide from the owner of the key which ciphertexts a sum was made of.

    Who made the addends knows their obfuscators and recognises a product of them.
    """
    hiding = obfuscators.take(len(ciphertexts))
    return add(ciphertexts, hiding, obfuscators.public, ledger)


def to_bytes(ciphertexts: Iterable[mpz], public: PublicKey) -> bytes:
    """Write ciphertexts one after the other, big end first, all of the same length."""
    size = ciphertext_bytes(public.bits)
    return b"".join(int(c).to_bytes(size, "big") for c in ciphertexts)


def from_bytes(payload: bytes, count: int, public: PublicKey) -> list[mpz]:
    """Read so many ciphertexts.

    Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key.
    """
    size = ciphertext_bytes(public.bits)
    if len(payload) != count * size:
        raise MalformedError(
            f"{count} ciphertexts of {public!r} are {count * size} bytes; {len(payload)} came"
        )
    found = [
        mpz(int.from_bytes(payload[i : i + size], "big")) for i in range(0, len(payload), size)
    ]
    if not all(0 < c < public.square and c % public.modulus for c in found):
        raise MalformedError(f"a number that is no ciphertext of {public!r} came")
    return found
