"""The ideal functionality: values are kept beside the messages, and work is counted, not done."""

from collections.abc import Callable
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fedtrees.core.registry import register
from fedtrees.core.sealed import Sealing
from fedtrees.sealing.ledger import Ledger, costs_of
from fedtrees.sealing.secret import Unprintable


class Ideal(Unprintable):
    """The ideal functionality of all sides: nothing is computed, and nothing is in the messages.

    `bits`: Of the key whose ciphertexts are counted.
    `ledger`: Work that is not done is counted, and takes no time.
    """

    def __init__(self, bits: int, ledger: Ledger) -> None:
        self._bits, self.ledger = bits, ledger
        self._inside: dict[str, NDArray[Any]] = {}

    def public_key(self) -> bytes:
        """Return nothing."""
        return b""

    def learn(self, key: bytes, bits: int) -> None:
        """Take in nothing."""


#: How values are sealed: by the ideal functionality, or by what is registered under a name.
MODES = ("ideal", "real")


def sealing(
    mode: str, name: str, ideal: Callable[[int, Ledger], Ideal], bits: int, keyholder: str
) -> Sealing:
    """Say what encrypts, computes and opens in one run.

    Raises `UsageError` if nothing computes under that name.

    Parameters
    ----------
    mode : str
        One of `MODES`.
    name : str
        Of what computes, among the entry points of sealings.
    ideal : callable
        Makes the functionality that keeps values.
    bits : int
        Of the key.
    keyholder : str
        Role of whoever draws it.
    """
    ledger = Ledger()
    costs = partial(costs_of, ledger)
    if mode == "ideal":
        kept = ideal(bits, ledger)
        return Sealing(keyholder, lambda: kept, lambda: kept, costs)
    private, public = register.get("sealing", name)(bits, ledger)
    return Sealing(keyholder, private, public, costs)
