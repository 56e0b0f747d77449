"""All rounds of masking in bytes, of the clients and of whoever adds; and the same without work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import mask_bytes
from fedtrees.crypto.ledger import Ledger
from fedtrees.crypto.mask_messages import Advertisement, MaskedArray, MaskPlan
from fedtrees.crypto.masked_sum import MaskedSum
from fedtrees.crypto.masking_party import MaskingParty
from fedtrees.crypto.secret import Unprintable


class MaskRounds(Protocol):
    """What is sent in each round, as bytes; what is received goes in likewise.

    Attributes
    ----------
    plan : MaskPlan
    """

    plan: MaskPlan

    def keys(self, name: str) -> bytes:
        """Round 0: let a client tell its public key to whoever adds."""

    def shares(self, name: str, roster: bytes) -> bytes:
        """Round 1: let a client that has everybody's keys deal shares, and send them."""

    def boxes(self, name: str) -> bytes:
        """End of round 1: the boxes for a client, which opens them."""

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2: let a client mask an array, shape (m,), and send it."""

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: let a client tell the shares that open the sum of the survivors."""

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum, int64, shape (m,)."""


class RealMasks(Unprintable):
    """Keys, masks and shares as they are computed (`MaskingParty`, `MaskedSum`).

    Parameters
    ----------
    plan : MaskPlan
    server : str
        Who adds.
    ledgers : mapping of str to Ledger
        Of every party.
    """

    def __init__(self, plan: MaskPlan, server: str, ledgers: Mapping[str, Ledger]) -> None:
        self.plan = plan
        self._clients = {name: MaskingParty(plan, name, ledgers[name]) for name in plan.parties}
        self._server = MaskedSum(plan, ledgers[server])
        self._boxes: dict[str, dict[str, bytes]] = {}

    def keys(self, name: str) -> bytes:
        """Round 0."""
        text = self._clients[name].advertise().key
        self._server.take_keys(Advertisement(name, text))
        return text

    def shares(self, name: str, roster: bytes) -> bytes:
        """Round 1."""
        if name == self.plan.parties[0]:
            self._server.roster()
        others = [other for other in self.plan.parties if other != name]
        dealt = self._clients[name].deal(mask_bytes.read_roster(roster, self.plan))
        text = mask_bytes.deal_bytes(dealt, others)
        self._server.take_deal(mask_bytes.read_deal(text, self.plan, name, others))
        return text

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        self._boxes = self._boxes or self._server.boxes()
        text = mask_bytes.boxes_bytes(self._boxes[name])
        others = [other for other in self.plan.parties if other != name]
        self._clients[name].collect(mask_bytes.read_boxes(text, self.plan, others))
        return text

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2."""
        values = self._clients[name].mask(index, array).values
        self._server.take_array(MaskedArray(name, index, array.shape, values))
        return values

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        if name == survivors[0]:
            self._server.survivors(index)
        parties = self.plan.parties
        text = mask_bytes.unmasking_bytes(self._clients[name].unmask(index, survivors), parties)
        self._server.take_shares(mask_bytes.read_unmasking(text, name, index, parties, survivors))
        return text

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum."""
        return self._server.opened(index)


class IdealMasks(Unprintable):
    """The ideal functionality in the same rounds: nothing is computed, and nothing is in them.

    Parameters
    ----------
    plan : MaskPlan
    server : str
    ledgers : mapping of str to Ledger
        Work that is not done is counted, and takes no time.
    """

    def __init__(self, plan: MaskPlan, server: str, ledgers: Mapping[str, Ledger]) -> None:
        self.plan, self._server, self._ledgers = plan, server, ledgers
        self._sums: dict[int, NDArray[np.int64]] = {}

    def keys(self, name: str) -> bytes:
        """Round 0."""
        return b""

    def shares(self, name: str, roster: bytes) -> bytes:
        """Round 1."""
        self._ledgers[name].enter("shares", 2 * self.plan.sums * len(self.plan.parties))
        return b""

    def boxes(self, name: str) -> bytes:
        """End of round 1."""
        return b""

    def masked(self, name: str, index: int, array: NDArray[np.int64]) -> bytes:
        """Round 2."""
        self._ledgers[name].enter("masks expanded", len(self.plan.parties))
        self._sums[index] = self._sums[index] + array if index in self._sums else array
        return b""

    def opening(self, name: str, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3."""
        return b""

    def opened(self, index: int) -> NDArray[np.int64]:
        """Return the sum."""
        self._ledgers[self._server].enter("masks expanded", len(self.plan.parties))
        return self._sums.pop(index)
