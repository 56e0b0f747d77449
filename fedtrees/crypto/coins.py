"""Deprecated name of `fedtrees.crypto.randomness`, available until the next release."""

from fedtrees.crypto.randomness import Randomness as Coins

__all__ = ["Coins"]
