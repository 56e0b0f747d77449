"""Several signed integers in one plaintext (ciphertext packing), with room for their sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.crypto.primitives import PlaintextOverflowError

_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Slots:
    """Layout of integers in plaintexts, for sums of at most `terms` numbers of at most `limit`.

    Numbers ``v_0, v_1, ...`` are packed into one plaintext ``V = sum_j v_j R_j``, with ``R_0 = 1``
    and ``R_(j+1) = r_j R_j``. The radix r_j is ``2^width``, or with `ranges` the number of values
    that a sum can have. Adding plaintexts adds the numbers, because V is linear in them.

    **No sum overflows.** Each sum has at most r_j values, from its smallest value ``a_j`` on.
    Therefore ``V - sum_j a_j R_j = sum_j (v_j - a_j) R_j`` is a number in mixed radix between 0 and
    ``R_m - 1``, which determines its digits. V determines the numbers, and ``|V| < R_m``, because
    ``a_j <= 0``. The remainder modulo n determines V, because ``R_m <= 2^(bits - 1) / 3`` is at
    most a third of n. (With equal widths the signs are symmetric, and ``|V| <= R_m / 2`` with ``R_m
    <= 2^(bits - 2)``.) Packing refuses numbers beyond `limit` or their range. Addition refuses sums
    of more than `terms` numbers. Unpacking refuses a plaintext that is too large for its slots.

    Attributes
    ----------
    limit : int
        Largest absolute value of a summand. In fixed point ``ceil(|x| 2^places)``.
    terms : int
        Largest number of summands.
    ranges : tuple of (int, int)
        Smallest and largest sum of each slot, in turn. Each range contains 0 and another number.
        Empty: from ``-limit * terms`` to ``limit * terms``. A range can be narrower if the summands
        share it, for example if each party contributes the rows that it has. A party cannot check
        this on one summand, so that it must be known from elsewhere.

    Raises
    ------
    UsageError
        If sums would not fit into int64, or if a range does not contain 0 or contains only 0.

    Examples
    --------
    >>> slots = Slots(limit=100, terms=3)
    >>> (plaintext,) = slots.join(np.array([[5, -7]]))
    >>> slots.split([3 * plaintext], 2).tolist()
    [[15, -21]]
    """

    limit: int
    terms: int
    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        ends = [abs(end) for pair in self.ranges for end in pair] or [self.limit * self.terms]
        if self.limit < 1 or self.terms < 1 or max(ends) > _INT64:
            raise UsageError(
                f"sums of {self.terms} numbers up to {self.limit} do not fit an int64; both must "
                "be at least 1 and their product below 2^63: lower one of them"
            )
        if any(not low <= 0 <= high or low == high for low, high in self.ranges):
            raise UsageError(f"ranges={self.ranges}: each must contain 0 and a further number")

    @property
    def width(self) -> int:
        """Bits of one slot including the sign, if there are no ranges."""
        return (self.limit * self.terms).bit_length() + 1

    def per_plaintext(self, bits: int) -> int:
        """Return the number of slots of one plaintext under a key of `bits` bits.

        It raises `UsageError` if a plaintext has no room for a slot.
        """
        if self.ranges:
            radix_of_turn = math.prod(high - low + 1 for low, high in self.ranges)
            largest, size, turns = (1 << (bits - 1)) // 3, radix_of_turn, 0
            # Fill the plaintext with complete turns of the ranges.
            while size <= largest:
                turns, size = turns + 1, size * radix_of_turn
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
        """Check numbers before they are packed.

        Parameters
        ----------
        numbers : int64 array
            With `ranges`, its size is a multiple of their number.

        Raises
        ------
        PlaintextOverflowError
            If a number is beyond `limit`, or outside of its range.
        """
        turn = self.ranges or ((-self.limit, self.limit),)
        flat = numbers.reshape(-1)
        for place, (low, high) in enumerate(turn):
            part = flat[place :: len(turn)]
            # A range bounds sums. A single number is also bounded by the limit.
            low, high = max(low, -self.limit), min(high, self.limit)
            if part.size and not (low <= int(part.min()) and int(part.max()) <= high):
                bounds = f"+-{high}" if low == -high else f"{low} and {high}"
                raise PlaintextOverflowError(
                    f"a number beyond {bounds} is to be encrypted; state a larger limit, or "
                    "clip the numbers"
                )

    def _places(self, slots: int) -> list[tuple[int, int]]:
        """Return the smallest number and the radix of each of `slots` slots."""
        if not self.ranges:
            return [(-(1 << (self.width - 1)), 1 << self.width)] * slots
        turn = [(low, high - low + 1) for low, high in self.ranges]
        return [turn[j % len(turn)] for j in range(slots)]

    def join(self, numbers: NDArray[np.int64]) -> list[int]:
        """Pack each row of an int64 array, shape (plaintexts, slots), into one plaintext.

        It raises `PlaintextOverflowError` as `check` does.
        """
        self.check(numbers)
        plaintexts = [0] * len(numbers)
        places = self._places(numbers.shape[1])
        # Horner's scheme, from the most significant slot.
        for column, (_, radix) in zip(numbers.T[::-1].tolist(), places[::-1], strict=True):
            plaintexts = [v * radix + number for v, number in zip(plaintexts, column, strict=True)]
        return plaintexts

    def split(self, plaintexts: Sequence[int], slots: int) -> NDArray[np.int64]:
        """Unpack plaintexts into numbers, int64, shape (plaintexts, slots).

        It raises `PlaintextOverflowError` if a plaintext is too large for `slots` slots, or a sum
        is beyond its bound.
        """
        places = self._places(slots)
        top = math.prod(radix for _, radix in places)
        shift = 0  # makes every digit nonnegative
        for low, radix in reversed(places):
            shift = shift * radix - low
        numbers = np.empty((len(plaintexts), slots), dtype=np.int64)
        for i, plaintext in enumerate(plaintexts):
            # A plaintext outside of [0, top) after the shift is no sum that these slots can
            # contain.
            remainder = plaintext + shift
            inside = 0 <= remainder < top
            for j, (low, radix) in enumerate(places if inside else ()):
                remainder, digit = divmod(remainder, radix)
                numbers[i, j] = digit + low
            bound = math.inf if self.ranges else self.limit * self.terms
            if not inside or (slots and int(np.abs(numbers[i]).max()) > bound):
                raise PlaintextOverflowError(
                    f"a plaintext contains more than {slots} sums of {self.terms} "
                    f"numbers up to {self.limit}: another value was added, or the key is "
                    "wrong"
                )
        return numbers
