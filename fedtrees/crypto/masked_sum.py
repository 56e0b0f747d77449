"""Secure aggregation by masks (Bonawitz et al. 2017, figure 4): the side that opens the sums.

The class is a state machine with plain data as input and output: `take_keys`, `roster`,
`take_deal`, `boxes`, and for each sum `take_array`, `survivors`, `take_shares`, `opened`. It learns
only the sum over the parties that stayed.
"""

import hmac
import math
from collections.abc import Callable, Collection
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import mask_messages, shamir
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_keys import agreed_keys, bound_to, commitment, self_seed, tag, unlock
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.masking_party import adds, check_index, check_roster
from fedtrees.crypto.primitives import (
    LateError,
    MalformedError,
    RepeatedError,
    Secret,
    SecretHolder,
    WrongKeyError,
    expand_mask,
)

Taken = TypeVar("Taken", Advertisement, Deal, MaskedArray, Unmasking)


class MaskedSum(SecretHolder):
    """Server that adds masked arrays and opens the sums."""

    def __init__(self, plan: MaskPlan, ledger: OperationCounter | None = None) -> None:
        self.plan = plan
        self.ledger = OperationCounter() if ledger is None else ledger
        self._keys: dict[str, Advertisement] = {}
        self._agreed = b""  # digest of the roster
        self._deals: dict[str, Deal] = {}
        self._arrays: dict[int, dict[str, MaskedArray]] = {}
        self._given: dict[int, dict[str, Unmasking]] = {}
        self._closed: set[str] = set()  # rounds that have ended

    def __repr__(self) -> str:
        return f"<MaskedSum of {len(self.plan.parties)} parties, {self.plan.sums} sums>"

    def take_keys(self, message: Advertisement) -> None:
        """Receive a message of round 0.

        All `take_` methods raise the same errors.

        Raises
        ------
        LateError
            If the round has ended, or has not started.
        RepeatedError
            If the party has sent a message in this round before.
        MalformedError
            If the party does not take part in the round, or the message is not as planned.
        """
        _place(self._keys, message, "advertising", self._closed, self.plan.parties)

    def take_deal(self, message: Deal) -> None:
        """Receive a message of round 1."""
        self._need("advertising")
        receivers = {*self._keys} - {message.party}
        if {*message.boxes} != receivers or len(message.commitments) != self.plan.sums:
            raise MalformedError(
                f"{message.party!r} dealt boxes to {sorted(message.boxes)} and "
                f"{len(message.commitments)} commitments; planned are {sorted(receivers)} and "
                f"{self.plan.sums}"
            )
        if {len(text) for text in message.locks} != {mask_messages.lock(len(self._keys))} or (
            len(message.locks) != self.plan.sums
        ):
            raise MalformedError(
                f"{message.party!r} dealt {len(message.locks)} locks; planned are "
                f"{self.plan.sums} of {mask_messages.lock(len(self._keys))} bytes"
            )
        # The server forwards boxes that it cannot open, and can check only their length.
        lengths = {len(box) for box in message.boxes.values()}
        if lengths != {mask_messages.box(self.plan)}:
            raise MalformedError(
                f"{message.party!r} dealt boxes of {sorted(lengths)} bytes; planned are "
                f"{mask_messages.box(self.plan)}"
            )
        _place(self._deals, message, "dealing", self._closed, self._keys)

    def take_array(self, message: MaskedArray) -> None:
        """Receive a message of round 2."""
        self._need("dealing")
        check_index(self.plan, message.sum)
        arrays = self._arrays.setdefault(message.sum, {})
        shape = next((item.shape for item in arrays.values()), message.shape)
        if message.shape != shape or len(message.values) != 8 * math.prod(shape):
            raise MalformedError(
                f"{message.party!r} sent {len(message.values)} bytes of shape {message.shape} for "
                f"sum {message.sum}; an array of shape {shape} has {8 * math.prod(shape)}"
            )
        _place(arrays, message, _masking(message.sum), self._closed, self._deals)

    def take_shares(self, message: Unmasking) -> None:
        """Receive a message of round 3."""
        self._need(_masking(message.sum))
        survivors = self._arrays[message.sum]
        missing = {*self._deals} - {*survivors}
        if ({*message.self_masks}, {*message.lock_keys}) != ({*survivors}, missing):
            raise MalformedError(
                f"{message.party!r} gave shares of the self-masks of {sorted(message.self_masks)} "
                f"and the locks of {sorted(message.lock_keys)}; sum {message.sum} needs those of "
                f"{sorted(survivors)} and {sorted(missing)}"
            )
        shares = self._given.setdefault(message.sum, {})
        _place(shares, message, _opening(message.sum), self._closed, survivors)

    def roster(self) -> list[Advertisement]:
        """End round 0: return the keys that are sent to all parties that advertised one."""
        advertised = [self._keys[name] for name in self.plan.parties if name in self._keys]
        check_roster(self.plan, advertised)
        self._closed.add("advertising")
        self._agreed = agreed_keys(self.plan, advertised)
        return advertised

    def boxes(self) -> dict[str, dict[str, bytes]]:
        """End round 1: return the boxes for each party that dealt, by receiver and sender."""
        self._need("advertising")
        self.plan.need(self._deals, "dealt shares")
        self._closed.add("dealing")
        return {
            receiver: {
                sender: deal.boxes[receiver]
                for sender, deal in self._deals.items()
                if sender != receiver
            }
            for receiver in self._deals
        }

    def survivors(self, index: int) -> tuple[str, ...]:
        """End round 2 of a sum: return the parties whose arrays arrived, to be sent to all of them.

        Arrays that arrive later are neither added nor unmasked.
        """
        self._need("dealing")
        arrays = self._arrays.get(index, {})
        self.plan.need(arrays, f"sent their array for sum {index}")
        self._closed.add(_masking(index))
        return tuple(name for name in self.plan.parties if name in arrays)

    def opened(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
        """End round 3: return the sum of the survivors' arrays, int64.

        The last argument is the digest of all messages that the survivors received.

        Raises
        ------
        LateError
            If round 2 has not ended, or if the sum was opened before.
        TooFewPartiesError
            If fewer parties than the threshold sent shares.
        WrongKeyError
            If the shares give another secret than the party committed to, because one of them is
            wrong, or if the tag of an array is wrong.
        """
        self._need(_masking(index))
        shares = self._given.get(index, {})
        if _opening(index) in self._closed:
            raise LateError(f"sum {index} was opened before, and its arrays are gone")
        self.plan.need(shares, f"helped to open sum {index}")
        arrays = self._arrays[index]
        # In the sum, the pair masks of survivors cancel. Their self-masks remain, and their pair
        # masks with missing parties.
        first = next(iter(arrays.values()))
        total = np.zeros(len(first.values) // 8, dtype=np.uint64)
        for item in arrays.values():
            total += np.frombuffer(item.values, "<u8")
        missing = [name for name in self._deals if name not in arrays]
        with self.ledger.timed("masks expanded", len(arrays) * (1 + len(missing))):
            for name in arrays:
                # Arithmetic modulo 2^64: unsigned numbers wrap around, and the sum is exact.
                total -= self._self_mask(index, name, total.size, history_digest)
            for name in missing:
                self._take_off_pairs(index, name, total, history_digest)
        self._closed.add(_opening(index))
        # Arrays and shares are deleted, so that the sum cannot be opened a second time.
        self._arrays[index] = {}
        self._given[index] = {}
        return total.view(np.int64).reshape(first.shape)

    def _self_mask(self, index: int, name: str, size: int, history: bytes) -> NDArray[np.uint64]:
        """Recover the self-mask of a survivor, and check the tag of its array."""
        seed = self._combined(index, name, lambda item: item.self_masks[name])
        # A wrong share gives another seed, which the commitment detects.
        if commitment(seed) != self._deals[name].commitments[index]:
            raise WrongKeyError(self._wrong(index, name, "self-mask"))
        item = self._arrays[index][name]
        among = [party for party in self.plan.parties if party in self._deals]
        expected = tag(seed, self._agreed, among, index, item.shape, item.values, history)
        if not hmac.compare_digest(expected, item.tag):
            raise WrongKeyError(
                f"the array of {name!r} in sum {index} does not bear out its tag: it was changed "
                "on the way, belongs to another sum, was masked for other keys or parties, or its "
                "owner was told something else than the others; the sum stays closed. Start anew"
            )
        return expand_mask(self_seed(seed), size)

    def _take_off_pairs(
        self, index: int, name: str, total: NDArray[np.uint64], history: bytes
    ) -> None:
        """Subtract, in place, the masks that survivors share with a missing party."""
        key = self._combined(index, name, lambda item: item.lock_keys[name])
        try:
            seeds = unlock(key, self._deals[name].locks[index], self._agreed)
        except WrongKeyError:
            raise WrongKeyError(self._wrong(index, name, "lock")) from None
        peers = [peer for peer in self.plan.parties if peer in self._keys and peer != name]
        for peer, seed in zip(peers, seeds, strict=True):
            # A mask between two missing parties is not in the sum.
            if peer not in self._arrays[index]:
                continue
            mask = expand_mask(bound_to(seed, history), total.size)
            # Undo the sign with which the survivor applied the mask.
            if adds(peer, name):
                total -= mask
            else:
                total += mask

    def _combined(self, index: int, name: str, of: Callable[[Unmasking], bytes]) -> Secret[bytes]:
        """Recover a secret of a party from the shares of the helpers."""
        messages = self._given[index]
        shares = {self.plan.point(helper): of(item) for helper, item in messages.items()}
        try:
            return shamir.combine(shares, self.plan.threshold)
        except MalformedError:
            raise WrongKeyError(self._wrong(index, name, "secret")) from None

    def _wrong(self, index: int, name: str, what: str) -> str:
        return (
            f"the shares that {sorted(self._given[index])} gave of {name!r} do not tell its {what} "
            f"of sum {index}: one of them is wrong, and the sum stays closed. Start anew"
        )

    def _need(self, stage: str) -> None:
        if stage not in self._closed:
            raise LateError(f"{stage} is not over yet; what belongs after it came too early")


def _masking(index: int) -> str:
    return f"masking for sum {index}"


def _opening(index: int) -> str:
    return f"opening sum {index}"


def _place(
    messages: dict[str, Taken],
    message: Taken,
    stage: str,
    closed: Collection[str],
    allowed: Collection[str],
) -> None:
    """Store a message under its party. Raise an error if it is late, repeated or not allowed."""
    party = message.party
    # A late message must not change a round whose result was sent already.
    if stage in closed:
        raise LateError(f"a message of {party!r} came when {stage} was over; it is left out")
    if party not in allowed:
        raise MalformedError(f"{party!r} has no part in {stage}; these have: {list(allowed)}")
    if party in messages:
        raise RepeatedError(f"{party!r} sent two messages in {stage}; the first one stands")
    messages[party] = message
