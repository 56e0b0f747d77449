"""The ideal functionality of encryption: a trusted third party stores the plain values.

Messages contain no values, and operations are counted but not computed. Runs therefore have the
transcript and the traffic of real cryptography, without its time.
"""

from typing import Any

from numpy.typing import NDArray

from fedtrees.core.messages import Sealing
from fedtrees.core.registry import register
from fedtrees.sealing.ledger import Ledger, costs_of
from fedtrees.sealing.secret import Unprintable


class Ideal(Unprintable):
    """Access of one party to the ideal functionality.

    Parameters
    ----------
    bits : int
        Length of the key whose ciphertexts are counted.
    ledger : Ledger
        Counts the operations of the party. They take no time.
    inside : dict of str to array
        Plain values of the functionality, the same object for all parties.
    """

    def __init__(self, bits: int, ledger: Ledger, inside: dict[str, NDArray[Any]]) -> None:
        self._bits, self.ledger, self._inside = bits, ledger, inside

    def public_key(self) -> bytes:
        """Return an empty key."""
        return b""

    def learn(self, key: bytes, bits: int) -> None:
        """Ignore the key."""


#: Encryption by the ideal functionality, or by a registered implementation: with its default
#: library, or with python-paillier.
MODES = ("ideal", "real", "phe")


def sealing(mode: str, name: str, ideal: type[Ideal], bits: int, keyholder: str) -> Sealing:
    """Create the encryption of one run.

    Parameters
    ----------
    mode : {"ideal", "real", "phe"}
        Ideal functionality, or cryptography. ``phe``: computed by python-paillier.
    name : str
        Name of the implementation among the entry points of sealings, for example ``row-sums``. Not
        used by the ideal functionality.
    ideal : type of Ideal
        Class of the ideal functionality.
    bits : int
        Length of the key.
    keyholder : str
        Role of the party that draws the key.

    Raises
    ------
    UsageError
        If no implementation has this name.
    """
    if mode == "ideal":
        # One dictionary for all parties of the run.
        inside: dict[str, NDArray[Any]] = {}

        def make_party() -> Ideal:
            return ideal(bits, Ledger(), inside)

        return Sealing(keyholder, make_party, make_party, costs_of)
    library = ("phe",) if mode == "phe" else ()
    private, public = register.get("sealing", name)(bits, *library)
    return Sealing(keyholder, private, public, costs_of)
