"""Where keys, obfuscators and mask seeds come from: the operating system, never the experiment.

An experiment's seed is a small number that is printed in its table: who reads it would hold every
key drawn from it.
"""

import secrets


class Randomness:
    """The operating system's generator."""

    def take(self, count: int) -> bytes:
        """Return so many random bytes."""
        return secrets.token_bytes(count)

    def below(self, bound: int) -> int:
        """Return a number from 0 to ``bound - 1``, each equally likely."""
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:  # a draw is taken with probability above 1/2
            drawn = int.from_bytes(self.take(size), "little") >> (8 * size - bits)
            if drawn < bound:
                return drawn


SYSTEM = Randomness()
