"""The modes of encryption: the ideal functionality, or a library that computes with ciphertexts.

In the ideal functionality a trusted third party stores the plain values. Messages contain no
values, and operations are counted but not computed. Runs therefore have the transcript and the
traffic of real cryptography, without its time. Libraries are imported when a run uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedtrees.core.errors import check_known
from fedtrees.core.messages import EncryptedComputation, Sealed
from fedtrees.crypto.costs import OperationCounter, sum_costs
from fedtrees.crypto.primitives import SecretHolder

if TYPE_CHECKING:
    from fedtrees.crypto.obfuscators import Backend


class IdealFunctionality(SecretHolder):
    """Access of one party to the ideal functionality.

    Parameters
    ----------
    bits : int
        Length of the key whose ciphertexts are counted.
    ledger : OperationCounter
        Counts the operations of the party. They take no time.
    inside : dict of str to array
        Plain values of the functionality, the same object for all parties.
    """

    def __init__(
        self, bits: int, ledger: OperationCounter, inside: dict[str, NDArray[Any]]
    ) -> None:
        self._bits, self.ledger, self._inside = bits, ledger, inside

    def public_key(self) -> bytes:
        """Return an empty key."""
        return b""

    def learn(self, key: bytes, bits: int) -> None:
        """Ignore the key."""


#: Encryption by the ideal functionality, or by cryptography: with gmpy2, or with python-paillier.
MODES = ("ideal", "real", "phe")
#: Names of the libraries that compute with Paillier ciphertexts. The first one is the default.
BACKENDS = ("gmpy2", "phe")


def load_backend(name: str = BACKENDS[0]) -> Backend:
    """Import a library that computes with Paillier ciphertexts, one of `BACKENDS`.

    Examples
    --------
    >>> keys = load_backend("phe").generate(2048, base=False)
    >>> keys.public.bits
    2048
    """
    check_known("backend", name, BACKENDS)
    if name == "phe":
        from fedtrees.crypto.phe_backend import PheBackend

        return PheBackend()
    from fedtrees.crypto.obfuscators import Backend

    return Backend()


def create_encrypted_computation(
    mode: str,
    ideal: type[IdealFunctionality],
    key_owner: Callable[..., Any],
    evaluator: Callable[..., Any],
    bits: int,
    keyholder: str,
) -> EncryptedComputation:
    """Create the encryption of one run.

    Parameters
    ----------
    mode : {"ideal", "real", "phe"}
        Ideal functionality, or cryptography. ``phe``: computed by python-paillier.
    ideal : type of IdealFunctionality
        Class of the ideal functionality.
    key_owner, evaluator : type
        Classes of the party with the private key, and of the parties with the public key.
    bits : int
        Length of the key.
    keyholder : str
        Role of the party that draws the key.
    """
    if mode == "ideal":
        # One dictionary for all parties of the run.
        inside: dict[str, NDArray[Any]] = {}

        def make_party() -> IdealFunctionality:
            return ideal(bits, OperationCounter(), inside)

        return EncryptedComputation(keyholder, make_party, make_party, sum_costs)
    library = load_backend("phe" if mode == "phe" else BACKENDS[0])
    return EncryptedComputation(
        keyholder,
        lambda: key_owner(bits, OperationCounter(), library=library),
        lambda: evaluator(OperationCounter(), library=library),
        sum_costs,
    )


def seal_opaque(text: bytes, nbytes: int, *, real: bool) -> Sealed:
    """Return bytes without information about rows as a message field. Empty if not `real`."""
    # The declared length enters the transcript in both modes.
    assert len(text) == (nbytes if real else 0)
    return Sealed((), (nbytes,), "|u1", nbytes, text)
