"""Keys that a test can draw again, and phe's."""

import hashlib

from gmpy2 import mpz
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from fedtrees.crypto.encrypted_sums import RealAdder, RealEncrypter, RealHolder
from fedtrees.crypto.keys import KeyPair, Prime, PublicKey, drawn
from fedtrees.crypto.randomness import Randomness
from fedtrees.sealing.ledger import Ledger


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


class EncryptedSums:
    """The holder of a key, those who encrypt, by name, and who adds, in one hand."""

    def __init__(self, names, bits):
        self.holder = RealHolder(len(names), bits, True, Ledger())
        self.others = {name: RealEncrypter(name, True, Ledger()) for name in names}
        self.adder = RealAdder(names, Ledger())
        for side in (*self.others.values(), self.adder):
            side.learn(self.holder.public_key(), bits)
        self.holder.take_seeds({name: side.seed() for name, side in self.others.items()})
        self.added, self.opened = self.adder.added, self.holder.opened

    def begin(self):
        """Begin with the first sum again."""
        self.holder._opened = self.adder._added = 0
        for side in self.others.values():
            side._made = 0

    def encrypted(self, name, array, slots):
        return self.others[name].encrypted(array, slots)


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
