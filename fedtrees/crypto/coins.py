"""Where keys, obfuscators and mask seeds come from: the operating system, never the experiment.

An experiment's seed is a small number that is printed in its table: who reads it would hold every
key drawn from it.
"""

from __future__ import annotations

import hashlib
import os
import secrets

from fedtrees.crypto.errors import InsecureCoinsError

# Both must hold. The first is set by a test that means it; the second by pytest while a test runs,
# so that the first, forgotten in a shell, does nothing.
INSECURE_VARIABLE = "FEDTREES_INSECURE_TEST_COINS"
_RUNNING_TEST = "PYTEST_CURRENT_TEST"


class Coins:
    """The operating system's generator."""

    foretold = False  # whether somebody else can draw the same

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


SYSTEM = Coins()


class SeededCoins(Coins):
    """Coins that a test can repeat: SHAKE-256 of a seed and a counter.

    Parameters
    ----------
    seed : int

    Raises
    ------
    InsecureCoinsError
        Unless ``FEDTREES_INSECURE_TEST_COINS=1`` is set and pytest runs a test.
    """

    foretold = True

    def __init__(self, seed: int) -> None:
        if os.environ.get(INSECURE_VARIABLE) != "1" or _RUNNING_TEST not in os.environ:
            raise InsecureCoinsError(
                "seeded coins make keys that anybody can make again; they are for tests alone "
                f"({INSECURE_VARIABLE}=1 under pytest). Use the operating system's: leave them out"
            )
        self._seed = str(seed).encode()
        self._draws = 0

    def take(self, count: int) -> bytes:
        """Return so many bytes, the next of this seed."""
        self._draws += 1
        text = b"fedtrees test coins %d %b" % (self._draws, self._seed)
        return hashlib.shake_256(text).digest(count)
