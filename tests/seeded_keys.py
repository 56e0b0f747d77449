"""Reproducible keys for tests."""

import hashlib

from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.encrypted_sums import Adder, Encrypter, KeyHolder
from fedtrees.crypto.keys import generate_key_pair
from fedtrees.crypto.primitives import Randomness


class SeededRandomness(Randomness):
    """Randomness from SHAKE-256 of a seed and a counter."""

    def __init__(self, seed):
        self._seed, self._draws = str(seed).encode(), 0

    def take(self, count):
        self._draws += 1
        text = b"fedtrees test randomness %d %b" % (self._draws, self._seed)
        return hashlib.shake_256(text).digest(count)


def seeded(bits, seed):
    """Generate a reproducible key. Short keys are fast."""
    return generate_key_pair(bits, SeededRandomness(seed))


class EncryptedSums:
    """The key holder, the encrypting parties by name, and the adder, in one object."""

    def __init__(self, names, bits):
        self.holder = KeyHolder(len(names), bits, True, OperationCounter())
        self.others = {name: Encrypter(name, True, OperationCounter()) for name in names}
        self.adder = Adder(names, OperationCounter())
        for side in (*self.others.values(), self.adder):
            side.learn(self.holder.public_key(), bits)
        self.holder.take_seeds({name: side.encrypt_seed() for name, side in self.others.items()})
        self.added, self.opened = self.adder.add, self.holder.decrypt_sum

    def begin(self):
        """Restart with the first sum."""
        self.holder._opened = self.adder._added = 0
        for side in self.others.values():
            side._made = 0

    def encrypted(self, name, array, slots):
        """Return the encrypted array of one party."""
        return self.others[name].encrypt(array, slots)
