"""What crosses besides values while sums are made under real cryptography.

Keys, shares and ciphertexts are `Sealed`: they say nothing of rows to whoever does not hold what
opens them, and under ``mode=ideal`` they are bytes that are counted and not there.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.core.sealed import Sealed

_NOTHING: frozenset[Reveal] = frozenset()


@dataclass(frozen=True, eq=False)
class MaskKeysRequest(Message):
    """Ask clients for keys for the next sums.

    Attributes
    ----------
    batch : int
        Number of the batch, from 0; it is bound into every key.
    sums : int
        How many sums it has.
    threshold : int
        How many clients must stay.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    batch: int
    sums: int
    threshold: int


@dataclass(frozen=True, eq=False)
class MaskKeys(Message):
    """A client's public key, 32 bytes."""

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    keys: Sealed


@dataclass(frozen=True, eq=False)
class MaskRoster(Message):
    """The public keys of all clients.

    `parties`: Their names, joined by commas, in the order of the keys.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    parties: str
    keys: Sealed


@dataclass(frozen=True, eq=False)
class MaskShares(Message):
    """Shares of a client's secrets, in boxes for the others; commitments, and locked seeds."""

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    boxes: Sealed


@dataclass(frozen=True, eq=False)
class MaskBoxes(Message):
    """The boxes that the other clients made for one.

    `parties`: Who made them, joined by commas, in order.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    parties: str
    boxes: Sealed


@dataclass(frozen=True, eq=False)
class MaskSurvivors(Message):
    """Whose arrays came, and are in a sum.

    `sum`: Number of the sum in its batch.
    `parties`: Joined by commas.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    sum: int
    parties: str


@dataclass(frozen=True, eq=False)
class MaskOpening(Message):
    """One client's shares of what opens a sum: of self-masks, and of lock keys of who is gone."""

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    sum: int
    shares: Sealed


@dataclass(frozen=True, eq=False)
class PaillierKey(Message):
    """The public key that everybody encrypts under.

    Attributes
    ----------
    holder : str
        Who has the private key.
    bits : int
        Length of n.
    key : Sealed
        n and, for short obfuscators, the base of theirs.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    holder: str
    bits: int
    key: Sealed


@dataclass(frozen=True, eq=False)
class PaillierSeeds(Message):
    """Seeds of masks that clients add to what they encrypt, for the holder of the key alone.

    `parties`: Whose, joined by commas, in order.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NOTHING
    parties: str
    seeds: Sealed


@dataclass(frozen=True, eq=False)
class OpenedSum(Message):
    """A sum that the holder of the key decrypted for the server.

    `what`: The type of the replies that were added.
    `values`: int64 array, shape (m,). Of all their summed fields, one after the other, as
    `fedtrees.core.aggregation.whole`.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}
    )
    what: str
    values: NDArray[np.int64]
