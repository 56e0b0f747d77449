"""Keys that a test can draw again, and phe's."""

import hashlib

from gmpy2 import mpz
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from fedtrees.crypto.keys import KeyPair, Prime, PublicKey, drawn
from fedtrees.crypto.randomness import Randomness


class SeededRandomness(Randomness):
    """SHAKE-256 of a seed and a counter."""

    def __init__(self, seed):
        self._seed, self._draws = str(seed).encode(), 0

    def take(self, count):
        self._draws += 1
        text = b"fedtrees test randomness %d %b" % (self._draws, self._seed)
        return hashlib.shake_256(text).digest(count)


def seeded(bits, seed):
    """Draw a key; short ones are quick."""
    return drawn(bits, SeededRandomness(seed))


def of_phe(private):
    """Take over a key of phe's."""
    n = mpz(private.public_key.n)
    primes = Prime(mpz(private.p), n, None), Prime(mpz(private.q), n, None)
    return KeyPair(PublicKey(int(n)), primes)


def to_phe(keys):
    """Return a key as phe has it."""
    first, second = keys.primes()
    return PaillierPrivateKey(PaillierPublicKey(keys.public.n), int(first.p), int(second.p))


def numbers_of(ciphertexts, keys):
    """Return ciphertexts as phe has them."""
    public = PaillierPublicKey(keys.public.n)
    return [EncryptedNumber(public, int(c), 0) for c in ciphertexts]
