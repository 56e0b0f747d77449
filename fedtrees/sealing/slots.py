"""Several signed whole numbers side by side in one plaintext, with room for their sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.sealing.errors import PlaintextOverflowError

_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Slots:
    """Places for numbers of at most `limit` of which at most `terms` are added.

    Numbers ``v_0, v_1, ...`` stand in one plaintext as ``V = sum_j v_j R_j``, where ``R_0 = 1`` and
    ``R_(j+1) = r_j R_j``; r_j is ``2^width``, or of `ranges` as many as a sum has values. Adding
    plaintexts adds the numbers, for V is linear in them.

    **No sum overflows.** Each sum is one of at most r_j numbers from its least one ``a_j`` on. Then
    ``V - sum_j a_j R_j = sum_j (v_j - a_j) R_j`` is a number in mixed radix: it is from 0 to
    ``R_m - 1`` and tells its digits. So V tells its numbers, and ``|V| < R_m``, for ``a_j <= 0``.
    V is told from its remainder modulo n as ``R_m <= 2^(bits - 1) / 3`` (at equal widths, signs
    symmetric, ``|V| <= R_m / 2`` and ``R_m <= 2^(bits - 2)``) is at most a third of n. Numbers
    beyond `limit` or their range are refused when they are joined, sums of more than `terms` when
    they are made, and a plaintext that is too large for its slots when it is split.

    Raises `UsageError` if sums would not fit an int64, or a range is without 0, or has nothing
    else.
    """

    limit: int  # the greatest absolute value of one addend; in fixed point ``ceil(|x| 2^places)``
    terms: int  # the most addends of a sum
    # the least and the greatest sum at each place, in turn, 0 among them; not given: from ``-limit
    # * terms`` to ``limit * terms``. Less where addends share one range, as sums over rows do of
    # which each party has some: that all together keep to it is known from elsewhere, for nobody
    # can check it on one addend.
    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        ends = [abs(end) for pair in self.ranges for end in pair] or [self.limit * self.terms]
        if self.limit < 1 or self.terms < 1 or max(ends) > _INT64:
            raise UsageError(
                f"sums of {self.terms} numbers up to {self.limit} do not fit an int64; both must "
                "be at least 1 and their product below 2^63: lower one of them"
            )
        if any(not low <= 0 <= high or low == high for low, high in self.ranges):
            raise UsageError(f"ranges={self.ranges}: 0 must be in each of them, and not alone")

    @property
    def width(self) -> int:
        """Bits of one slot, sign included, where there are no ranges."""
        return (self.limit * self.terms).bit_length() + 1

    def per_plaintext(self, bits: int) -> int:
        """Return how many slots one plaintext has under a key of so many bits.

        Raises `UsageError` if there is none.
        """
        if self.ranges:
            together = math.prod(high - low + 1 for low, high in self.ranges)
            most, size, turns = (1 << (bits - 1)) // 3, together, 0
            while size <= most:
                turns, size = turns + 1, size * together
            count = turns * len(self.ranges)
        else:
            count = (bits - 2) // self.width
        if count < 1:
            raise UsageError(
                f"slots of sums of {self.terms} numbers up to {self.limit} do not fit a {bits}-bit "
                "key"
            )
        return count

    def check(self, numbers: NDArray[np.int64]) -> None:
        """Raise PlaintextOverflowError if a number is beyond `limit`, or its range.

        `numbers`: int64 array. Of whole turns of the ranges.
        """
        turn = self.ranges or ((-self.limit, self.limit),)
        flat = numbers.reshape(-1)
        for place, (low, high) in enumerate(turn):
            part = flat[place :: len(turn)]
            low, high = max(low, -self.limit), min(high, self.limit)
            if part.size and not (low <= int(part.min()) and int(part.max()) <= high):
                bounds = f"+-{high}" if low == -high else f"{low} and {high}"
                raise PlaintextOverflowError(
                    f"a number beyond {bounds} is to be encrypted; state a larger limit, or "
                    "clip what is encrypted"
                )

    def _places(self, slots: int) -> list[tuple[int, int]]:
        """Return the least number and the radix of so many slots."""
        if not self.ranges:
            return [(-(1 << (self.width - 1)), 1 << self.width)] * slots
        turn = [(low, high - low + 1) for low, high in self.ranges]
        return [turn[j % len(turn)] for j in range(slots)]

    def join(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return one plaintext for each row.

        Raises `PlaintextOverflowError` if a number is beyond `limit`, or its range.

        `numbers`: int64 array, shape (plaintexts, slots).
        """
        self.check(numbers)
        found = [0] * len(numbers)
        places = self._places(numbers.shape[1])
        for column, (_, radix) in zip(numbers.T[::-1].tolist(), places[::-1], strict=True):
            found = [v * radix + number for v, number in zip(found, column, strict=True)]
        return found

    def split(self, plaintexts: Sequence[int], slots: int) -> NDArray[np.int64]:
        """Return the numbers, int64, shape (plaintexts, slots).

        Raises `PlaintextOverflowError` if a plaintext is larger than so many slots can hold, or a
        sum beyond its bound.
        """
        places = self._places(slots)
        top = math.prod(radix for _, radix in places)
        shift = 0  # makes every digit positive
        for low, radix in reversed(places):
            shift = shift * radix - low
        found = np.empty((len(plaintexts), slots), dtype=np.int64)
        for i, plaintext in enumerate(plaintexts):
            rest = plaintext + shift
            inside = 0 <= rest < top
            for j, (low, radix) in enumerate(places if inside else ()):
                rest, digit = divmod(rest, radix)
                found[i, j] = digit + low
            bound = math.inf if self.ranges else self.limit * self.terms
            if not inside or (slots and int(np.abs(found[i]).max()) > bound):
                raise PlaintextOverflowError(
                    f"a plaintext holds more than {slots} sums of {self.terms} numbers up to "
                    f"{self.limit}: something else was added, or the key is wrong"
                )
        return found
