"""Keys that a test can draw again."""

import hashlib

from fedtrees.crypto.encrypted_sums import RealAdder, RealEncrypter, RealHolder
from fedtrees.crypto.keys import drawn
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
