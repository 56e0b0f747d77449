"""Sealed values: message fields that only their keyholders can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sealed:
    """A protected array in a message.

    If the ideal functionality protects the array, this object does not contain it: the
    functionality gives it to the parties that may read it. Cryptography stores its ciphertext as
    `payload`.

    Attributes
    ----------
    keyholders : tuple of str
        Names of the parties that can read the array. Empty: only sums of several arrays are ever
        opened.
    shape : tuple of int
        Shape of the array.
    dtype : str
        Its dtype, in the notation of numpy.
    nbytes : int
        Number of bytes that are sent. The ideal functionality counts those of the plain array.
    payload : bytes
        The ciphertext, empty for the ideal functionality.
    """

    keyholders: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    payload: bytes = b""

    @classmethod
    def of(
        cls, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], *keyholders: str
    ) -> Sealed:
        """Seal an array by the ideal functionality."""
        return cls(keyholders, array.shape, array.dtype.newbyteorder("<").str, array.nbytes)


@dataclass(frozen=True)
class Sealing:
    """Implementation of the computation on encrypted values in one run.

    Attributes
    ----------
    keyholder : str
        Role that has the private key.
    private, public : callable
        Create the object with which a party computes: with the private key for the keyholder, and
        without it for all remaining roles.
    costs : callable
        Computes the costs by name from the ledgers of all parties.
    """

    keyholder: str
    private: Callable[[], Any]
    public: Callable[[], Any]
    costs: Callable[[Iterable[Any]], Mapping[str, float]]

    def part(self, role: str) -> Any:
        """Create the object with which a party of this role computes."""
        return self.private() if role == self.keyholder else self.public()
