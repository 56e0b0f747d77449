"""Messages of secure aggregation by masks as plain data, their parameters, and their sizes.

The module also computes the sizes of these messages without encryption. The ideal functionality
uses them to count the same traffic as real cryptography.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Sealed
from fedtrees.crypto.primitives import KEY_BYTES, TooFewPartiesError
from fedtrees.crypto.shamir import SHARE_BYTES


@dataclass(frozen=True)
class MaskPlan:
    """Public parameters of a batch of sums.

    Attributes
    ----------
    parties : tuple of str
        All parties that may take part.
    threshold : int
        Number of parties that must stay until the end, more than half of them. Fewer parties cannot
        open a sum. With half or less, a server could send two groups different sets of survivors,
        and recover both secrets of a party from their shares.
    sums : int
        Number of sums that the first two rounds prepare. Each sum has separate masks and locks. A
        party that misses one sum, so that its lock is opened, can therefore take part in the next
        one.
    context : bytes
        Name of the run and batch. All keys depend on it.

    Raises
    ------
    UsageError
        If there are fewer than two parties or repeated names, if the threshold is not a majority of
        the parties, or if there is no sum.
    """

    parties: tuple[str, ...]
    threshold: int
    sums: int = 1
    context: bytes = b""

    def __post_init__(self) -> None:
        count = len(self.parties)
        if count < 2 or len(set(self.parties)) != count:
            raise UsageError(
                f"masks need two or more parties of different names; got {list(self.parties)}"
            )
        # Two disjoint groups of parties cannot both reach a majority.
        if not count // 2 < self.threshold <= count:
            raise UsageError(
                f"a threshold of {self.threshold} of {count} parties; choose one from "
                f"{count // 2 + 1} to {count} (two thirds and one, {usual_threshold(count)}, is "
                "usual)"
            )
        if self.sums < 1:
            raise UsageError(f"sums must be at least 1; got {self.sums}")

    def point(self, party: str) -> int:
        """Return the point at which a party's shares are evaluated, from 1."""
        return self.parties.index(party) + 1

    def need(self, names: Collection[str], did: str) -> None:
        """Raise `TooFewPartiesError` with the missing parties if fewer than `threshold` did it."""
        if len(names) < self.threshold:
            missing = [name for name in self.parties if name not in names]
            raise TooFewPartiesError(
                f"{len(names)} parties {did}, and the threshold is {self.threshold}; missing: "
                f"{', '.join(missing)}. Nothing is opened. Wait for them, or choose a lower "
                "threshold"
            )


def usual_threshold(parties: int) -> int:
    """Return ``floor(2 n / 3) + 1``, at most n. A third of the parties cannot recover a secret.

    >>> usual_threshold(5)
    4
    """
    return min(2 * parties // 3 + 1, parties)


@dataclass(frozen=True)
class Advertisement:
    """Round 0: the public key of a party, 32 bytes."""

    party: str
    key: bytes


@dataclass(frozen=True)
class Deal:
    """Round 1: shares of a party's secrets, each in a box that only its receiver can open.

    Attributes
    ----------
    party : str
        Sender.
    boxes : mapping of str to bytes
        Encrypted shares by receiver.
    commitments : tuple of bytes
        SHA-256 of the seed of each self-mask, which reveals a wrong share.
    locks : tuple of bytes
        For each sum, the encrypted seeds of the masks that the party shares with the remaining
        parties (`fedtrees.crypto.mask_keys.lock`).
    """

    party: str
    boxes: Mapping[str, bytes] = field(repr=False)
    commitments: tuple[bytes, ...]
    locks: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class MaskedArray:
    """Round 2: an array under its masks.

    Attributes
    ----------
    party : str
        Sender.
    sum : int
        Number of the planned sum.
    shape : tuple of int
        Shape of the array.
    values : bytes
        Numbers modulo 2^64, eight bytes each, little-endian.
    tag : bytes
        16 bytes that authenticate the array, the keys of all parties, and the parties whose masks
        are on the array. A sum is not opened if an array was changed, belongs to another sum, or
        was masked among other parties.
    """

    party: str
    sum: int
    shape: tuple[int, ...]
    values: bytes = field(repr=False)
    tag: bytes = field(repr=False)

    @property
    def sealed(self) -> Sealed:
        """The values as a message field that no party can open without the sum."""
        text = self.values + self.tag
        return Sealed((), self.shape, "<i8", len(text), text)


@dataclass(frozen=True)
class Unmasking:
    """Round 3: one party's shares of the secrets that open the sum, and of no further secrets.

    `self_masks` contains the shares of the survivors' self-masks, 33 bytes each. `lock_keys`
    contains the shares of the keys to the locks of parties whose arrays did not arrive.
    """

    party: str
    sum: int
    self_masks: Mapping[str, bytes] = field(repr=False)
    lock_keys: Mapping[str, bytes] = field(repr=False)


BOX_OVERHEAD = 16  # tag of a box with shares, and of a lock, in bytes
COMMITMENT_BYTES = 32
TAG_BYTES = 16  # of a masked array


def box(plan: MaskPlan) -> int:
    """Return the bytes of one box of a `Deal`."""
    return BOX_OVERHEAD + 2 * plan.sums * SHARE_BYTES


def lock(advertised: int) -> int:
    """Return the bytes of one lock of a `Deal` among `advertised` parties."""
    return BOX_OVERHEAD + (advertised - 1) * KEY_BYTES


def deal(plan: MaskPlan, advertised: int) -> int:
    """Return the bytes of a `Deal` among `advertised` parties."""
    return (advertised - 1) * box(plan) + plan.sums * (COMMITMENT_BYTES + lock(advertised))


def masked(size: int) -> int:
    """Return the bytes of a `MaskedArray` with `size` elements, without its tag."""
    return 8 * size


def unmasking(dealt: int) -> int:
    """Return the bytes of an `Unmasking` if `dealt` parties dealt shares."""
    return dealt * SHARE_BYTES
