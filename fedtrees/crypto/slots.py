"""Several signed whole numbers side by side in one plaintext, with room for their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.crypto.errors import PlaintextOverflowError

_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Slots:
    """Places for numbers of at most `limit` of which at most `terms` are added.

    Numbers ``v_0, v_1, ...`` stand in one plaintext as ``V = sum_j v_j 2^(s j)``, s the `width`.
    Adding plaintexts adds the numbers, for V is linear in them.

    **No sum overflows.** Each sum has ``|v_j| <= total <= 2^(s - 1) - 1`` by the choice of s. Then
    v_0 is the one number of that range that equals V modulo 2^s; ``(V - v_0) / 2^s`` holds the
    rest, and so on: V tells its numbers. And ``|V| <= (2^(s-1) - 1)(1 + 2^s + ... +
    2^(s(m-1))) < 2^(s m - 1)``, which for ``s m <= bits - 2`` is below a third of n: V is told from
    its remainder modulo n. Numbers beyond `limit` are refused when they are joined, sums of more
    than `terms` when they are made, and a plaintext that is too large for its slots when it is
    split.

    Attributes
    ----------
    limit : int
        The greatest absolute value of one addend; in fixed point ``ceil(|x| 2^places)``.
    terms : int
        The most addends of a sum.
    total : int
        The greatest absolute value of a sum. Not given: ``limit * terms``. Less where the addends
        share one bound, as sums over rows do of which each party has some: that they keep to it is
        known from elsewhere, for nobody can check it on one addend.

    Raises
    ------
    UsageError
        If sums would not fit an int64, or `total` is below `limit` or above ``limit * terms``.
    """

    limit: int
    terms: int
    total: int = 0

    def __post_init__(self) -> None:
        most = self.limit * self.terms
        if not self.total:
            object.__setattr__(self, "total", most)
        if self.limit < 1 or self.terms < 1 or self.total > _INT64:
            raise UsageError(
                f"sums of {self.terms} numbers up to {self.limit} do not fit an int64; both must "
                "be at least 1 and their product below 2^63: lower one of them"
            )
        if not self.limit <= self.total <= most:
            raise UsageError(
                f"total={self.total} of {self.terms} numbers up to {self.limit}; give one from "
                f"{self.limit} to {most}, or leave it out"
            )

    @property
    def width(self) -> int:
        """Bits of one slot, sign included."""
        return self.total.bit_length() + 1

    def per_plaintext(self, bits: int) -> int:
        """Return how many slots one plaintext has under a key of so many bits.

        Raises
        ------
        UsageError
            If there is none.
        """
        count = (bits - 2) // self.width
        if count < 1:
            raise UsageError(f"a slot of {self.width} bits does not fit a {bits}-bit key")
        return count

    def check(self, numbers: NDArray[np.int64]) -> None:
        """Raise PlaintextOverflowError if a number is beyond `limit`."""
        if numbers.size and max(int(numbers.max()), -int(numbers.min())) > self.limit:
            raise PlaintextOverflowError(
                f"a number beyond +-{self.limit} is to be encrypted; state a larger limit, or "
                "clip what is encrypted"
            )

    def join(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return one plaintext for each row.

        Parameters
        ----------
        numbers : int64 array, shape (plaintexts, slots)

        Raises
        ------
        PlaintextOverflowError
            If a number is beyond `limit`.
        """
        self.check(numbers)
        width = self.width
        found = [0] * len(numbers)
        for column in numbers.T[::-1].tolist():
            found = [(v << width) + number for v, number in zip(found, column, strict=True)]
        return found

    def split(self, plaintexts: Sequence[int], slots: int) -> NDArray[np.int64]:
        """Return the numbers, int64, shape (plaintexts, slots).

        Raises
        ------
        PlaintextOverflowError
            If a plaintext is larger than so many slots can hold, or a sum beyond its bound.
        """
        width, bound = self.width, self.total
        half = 1 << (width - 1)
        shift = sum(half << (width * j) for j in range(slots))  # makes every digit positive
        mask, top = (1 << width) - 1, 1 << (width * slots)
        found = np.empty((len(plaintexts), slots), dtype=np.int64)
        for i, plaintext in enumerate(plaintexts):
            rest = plaintext + shift
            digits = [((rest >> (width * j)) & mask) - half for j in range(slots)]
            if not 0 <= rest < top or max(map(abs, digits), default=0) > bound:
                raise PlaintextOverflowError(
                    f"a plaintext holds more than {slots} sums of up to {self.total}: something "
                    "else was added, or the key is wrong"
                )
            found[i] = digits
        return found
