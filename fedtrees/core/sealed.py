"""Sealed values: message fields that only their keyholders can open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    """How a protocol computes on sealed values in one run.

    Attributes
    ----------
    keyholder : str
        The role that has the private key.
    private, public : callable
        Make what a party of that role computes with, and what any other does, which has no private
        key in it.
    costs : callable
        What it took by name, from the ledgers of all parties.
    """

    keyholder: str
    private: Callable[[], Any]
    public: Callable[[], Any]
    costs: Callable[[Iterable[Any]], Mapping[str, float]]

    def part(self, role: str) -> Any:
        """Make what a party computes with."""
        return self.private() if role == self.keyholder else self.public()
