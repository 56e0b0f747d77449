"""Sealed values: message fields that only their keyholders can open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sealed:
    """A value that crosses closed.

    What is inside is not here: the ideal functionality hands it to those who may open it. Real
    cryptography has its ciphertext as `payload`.

    Attributes
    ----------
    keyholders : tuple of str
        Parties that can open it by themselves; empty: only a sum of several is ever opened.
    shape : tuple of int
        Of the array inside.
    dtype : str
        Its dtype, as numpy writes it.
    nbytes : int
        Bytes that cross; of the ideal functionality as many as the open array takes.
    payload : bytes
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
