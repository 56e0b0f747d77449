"""Randomness of keys, obfuscators and mask seeds, from the operating system.

The seed of the experiment is not used. It is a small number that is printed in tables, so that
every reader could compute the keys.
"""

import secrets


class Randomness:
    """Random numbers of the operating system."""

    def take(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return secrets.token_bytes(count)

    def below(self, bound: int) -> int:
        """Return an integer from 0 to ``bound - 1``, all with the same probability."""
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:  # a draw is accepted with probability above 1/2
            drawn = int.from_bytes(self.take(size), "little") >> (8 * size - bits)
            if drawn < bound:
                return drawn


SYSTEM = Randomness()
