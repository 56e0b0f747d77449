"""All rounds of masking in bytes, each side by itself; and the same without work.

Messages are of the lengths that `fedtrees.crypto.sizes` states. Who is meant by which part is known
from the plan and the rounds before; names are not in them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import sizes
from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.masked_sum import MaskedSum
from fedtrees.crypto.masking_party import MaskingParty, check_numbers
from fedtrees.crypto.shamir import SHARE_BYTES
from fedtrees.crypto.survivor_sets import SurvivorSets
from fedtrees.sealing.errors import MalformedError, WrongKeyError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable

#: Arrays by sum and party, as the ideal functionality keeps them, which is in nobody's hands.
Kept = dict[int, dict[str, tuple[bytes, NDArray[np.int64]]]]


class Masker(Protocol):
    """A client's side of each round, as bytes; its secrets are here and nowhere else."""

    plan: MaskPlan

    def keys(self) -> bytes:
        """Round 0: tell its public key to whoever adds."""

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1: deal shares among those whose keys these are."""

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1: open the boxes that these made for it."""

    def masked(self, index: int, array: NDArray[np.int64], told: bytes = b"") -> bytes:
        """Round 2: mask an array, shape (m,), of who was told this; a tag is at the end."""

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: tell the shares that open the sum of the survivors, itself among them."""


class Unmasker(Protocol):
    """The side of whoever adds.

    Who says nothing in a round is left out of the rounds after it.
    """

    plan: MaskPlan

    def take_keys(self, name: str, text: bytes) -> None:
        """Round 0: take a client's public key."""

    def roster(self, among: Sequence[str]) -> bytes:
        """End of round 0: return the keys of these, who sent some."""

    def take_shares(self, name: str, text: bytes) -> None:
        """Round 1: take what a client dealt."""

    def boxes(self, name: str) -> bytes:
        """End of round 1: return the boxes for a client."""

    def take_masked(self, name: str, index: int, text: bytes) -> None:
        """Round 2: take a masked array and its tag."""

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2: return whose arrays came."""

    def take_opening(self, name: str, index: int, text: bytes, survivors: Sequence[str]) -> None:
        """Round 3: take a client's shares."""

    def opened(self, index: int, told: bytes = b"") -> NDArray[np.int64]:
        """Return the sum of those who were told this, int64, shape (m,)."""


class RealMasker(Unprintable):
    """Keys, masks and shares of one client, computed (`MaskingParty`).

    `opened`: What it knows to be opened.
    """

    def __init__(self, plan: MaskPlan, name: str, ledger: Ledger, opened: SurvivorSets) -> None:
        self.plan, self._name = plan, name
        self._party = MaskingParty(plan, name, ledger, opened=opened)
        self._dealt: list[str] = []

    def keys(self) -> bytes:
        """Round 0."""
        return self._party.advertise().key

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        others = [name for name in among if name != self._name]
        return deal_bytes(self._party.deal(read_roster(roster, among)), others)

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1."""
        self._party.collect(read_boxes(boxes, self.plan, senders))
        self._dealt = [name for name in self.plan.parties if name in (self._name, *senders)]

    def masked(self, index: int, array: NDArray[np.int64], told: bytes = b"") -> bytes:
        """Round 2."""
        made = self._party.mask(index, array, told)
        return made.values + made.tag

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        return unmasking_bytes(self._party.unmask(index, survivors), self._dealt)


class RealUnmasker(Unprintable):
    """Sums as they are opened (`MaskedSum`)."""

    def __init__(self, plan: MaskPlan, ledger: Ledger) -> None:
        self.plan, self._sum = plan, MaskedSum(plan, ledger)
        self._among: Sequence[str] = ()
        self._boxes: dict[str, dict[str, bytes]] = {}

    def take_keys(self, name: str, text: bytes) -> None:
        """Round 0."""
        self._sum.take_keys(Advertisement(name, text))

    def roster(self, among: Sequence[str]) -> bytes:
        """End of round 0."""
        self._among = among
        return b"".join(item.key for item in self._sum.roster())

    def take_shares(self, name: str, text: bytes) -> None:
        """Round 1."""
        others = [other for other in self._among if other != name]
        self._sum.take_deal(read_deal(text, self.plan, name, others))

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        self._boxes = self._boxes or self._sum.boxes()
        return boxes_bytes(self._boxes[name])

    def take_masked(self, name: str, index: int, text: bytes) -> None:
        """Round 2."""
        values, tag = text[: -sizes.TAG_BYTES], text[-sizes.TAG_BYTES :]
        self._sum.take_array(MaskedArray(name, index, (len(values) // 8,), values, tag))

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2."""
        return self._sum.survivors(index)

    def take_opening(self, name: str, index: int, text: bytes, survivors: Sequence[str]) -> None:
        """Round 3."""
        dealt = [party for party in self.plan.parties if party in self._boxes]
        self._sum.take_shares(read_unmasking(text, name, index, dealt, survivors))

    def opened(self, index: int, told: bytes = b"") -> NDArray[np.int64]:
        """Return the sum."""
        return self._sum.opened(index, told)


class IdealMasker(Unprintable):
    """A client's way to the ideal functionality: nothing is computed, and nothing is in the rounds.

    `ledger`: Work that is not done is counted, and takes no time.
    `opened`: A real client would open nothing that these refuse.
    """

    def __init__(
        self, plan: MaskPlan, name: str, ledger: Ledger, opened: SurvivorSets, kept: Kept
    ) -> None:
        self.plan, self._name, self._ledger = plan, name, ledger
        self._opened, self._kept = opened, kept
        self._among = 0

    def keys(self) -> bytes:
        """Round 0."""
        return b""

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        self.plan.need(among, "advertised keys")
        self._among = len(among)
        self._ledger.enter("shares", 2 * self.plan.sums * len(among))
        return b""

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1."""

    def masked(self, index: int, array: NDArray[np.int64], told: bytes = b"") -> bytes:
        """Round 2."""
        check_numbers(self.plan, array)
        self._ledger.enter("masks expanded", self._among)
        self._kept.setdefault(index, {})[self._name] = told, array
        return b""

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        self._opened.admit(survivors)
        return b""


class IdealUnmasker(Unprintable):
    """The way to it of whoever adds."""

    def __init__(self, plan: MaskPlan, ledger: Ledger, kept: Kept) -> None:
        self.plan, self._ledger, self._kept = plan, ledger, kept
        self._among: Sequence[str] = ()

    def take_keys(self, name: str, text: bytes) -> None:
        """Round 0."""

    def roster(self, among: Sequence[str]) -> bytes:
        """End of round 0."""
        self._among = among
        return b""

    def take_shares(self, name: str, text: bytes) -> None:
        """Round 1."""

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        return b""

    def take_masked(self, name: str, index: int, text: bytes) -> None:
        """Round 2."""

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2."""
        arrays = self._kept.get(index, {})
        self.plan.need(arrays, f"sent their array for sum {index}")
        return tuple(name for name in self.plan.parties if name in arrays)

    def take_opening(self, name: str, index: int, text: bytes, survivors: Sequence[str]) -> None:
        """Round 3."""

    def opened(self, index: int, told: bytes = b"") -> NDArray[np.int64]:
        """Return the sum; raises `WrongKeyError` as `MaskedSum.opened`."""
        kept = self._kept.pop(index)
        if other := [name for name, (heard, _) in kept.items() if heard != told]:
            raise WrongKeyError(
                f"{', '.join(other)}: told something else than the others before sum {index}; it "
                "stays closed. Start anew"
            )
        arrays = [array for _, array in kept.values()]
        gone = len(self._among) - len(arrays)
        self._ledger.enter("masks expanded", len(arrays) * (1 + gone))
        total: NDArray[np.int64] = np.sum(arrays, axis=0)
        return total


def read_roster(text: bytes, names: Sequence[str]) -> list[Advertisement]:
    """Read the keys of these parties, one after the other.

    Raises `MalformedError`, here and below, if the length is not as planned.
    """
    keys = _pieces(text, KEY_BYTES, len(names), "the keys of everybody")
    return [Advertisement(party, key) for party, key in zip(names, keys, strict=True)]


def deal_bytes(message: Deal, others: Sequence[str]) -> bytes:
    """Return the boxes for the others, in that order, then the commitments and the locks."""
    boxes = (message.boxes[name] for name in others)
    return b"".join((*boxes, *message.commitments, *message.locks))


def read_deal(text: bytes, plan: MaskPlan, party: str, others: Sequence[str]) -> Deal:
    """Read what `deal_bytes` wrote."""
    boxed = len(others) * sizes.box(plan)
    locked = boxed + plan.sums * sizes.COMMITMENT_BYTES
    commitments, locks = (
        tuple(_pieces(part, size, plan.sums, f"the {what} of {party!r}"))
        for part, size, what in (
            (text[boxed:locked], sizes.COMMITMENT_BYTES, "commitments"),
            (text[locked:], sizes.lock(len(others) + 1), "locks"),
        )
    )
    return Deal(party, read_boxes(text[:boxed], plan, others), commitments, locks)


def boxes_bytes(boxes: Mapping[str, bytes]) -> bytes:
    """Return boxes one after the other."""
    return b"".join(boxes.values())


def read_boxes(text: bytes, plan: MaskPlan, names: Sequence[str]) -> dict[str, bytes]:
    """Return the boxes of these parties, by name."""
    found = _pieces(text, sizes.box(plan), len(names), f"the boxes of {', '.join(names)}")
    return dict(zip(names, found, strict=True))


def unmasking_bytes(message: Unmasking, dealt: Sequence[str]) -> bytes:
    """Return one share for each party that dealt, in that order."""
    given = {**message.self_masks, **message.lock_keys}
    return b"".join(given[name] for name in dealt)


def read_unmasking(
    text: bytes, party: str, index: int, dealt: Sequence[str], survivors: Sequence[str]
) -> Unmasking:
    """Read what `unmasking_bytes` wrote: self-masks of survivors, lock keys of the others."""
    found = _pieces(text, SHARE_BYTES, len(dealt), f"the shares of {party!r}")
    given = dict(zip(dealt, found, strict=True))
    stayed = {name: share for name, share in given.items() if name in survivors}
    gone = {name: share for name, share in given.items() if name not in survivors}
    return Unmasking(party, index, stayed, gone)


def _pieces(text: bytes, size: int, count: int, what: str) -> list[bytes]:
    if len(text) != size * count:
        raise MalformedError(f"{what} take {len(text)} bytes; planned are {count} of {size}")
    return [text[size * i : size * (i + 1)] for i in range(count)]
