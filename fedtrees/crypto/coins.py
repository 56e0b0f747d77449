"""What `fedtrees.crypto.randomness` was called; read until the next release."""

from fedtrees.crypto.randomness import Randomness as Coins

__all__ = ["Coins"]
