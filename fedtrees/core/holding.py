"""Deprecated name of `fedtrees.core.local_data`, removed in the next release."""

from fedtrees.core.local_data import LocalData as Holding
from fedtrees.core.local_data import over_clients

__all__ = ["Holding", "over_clients"]
