"""All rounds of secure aggregation by masks, as byte strings, for each side: real and ideal.

Messages have the lengths that `fedtrees.crypto.mask_messages` states. They do not contain names of
parties, because the plan and the earlier rounds determine which part of a message belongs to which
party.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import mask_messages
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.masked_sum import MaskedSum
from fedtrees.crypto.masking_party import MaskingParty, SurvivorSets, check_numbers
from fedtrees.crypto.primitives import KEY_BYTES, MalformedError, SecretHolder, WrongKeyError
from fedtrees.crypto.shamir import SHARE_BYTES

#: Plain arrays of the ideal functionality, by sum and party, with the digest of received messages.
Kept = dict[int, dict[str, tuple[bytes, NDArray[np.int64]]]]


class Masker(Protocol):
    """Client side of each round. It contains the secrets of one client."""

    plan: MaskPlan

    def keys(self) -> bytes:
        """Round 0: return the public key."""

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1: return shares of the secrets for the parties whose keys the roster contains."""

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1: open the boxes of the given senders."""

    def masked(self, index: int, array: NDArray[np.int64], history_digest: bytes = b"") -> bytes:
        """Round 2: mask an array.

        Parameters
        ----------
        index : int
            Number of the sum in its batch.
        array : int64 array, shape (m,)
        history_digest : bytes
            Digest of all messages that the client received.

        Returns
        -------
        masked : bytes
            Masked numbers, followed by a tag.
        """

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: return the shares that open the sum of survivors, which include the client."""


class Unmasker(Protocol):
    """Server side of each round.

    Parties that send nothing in a round do not take part in the following rounds.
    """

    plan: MaskPlan

    def take_keys(self, name: str, text: bytes) -> None:
        """Round 0: receive the public key of a client."""

    def roster(self, among: Sequence[str]) -> bytes:
        """End of round 0: return the keys of the given clients."""

    def take_shares(self, name: str, text: bytes) -> None:
        """Round 1: receive the boxes, commitments and locks of a client."""

    def boxes(self, name: str) -> bytes:
        """End of round 1: return the boxes for a client."""

    def take_masked(self, name: str, index: int, text: bytes) -> None:
        """Round 2: receive a masked array and its tag.

        Parameters
        ----------
        name : str
            Name of the sender.
        index : int
            Number of the sum in its batch.
        text : bytes
            Result of `Masker.masked`.
        """

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2: return the clients whose arrays arrived."""

    def take_opening(self, name: str, index: int, text: bytes, survivors: Sequence[str]) -> None:
        """Round 3: receive the shares of a client.

        Parameters
        ----------
        name : str
            Name of the sender.
        index : int
            Number of the sum in its batch.
        text : bytes
            Result of `Masker.opening`.
        survivors : sequence of str
            Clients whose arrays are in the sum.
        """

    def opened(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
        """Return the sum, int64, shape (m,).

        The last argument is the digest of all messages that the clients received.
        """


class RealMasker(SecretHolder):
    """Keys, masks and shares of one client, computed (`MaskingParty`).

    `opened` contains the sets of survivors whose sums the client helped to open.
    """

    def __init__(
        self, plan: MaskPlan, name: str, ledger: OperationCounter, opened: SurvivorSets
    ) -> None:
        self.plan, self._name = plan, name
        self._party = MaskingParty(plan, name, ledger, opened=opened)
        self._dealt: list[str] = []

    def keys(self) -> bytes:
        """Round 0."""
        return self._party.advertise().key

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        receivers = [name for name in among if name != self._name]
        return deal_bytes(self._party.deal(read_roster(roster, among)), receivers)

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1."""
        self._party.collect(read_boxes(boxes, self.plan, senders))
        # Shares are sent in the order of the plan, because messages contain no names.
        self._dealt = [name for name in self.plan.parties if name in (self._name, *senders)]

    def masked(self, index: int, array: NDArray[np.int64], history_digest: bytes = b"") -> bytes:
        """Round 2."""
        masked_array = self._party.mask(index, array, history_digest)
        return masked_array.values + masked_array.tag

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        return unmasking_bytes(self._party.unmask(index, survivors), self._dealt)


class RealUnmasker(SecretHolder):
    """Sums of one batch, computed (`MaskedSum`)."""

    def __init__(self, plan: MaskPlan, ledger: OperationCounter) -> None:
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
        receivers = [receiver for receiver in self._among if receiver != name]
        self._sum.take_deal(read_deal(text, self.plan, name, receivers))

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        # The round ends when the first boxes are requested.
        self._boxes = self._boxes or self._sum.boxes()
        return boxes_bytes(self._boxes[name])

    def take_masked(self, name: str, index: int, text: bytes) -> None:
        """Round 2."""
        # Shapes are not transmitted: every array is a vector here.
        values, tag = text[: -mask_messages.TAG_BYTES], text[-mask_messages.TAG_BYTES :]
        self._sum.take_array(MaskedArray(name, index, (len(values) // 8,), values, tag))

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2."""
        return self._sum.survivors(index)

    def take_opening(self, name: str, index: int, text: bytes, survivors: Sequence[str]) -> None:
        """Round 3."""
        dealt = [party for party in self.plan.parties if party in self._boxes]
        self._sum.take_shares(read_unmasking(text, name, index, dealt, survivors))

    def opened(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
        """Return the sum."""
        return self._sum.opened(index, history_digest)


class IdealMasker(SecretHolder):
    """Client with access to the ideal functionality. Messages are empty.

    Operations are counted but not computed. `opened` makes the client refuse the same sets of
    survivors as a real client.
    """

    def __init__(
        self,
        plan: MaskPlan,
        name: str,
        ledger: OperationCounter,
        opened: SurvivorSets,
        kept_state: Kept,
    ) -> None:
        self.plan, self._name, self._ledger = plan, name, ledger
        self._opened, self._kept = opened, kept_state
        self._among = 0

    def keys(self) -> bytes:
        """Round 0."""
        return b""

    def shares(self, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        self.plan.need(among, "advertised keys")
        self._among = len(among)
        # Two secrets per sum, and one share of each for every party.
        self._ledger.enter("shares", 2 * self.plan.sums * len(among))
        return b""

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1."""

    def masked(self, index: int, array: NDArray[np.int64], history_digest: bytes = b"") -> bytes:
        """Round 2."""
        check_numbers(self.plan, array)
        self._ledger.enter("masks expanded", self._among)
        self._kept.setdefault(index, {})[self._name] = history_digest, array
        return b""

    def opening(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        self._opened.admit(survivors)
        return b""


class IdealUnmasker(SecretHolder):
    """Server with access to the ideal functionality."""

    def __init__(self, plan: MaskPlan, ledger: OperationCounter, kept_state: Kept) -> None:
        self.plan, self._ledger, self._kept = plan, ledger, kept_state
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

    def opened(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
        """Return the sum. Raise `WrongKeyError` as `MaskedSum.opened` does."""
        contributions = self._kept.pop(index)
        if unequal := [
            name for name, (history, _) in contributions.items() if history != history_digest
        ]:
            raise WrongKeyError(
                f"{', '.join(unequal)}: told something else than the others before sum {index}; it "
                "stays closed. Start anew"
            )
        arrays = [array for _, array in contributions.values()]
        # A real server expands a self-mask per survivor, and all its masks with each missing party.
        n_missing = len(self._among) - len(arrays)
        self._ledger.enter("masks expanded", len(arrays) * (1 + n_missing))
        total: NDArray[np.int64] = np.sum(arrays, axis=0)
        return total


def read_roster(text: bytes, names: Sequence[str]) -> list[Advertisement]:
    """Read the keys of the named parties.

    This function and those below raise `MalformedError` if the length is not as planned.
    """
    keys = _pieces(text, KEY_BYTES, len(names), "the keys of everybody")
    return [Advertisement(party, key) for party, key in zip(names, keys, strict=True)]


def deal_bytes(message: Deal, other_parties: Sequence[str]) -> bytes:
    """Return the boxes in the given order of receivers, then the commitments and the locks."""
    boxes = (message.boxes[name] for name in other_parties)
    return b"".join((*boxes, *message.commitments, *message.locks))


def read_deal(text: bytes, plan: MaskPlan, party: str, other_parties: Sequence[str]) -> Deal:
    """Read the result of `deal_bytes`.

    Parameters
    ----------
    text : bytes
    plan : MaskPlan
        Public parameters of the batch.
    party : str
        Name of the sender.
    other_parties : sequence of str
        Receivers of the boxes, in order.
    """
    # The message consists of boxes, commitments and locks, all of known length.
    boxed = len(other_parties) * mask_messages.box(plan)
    locked = boxed + plan.sums * mask_messages.COMMITMENT_BYTES
    commitments, locks = (
        tuple(_pieces(part, size, plan.sums, f"the {title} of {party!r}"))
        for part, size, title in (
            (text[boxed:locked], mask_messages.COMMITMENT_BYTES, "commitments"),
            (text[locked:], mask_messages.lock(len(other_parties) + 1), "locks"),
        )
    )
    return Deal(party, read_boxes(text[:boxed], plan, other_parties), commitments, locks)


def boxes_bytes(boxes: Mapping[str, bytes]) -> bytes:
    """Return the concatenation of boxes."""
    return b"".join(boxes.values())


def read_boxes(text: bytes, plan: MaskPlan, names: Sequence[str]) -> dict[str, bytes]:
    """Read the boxes of the named parties, by party."""
    boxes = _pieces(text, mask_messages.box(plan), len(names), f"the boxes of {', '.join(names)}")
    return dict(zip(names, boxes, strict=True))


def unmasking_bytes(message: Unmasking, dealt: Sequence[str]) -> bytes:
    """Return one share for each party in `dealt`, in this order."""
    # Each party is in one of the two dictionaries.
    shares = {**message.self_masks, **message.lock_keys}
    return b"".join(shares[name] for name in dealt)


def read_unmasking(
    text: bytes, party: str, index: int, dealt: Sequence[str], survivors: Sequence[str]
) -> Unmasking:
    """Read the result of `unmasking_bytes`.

    Parameters
    ----------
    text : bytes
    party : str
        Name of the sender.
    index : int
        Number of the sum in its batch.
    dealt : sequence of str
        All parties that dealt shares, in order.
    survivors : sequence of str
        Parties whose arrays are in the sum. Their shares belong to self-masks, the remaining ones
        to keys of locks.
    """
    pieces = _pieces(text, SHARE_BYTES, len(dealt), f"the shares of {party!r}")
    shares = dict(zip(dealt, pieces, strict=True))
    of_survivors = {name: share for name, share in shares.items() if name in survivors}
    of_missing = {name: share for name, share in shares.items() if name not in survivors}
    return Unmasking(party, index, of_survivors, of_missing)


def _pieces(text: bytes, size: int, count: int, what: str) -> list[bytes]:
    if len(text) != size * count:
        raise MalformedError(f"{what} take {len(text)} bytes; planned are {count} of {size}")
    return [text[size * i : size * (i + 1)] for i in range(count)]
