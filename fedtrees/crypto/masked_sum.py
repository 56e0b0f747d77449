"""Secure aggregation by masks (Bonawitz et al. 2017, figure 4): whoever opens the sums.

A machine with plain data in and out: `take_keys`, `roster`; `take_deal`, `boxes`; and for each sum
`take_array`, `survivors`, `take_shares`, `opened`. It learns the sum over those who stayed, and
nothing else.
"""

import hmac
import math
from collections.abc import Callable, Collection
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import shamir, sizes
from fedtrees.crypto.expansion import expand
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.mask_seeds import agreed_keys, bound_to, commitment, self_seed, tag, unlock
from fedtrees.crypto.masking_party import adds, check_index, check_roster
from fedtrees.sealing.errors import LateError, MalformedError, RepeatedError, WrongKeyError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Secret, Unprintable

Taken = TypeVar("Taken", Advertisement, Deal, MaskedArray, Unmasking)


class MaskedSum(Unprintable):
    """Whoever adds masked arrays and opens the sums."""

    def __init__(self, plan: MaskPlan, ledger: Ledger | None = None) -> None:
        self.plan = plan
        self.ledger = Ledger() if ledger is None else ledger
        self._keys: dict[str, Advertisement] = {}
        self._agreed = b""  # digest of the roster
        self._deals: dict[str, Deal] = {}
        self._arrays: dict[int, dict[str, MaskedArray]] = {}
        self._given: dict[int, dict[str, Unmasking]] = {}
        self._closed: set[str] = set()  # rounds that are over

    def __repr__(self) -> str:
        return f"<MaskedSum of {len(self.plan.parties)} parties, {self.plan.sums} sums>"

    def take_keys(self, message: Advertisement) -> None:
        """Take a message of round 0.

        Raises `LateError`: here and in the other rounds: if the round is over, or not open yet.
        Raises `RepeatedError` if the party has sent one in this round before.
        Raises `MalformedError` if the party has no part in the round, or the message is not as
        planned.
        """
        _place(self._keys, message, "advertising", self._closed, self.plan.parties)

    def take_deal(self, message: Deal) -> None:
        """Take a message of round 1; raises as in round 0."""
        self._need("advertising")
        others = {*self._keys} - {message.party}
        if {*message.boxes} != others or len(message.commitments) != self.plan.sums:
            raise MalformedError(
                f"{message.party!r} dealt boxes to {sorted(message.boxes)} and "
                f"{len(message.commitments)} commitments; planned are {sorted(others)} and "
                f"{self.plan.sums}"
            )
        if {len(one) for one in message.locks} != {sizes.lock(len(self._keys))} or (
            len(message.locks) != self.plan.sums
        ):
            raise MalformedError(
                f"{message.party!r} dealt {len(message.locks)} locks; planned are "
                f"{self.plan.sums} of {sizes.lock(len(self._keys))} bytes"
            )
        lengths = {len(box) for box in message.boxes.values()}
        if lengths != {sizes.box(self.plan)}:
            raise MalformedError(
                f"{message.party!r} dealt boxes of {sorted(lengths)} bytes; planned are "
                f"{sizes.box(self.plan)}"
            )
        _place(self._deals, message, "dealing", self._closed, self._keys)

    def take_array(self, message: MaskedArray) -> None:
        """Take a message of round 2; raises as in round 0."""
        self._need("dealing")
        check_index(self.plan, message.sum)
        found = self._arrays.setdefault(message.sum, {})
        shape = next((item.shape for item in found.values()), message.shape)
        if message.shape != shape or len(message.values) != 8 * math.prod(shape):
            raise MalformedError(
                f"{message.party!r} sent {len(message.values)} bytes of shape {message.shape} for "
                f"sum {message.sum}; an array of shape {shape} has {8 * math.prod(shape)}"
            )
        _place(found, message, _masking(message.sum), self._closed, self._deals)

    def take_shares(self, message: Unmasking) -> None:
        """Take a message of round 3; raises as in round 0."""
        self._need(_masking(message.sum))
        stayed = self._arrays[message.sum]
        gone = {*self._deals} - {*stayed}
        if ({*message.self_masks}, {*message.lock_keys}) != ({*stayed}, gone):
            raise MalformedError(
                f"{message.party!r} gave shares of the self-masks of {sorted(message.self_masks)} "
                f"and the locks of {sorted(message.lock_keys)}; sum {message.sum} needs those of "
                f"{sorted(stayed)} and {sorted(gone)}"
            )
        found = self._given.setdefault(message.sum, {})
        _place(found, message, _opening(message.sum), self._closed, stayed)

    def roster(self) -> list[Advertisement]:
        """End round 0: return the keys that go to everybody who sent some."""
        found = [self._keys[name] for name in self.plan.parties if name in self._keys]
        check_roster(self.plan, found)
        self._closed.add("advertising")
        self._agreed = agreed_keys(self.plan, found)
        return found

    def boxes(self) -> dict[str, dict[str, bytes]]:
        """End round 1: return the boxes for each of those who dealt, by receiver and sender."""
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
        """End round 2 of a sum: return whose arrays came, for each of them to hear.

        What comes later is not added, and is not unmasked.
        """
        self._need("dealing")
        arrays = self._arrays.get(index, {})
        self.plan.need(arrays, f"sent their array for sum {index}")
        self._closed.add(_masking(index))
        return tuple(name for name in self.plan.parties if name in arrays)

    def opened(self, index: int, told: bytes = b"") -> NDArray[np.int64]:
        """End round 3: return the sum of the survivors' arrays, int64.

        `told`: A digest of all that they were told, as they have it.

        Raises `LateError`: before the survivors stand, or when the sum was opened before.
        Raises `TooFewPartiesError` if fewer than the threshold gave shares.
        Raises `WrongKeyError` if shares tell another secret than was advertised: one of them is
        wrong; or an array does not bear out its tag.
        """
        self._need(_masking(index))
        given = self._given.get(index, {})
        if _opening(index) in self._closed:
            raise LateError(f"sum {index} was opened before, and its arrays are gone")
        self.plan.need(given, f"helped to open sum {index}")
        arrays = self._arrays[index]
        first = next(iter(arrays.values()))
        total = np.zeros(len(first.values) // 8, dtype=np.uint64)
        for item in arrays.values():
            total += np.frombuffer(item.values, "<u8")
        gone = [name for name in self._deals if name not in arrays]
        with self.ledger.timed("masks expanded", len(arrays) * (1 + len(gone))):
            for name in arrays:
                total -= self._self_mask(index, name, total.size, told)
            for name in gone:
                self._take_off_pairs(index, name, total, told)
        self._closed.add(_opening(index))
        self._arrays[index] = {}
        self._given[index] = {}
        return total.view(np.int64).reshape(first.shape)

    def _self_mask(self, index: int, name: str, size: int, told: bytes) -> NDArray[np.uint64]:
        seed = self._combined(index, name, lambda item: item.self_masks[name])
        if commitment(seed) != self._deals[name].commitments[index]:
            raise WrongKeyError(self._wrong(index, name, "self-mask"))
        item = self._arrays[index][name]
        among = [party for party in self.plan.parties if party in self._deals]
        made = tag(seed, self._agreed, among, index, item.shape, item.values, told)
        if not hmac.compare_digest(made, item.tag):
            raise WrongKeyError(
                f"the array of {name!r} in sum {index} does not bear out its tag: it was changed "
                "on the way, belongs to another sum, was masked for other keys or parties, or its "
                "owner was told something else than the others; the sum stays closed. Start anew"
            )
        return expand(self_seed(seed), size)

    def _take_off_pairs(
        self, index: int, name: str, total: NDArray[np.uint64], told: bytes
    ) -> None:
        """Take the masks that survivors share with a party that is gone off the sum, in place."""
        key = self._combined(index, name, lambda item: item.lock_keys[name])
        try:
            seeds = unlock(key, self._deals[name].locks[index], self._agreed)
        except WrongKeyError:
            raise WrongKeyError(self._wrong(index, name, "lock")) from None
        others = [other for other in self.plan.parties if other in self._keys and other != name]
        for other, seed in zip(others, seeds, strict=True):
            if other not in self._arrays[index]:
                continue
            mask = expand(bound_to(seed, told), total.size)
            if adds(other, name):
                total -= mask
            else:
                total += mask

    def _combined(self, index: int, name: str, of: Callable[[Unmasking], bytes]) -> Secret[bytes]:
        given = self._given[index]
        shares = {self.plan.point(helper): of(item) for helper, item in given.items()}
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
    found: dict[str, Taken],
    message: Taken,
    stage: str,
    closed: Collection[str],
    allowed: Collection[str],
) -> None:
    """Enter a message under its party."""
    party = message.party
    if stage in closed:
        raise LateError(f"a message of {party!r} came when {stage} was over; it is left out")
    if party not in allowed:
        raise MalformedError(f"{party!r} has no part in {stage}; these have: {list(allowed)}")
    if party in found:
        raise RepeatedError(f"{party!r} sent two messages in {stage}; the first one stands")
    found[party] = message
