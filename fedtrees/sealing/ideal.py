"""The ideal functionality: values are kept beside the messages, and work is counted, not done."""

from typing import Any

from numpy.typing import NDArray

from fedtrees.core.registry import register
from fedtrees.core.sealed import Sealing
from fedtrees.sealing.ledger import Ledger, costs_of
from fedtrees.sealing.secret import Unprintable


class Ideal(Unprintable):
    """One party's way to the ideal functionality: nothing is computed, nothing is in the messages.

    `bits`: Of the key whose ciphertexts are counted.
    `ledger`: The party's; work that is not done is counted, and takes no time.
    `inside`: What the functionality keeps, which is in nobody's hands.
    """

    def __init__(self, bits: int, ledger: Ledger, inside: dict[str, NDArray[Any]]) -> None:
        self._bits, self.ledger, self._inside = bits, ledger, inside

    def public_key(self) -> bytes:
        """Return nothing."""
        return b""

    def learn(self, key: bytes, bits: int) -> None:
        """Take in nothing."""


#: How values are sealed: by the ideal functionality, or by what is registered under a name.
MODES = ("ideal", "real")


def sealing(mode: str, name: str, ideal: type[Ideal], bits: int, keyholder: str) -> Sealing:
    """Say what encrypts, computes and opens in one run.

    Raises `UsageError` if nothing computes under that name.

    `mode`: One of `MODES`.
    `name`: Of what computes, among the entry points of sealings.
    `ideal`: The functionality that keeps values.
    `bits`: Of the key.
    `keyholder`: Role of whoever draws it.
    """
    if mode == "ideal":
        inside: dict[str, NDArray[Any]] = {}

        def kept() -> Ideal:
            return ideal(bits, Ledger(), inside)

        return Sealing(keyholder, kept, kept, costs_of)
    private, public = register.get("sealing", name)(bits)
    return Sealing(keyholder, private, public, costs_of)
