"""Deprecated name of `fedtrees.crypto.agreement`, available until the next release."""

from fedtrees.crypto.agreement import Randomness as Coins

__all__ = ["Coins"]
