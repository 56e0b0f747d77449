"""What crosses in secure aggregation by masks, as plain data, and what all parties agree on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedtrees.core.errors import UsageError
from fedtrees.core.sealed import Sealed
from fedtrees.sealing.errors import TooFewPartiesError


@dataclass(frozen=True)
class MaskPlan:
    """What everybody knows before the first round.

    Raises `UsageError` if fewer than two parties are named, a name twice, no sum is planned, or the
    threshold is not above half of the parties: two groups that were told different survivors could
    then give away both secrets of somebody between them.
    """

    parties: tuple[str, ...]  # everybody who may take part
    threshold: int  # so many must stay to the end; fewer cannot open anything, not even together
    # how many sums the first two rounds prepare. Each has masks and locks of its own, so that who
    # misses one, and has its lock of that one opened, takes part in the next.
    sums: int = 1
    context: bytes = b""  # where the sums belong (a run and a stage), bound into every key

    def __post_init__(self) -> None:
        count = len(self.parties)
        if count < 2 or len(set(self.parties)) != count:
            raise UsageError(
                f"masks need two or more parties of different names; got {list(self.parties)}"
            )
        if not count // 2 < self.threshold <= count:
            raise UsageError(
                f"a threshold of {self.threshold} of {count} parties; choose one from "
                f"{count // 2 + 1} to {count} (two thirds and one, {usual_threshold(count)}, is "
                "usual)"
            )
        if self.sums < 1:
            raise UsageError(f"sums must be at least 1; got {self.sums}")

    def point(self, party: str) -> int:
        """Return where a party's shares are, from 1."""
        return self.parties.index(party) + 1

    def need(self, names: Collection[str], did: str) -> None:
        """Raise TooFewPartiesError, which says who is missing, unless the threshold is met."""
        if len(names) < self.threshold:
            missing = [name for name in self.parties if name not in names]
            raise TooFewPartiesError(
                f"{len(names)} parties {did}, and the threshold is {self.threshold}; missing: "
                f"{', '.join(missing)}. Nothing is opened. Wait for them, or choose a lower "
                "threshold"
            )


def usual_threshold(parties: int) -> int:
    """Return ``floor(2 n / 3) + 1``, at most n: what keeps secrets from a third of colluders."""
    return min(2 * parties // 3 + 1, parties)


@dataclass(frozen=True)
class Advertisement:
    """Round 0: a party's public key.

    `key`: 32 bytes. What two parties agree on by their keys is never told to anybody.
    """

    party: str
    key: bytes


@dataclass(frozen=True)
class Deal:
    """Round 1: shares of a party's secrets, each in a box that only its receiver opens."""

    party: str
    boxes: Mapping[str, bytes] = field(repr=False)  # by receiver
    # SHA-256 of the seed of each self-mask, by which a wrong share is found out
    commitments: tuple[bytes, ...]
    # for each sum the seeds of the masks that it shares with the others, locked
    # (`fedtrees.crypto.mask_seeds.lock`)
    locks: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class MaskedArray:
    """Round 2: an array under its masks."""

    party: str
    sum: int  # which of the planned sums
    shape: tuple[int, ...]
    values: bytes = field(repr=False)  # numbers modulo 2^64, eight bytes each, little end first
    # of all this, of the keys that went to everybody, and of among whom it was masked, 16 bytes: a
    # sum of what was changed, sent before, or masked otherwise, is never opened
    tag: bytes = field(repr=False)

    @property
    def sealed(self) -> Sealed:
        """The values as a message field that nobody can open by itself."""
        text = self.values + self.tag
        return Sealed((), self.shape, "<i8", len(text), text)


@dataclass(frozen=True)
class Unmasking:
    """Round 3: one party's shares of the secrets that open the sum, and of no others."""

    party: str
    sum: int
    self_masks: Mapping[str, bytes] = field(repr=False)  # of those whose arrays came, 33 bytes
    # of the keys to the locks of those whose arrays did not
    lock_keys: Mapping[str, bytes] = field(repr=False)
