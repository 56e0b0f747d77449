"""All rounds of masking in bytes, of the clients and of whoever adds; and the same without work.

Messages are of the lengths that `fedtrees.crypto.sizes` states. Who is meant by which part is known
from the plan and the rounds before; names are not in them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import sizes
from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskPlan, Unmasking
from fedtrees.crypto.masked_sum import MaskedSum
from fedtrees.crypto.masking_party import MaskingParty, check_numbers
from fedtrees.crypto.shamir import SHARE_BYTES
from fedtrees.crypto.survivor_sets import SurvivorSets
from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable

Opened = Mapping[str, SurvivorSets]


class MaskRounds(Protocol):
    """What is sent in each round, as bytes; what is received goes in likewise.

    Who says nothing in a round is left out of the rounds after it.
    """

    plan: MaskPlan

    def keys(self, name: str) -> bytes:
        """Round 0: let a client tell its public key to whoever adds."""

    def shares(self, name: str, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1: let a client that has the keys of these deal shares, and send them."""

    def boxes(self, name: str) -> bytes:
        """End of round 1: the boxes for a client, which opens them."""

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2: let a client mask an array, shape (m,), and send it, and its tag."""

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2: tell everybody whose arrays came."""

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: let a client tell the shares that open the sum of the survivors."""

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum, int64, shape (m,)."""


class RealMasks(Unprintable):
    """Keys, masks and shares as they are computed (`MaskingParty`, `MaskedSum`).

    Parameters
    ----------
    server : str
        Who adds.
    ledgers : mapping of str to Ledger
        Of every party.
    opened : mapping of str to SurvivorSets
        What each client knows to be opened.
    """

    def __init__(
        self, plan: MaskPlan, server: str, ledgers: Mapping[str, Ledger], opened: Opened
    ) -> None:
        self.plan = plan
        self._clients = {
            name: MaskingParty(plan, name, ledgers[name], opened=opened[name])
            for name in plan.parties
        }
        self._server = MaskedSum(plan, ledgers[server])
        self._boxes: dict[str, dict[str, bytes]] = {}

    def keys(self, name: str) -> bytes:
        """Round 0."""
        text = self._clients[name].advertise().key
        self._server.take_keys(Advertisement(name, text))
        return text

    def shares(self, name: str, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        if name == among[0]:
            self._server.roster()
        others = [other for other in among if other != name]
        dealt = self._clients[name].deal(read_roster(roster, among))
        text = deal_bytes(dealt, others)
        self._server.take_deal(read_deal(text, self.plan, name, others))
        return text

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        self._boxes = self._boxes or self._server.boxes()
        text = boxes_bytes(self._boxes[name])
        others = list(self._boxes[name])
        self._clients[name].collect(read_boxes(text, self.plan, others))
        return text

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2."""
        made = self._clients[name].mask(index, array)
        self._server.take_array(made)
        return made.values + made.tag

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2."""
        found = self._server.survivors(index)
        for name, client in self._clients.items():
            if name not in found:
                client.hear(found)
        return found

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        dealt = [party for party in self.plan.parties if party in self._boxes]
        text = unmasking_bytes(self._clients[name].unmask(index, survivors), dealt)
        self._server.take_shares(read_unmasking(text, name, index, dealt, survivors))
        return text

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum."""
        return self._server.opened(index)


class IdealMasks(Unprintable):
    """The ideal functionality in the same rounds: nothing is computed, and nothing is in them.

    `ledgers`: Work that is not done is counted, and takes no time.
    `opened`: Real clients would open nothing that these refuse.
    """

    def __init__(
        self, plan: MaskPlan, server: str, ledgers: Mapping[str, Ledger], opened: Opened
    ) -> None:
        self.plan, self._opened = plan, opened
        self._server, self._ledgers = server, ledgers
        self._dealt: Sequence[str] = ()
        self._arrays: dict[int, dict[str, NDArray[np.int64]]] = {}

    def keys(self, name: str) -> bytes:
        """Round 0."""
        return b""

    def shares(self, name: str, roster: bytes, among: Sequence[str]) -> bytes:
        """Round 1."""
        self.plan.need(among, "advertised keys")
        self._dealt = among
        self._ledgers[name].enter("shares", 2 * self.plan.sums * len(among))
        return b""

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        return b""

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2."""
        check_numbers(self.plan, array)
        self._ledgers[name].enter("masks expanded", len(self._dealt))
        self._arrays.setdefault(index, {})[name] = array
        return b""

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2."""
        arrays = self._arrays[index]
        self.plan.need(arrays, f"sent their array for sum {index}")
        for name in self.plan.parties:
            if name not in arrays:
                self._opened[name].note(arrays)
        return tuple(name for name in self.plan.parties if name in arrays)

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        self._opened[name].admit(survivors)
        return b""

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum."""
        arrays = list(self._arrays.pop(index).values())
        gone = len(self._dealt) - len(arrays)
        self._ledgers[self._server].enter("masks expanded", len(arrays) * (1 + gone))
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
