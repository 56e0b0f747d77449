"""Secure aggregation by masks (Bonawitz et al. 2017, figure 4): whoever has an array to be added.

A machine with plain data in and out. Rounds: `advertise`, `deal`, `collect`, and for each sum
`mask` and `unmask`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.crypto import shamir, sizes
from fedtrees.crypto.agreement import KEY_BYTES, agree, draw_key, public_of
from fedtrees.crypto.expansion import expand
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.mask_seeds import (
    agreed_keys,
    bound_to,
    box,
    close,
    commitment,
    lock,
    opened,
    pair_key,
    pair_seed,
    self_seed,
    tag,
)
from fedtrees.crypto.randomness import SYSTEM, Randomness
from fedtrees.crypto.survivor_sets import SurvivorSets
from fedtrees.sealing.errors import (
    ExposureError,
    LateError,
    MalformedError,
    PlaintextOverflowError,
    RepeatedError,
    WrongKeyError,
)
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Secret, Unprintable


class MaskingParty(Unprintable):
    """One party with arrays to be added.

    `name`: One of the plan's parties.
    `opened`: SurvivorSets, optional. Of the sums it knows to be opened, those of other plans among
    them.
    """

    def __init__(
        self,
        plan: MaskPlan,
        name: str,
        ledger: Ledger | None = None,
        randomness: Randomness = SYSTEM,
        opened: SurvivorSets | None = None,
    ) -> None:
        if name not in plan.parties:
            raise UsageError(f"{name!r} is none of the plan's parties {list(plan.parties)}")
        self.plan, self.name = plan, name
        self.ledger = Ledger() if ledger is None else ledger
        self._randomness = randomness
        self._opened = SurvivorSets() if opened is None else opened
        self._key = draw_key(randomness)
        self._lock_keys = [draw_key(randomness) for _ in range(plan.sums)]
        self._seeds = [draw_key(randomness) for _ in range(plan.sums)]
        self._agreed: dict[str, Secret[bytes]] = {}  # by the other party, until boxes are open
        self._pairs: list[dict[str, Secret[bytes]]] = []  # seeds of each sum
        self._advertised: Advertisement | None = None
        self._roster: dict[str, Advertisement] = {}
        self._keys = b""  # digest of the roster
        self._kept = Secret(b"")  # its shares of its own secrets
        self._shares: dict[str, Secret[bytes]] = {}  # of everybody's secrets, by owner
        self._masked: set[int] = set()
        self._unmasked: dict[int, Unmasking] = {}

    def __repr__(self) -> str:
        return f"<MaskingParty {self.name!r}: {len(self._masked)} of {self.plan.sums} sums masked>"

    def advertise(self) -> Advertisement:
        """Round 0: tell the public key."""
        if self._advertised is None:
            self._advertised = Advertisement(self.name, public_of(self._key))
        return self._advertised

    def deal(self, roster: Sequence[Advertisement]) -> Deal:
        """Round 1: share the secrets among those who advertised.

        Raises `LateError`, `RepeatedError` if this party is not among them, or has dealt before.
        Raises `TooFewPartiesError` if they are fewer than the threshold.
        Raises `MalformedError` if an advertisement is not as planned, or two name the same key.
        Raises `WrongKeyError` if this party's own keys came back as others.
        """
        if self._roster:
            raise RepeatedError(f"{self.name!r} has dealt its shares before; make a new party")
        check_roster(self.plan, roster)
        known = {item.party: item for item in roster}
        if self.name not in known:
            raise LateError(f"the keys of {self.name!r} are not among those that were advertised")
        if known[self.name] != self.advertise():
            raise WrongKeyError(f"the keys of {self.name!r} were changed on the way; start anew")
        self._agreed = {
            name: agree(self._key, known[name].key)
            for name in self.plan.parties
            if name in known and name != self.name
        }
        self._roster, self._keys = known, agreed_keys(self.plan, roster)
        self._key = Secret(b"")  # it would make again what is erased below, and later
        points = [self.plan.point(name) for name in known]
        texts: dict[int, list[bytes]] = {x: [] for x in points}
        with self.ledger.timed("shares", 2 * self.plan.sums * len(points)):
            for secrets in zip(self._seeds, self._lock_keys, strict=True):
                for secret in secrets:
                    dealt = shamir.share(secret, self.plan.threshold, points, self._randomness)
                    for x, text in dealt.items():
                        texts[x].append(text)
        self._kept = Secret(b"".join(texts[self.plan.point(self.name)]))
        boxes = {
            name: close(
                box(self.plan, secret, self.name, name),
                b"".join(texts[self.plan.point(name)]),
                self._keys,
            )
            for name, secret in self._agreed.items()
        }
        return Deal(self.name, boxes, tuple(map(commitment, self._seeds)), self._locks())

    def _locks(self) -> tuple[bytes, ...]:
        """Make the seeds that it shares with each of the others, and lock those of each sum."""
        keys = {
            name: pair_key(self.plan, secret, (self.name, name))
            for name, secret in self._agreed.items()
        }
        self._pairs = [
            {name: pair_seed(key, i) for name, key in keys.items()} for i in range(self.plan.sums)
        ]
        return tuple(
            lock(key, list(seeds.values()), self._keys)
            for key, seeds in zip(self._lock_keys, self._pairs, strict=True)
        )

    def collect(self, boxes: Mapping[str, bytes]) -> None:
        """Open the boxes of those who dealt; they and this party are who masks.

        `boxes`: By sender.

        Raises `LateError`, `RepeatedError`: before this party has dealt; if it has collected
        before.
        Raises `TooFewPartiesError` if those who dealt, this party among them, are fewer than the
        threshold.
        Raises `WrongKeyError` if a box does not open: it was changed, is for somebody else, or its
        sender was told other keys of anybody.
        Raises `MalformedError` if a sender did not advertise, or a box has the wrong length.
        """
        if not self._roster:
            raise LateError(f"{self.name!r} has dealt no shares yet; boxes come after that")
        if self._shares:
            raise RepeatedError(f"{self.name!r} has collected its boxes before")
        strangers = sorted({*boxes} - ({*self._roster} - {self.name}))
        if strangers:
            raise MalformedError(f"boxes from {strangers}, who did not advertise keys")
        self.plan.need([self.name, *boxes], "dealt shares")
        found = {self.name: self._kept}
        for sender, closed in boxes.items():
            try:
                cipher = box(self.plan, self._agreed[sender], sender, self.name)
                text = opened(cipher, closed, self._keys)
            except WrongKeyError:
                raise WrongKeyError(
                    f"the box from {sender!r} to {self.name!r} does not open: it was changed on "
                    "the way, made for another key, or the two were told different keys"
                ) from None
            if len(closed) != sizes.box(self.plan):
                raise MalformedError(
                    f"the box from {sender!r} has {len(closed)} bytes; "
                    f"{2 * self.plan.sums} shares were planned"
                )
            found[sender] = Secret(text)
        self._shares, self._kept = found, Secret(b"")
        self._agreed = {}  # it would make the seeds of sums that are over again

    def mask(self, index: int, array: NDArray[np.int64], told: bytes = b"") -> MaskedArray:
        """Round 2: hide an array; masks of those who share them cancel in the sum.

        `index`: Which of the planned sums.
        `array`: int64 array. So small that no sum of all parties' can leave an int64.
        `told`: A digest of all that this party was told; the sum opens among those who have the
        same.

        Raises `LateError`: before the boxes were collected.
        Raises `RepeatedError` if something was masked for this sum before: the difference would be
        in the open.
        Raises `UsageError` if the array is not of int64, or no such sum is planned.
        Raises `PlaintextOverflowError` if a number is beyond 2^63 - 1 over the number of parties.
        """
        self._check(index)
        check_numbers(self.plan, array)
        if index in self._masked:
            raise RepeatedError(
                f"{self.name!r} has masked an array for sum {index} before; two under one mask "
                "tell their difference. Plan another sum"
            )
        self._masked.add(index)
        total = np.ascontiguousarray(array).reshape(-1).view(np.uint64).copy()
        pairs, self._pairs[index] = self._pairs[index], {}
        with self.ledger.timed("masks expanded", len(self._shares)):
            total += expand(self_seed(self._seeds[index]), total.size)
            for name in self._shares:
                if name != self.name:
                    mask = expand(bound_to(pairs[name], told), total.size)
                    if adds(self.name, name):
                        total += mask
                    else:
                        total -= mask
        values, seed = total.astype("<u8").tobytes(), self._seeds[index]
        among = [name for name in self.plan.parties if name in self._shares]
        made = tag(seed, self._keys, among, index, array.shape, values, told)
        return MaskedArray(self.name, index, array.shape, values, made)

    def unmask(self, index: int, survivors: Sequence[str]) -> Unmasking:
        """Round 3: give the shares that open the sum of the survivors.

        Of each party it gives a share of the self-mask if it survived, and of the key to its lock
        if it did not, never both: with both, an array could be read. Asked again for the same
        survivors it gives the same shares.

        `survivors`: Whose arrays are in the sum.

        Raises `LateError`: before the boxes were collected, or if this party's array is not in the
        sum.
        Raises `ExposureError` if it gave shares for other survivors of the same sum, or the sum and
        others that it knows of would tell one party's array (`SurvivorSets`).
        Raises `TooFewPartiesError` if the survivors are fewer than the threshold.
        Raises `MalformedError` if a survivor never dealt, or is named twice.
        """
        self._check(index)
        names = set(survivors)
        if len(names) != len(survivors) or not names <= {*self._shares}:
            raise MalformedError(
                f"survivors {list(survivors)} of sum {index}; those who dealt shares are "
                f"{list(self._shares)}"
            )
        self.plan.need(names, f"sent their array for sum {index}")
        if index in self._unmasked:
            if {*self._unmasked[index].self_masks} != names:
                raise ExposureError(
                    f"{self.name!r} has helped to open sum {index} for other survivors; shares "
                    "for these as well could open what a single party sent. Plan another sum"
                )
            return self._unmasked[index]
        if self.name not in names or index not in self._masked:
            raise LateError(
                f"the array of {self.name!r} is not in sum {index}; only those in it open it"
            )
        self._opened.admit(names)
        size = shamir.SHARE_BYTES
        given: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
        for name, text in self._shares.items():
            which = 0 if name in names else 1
            begin = (2 * index + which) * size
            given[which][name] = text.reveal()[begin : begin + size]
        self._unmasked[index] = Unmasking(self.name, index, *given)
        return self._unmasked[index]

    def hear(self, survivors: Sequence[str]) -> None:
        """Note that others open the sum of these parties, which this one is not among."""
        self._opened.note(survivors)

    def _check(self, index: int) -> None:
        if not self._shares:
            raise LateError(f"{self.name!r} has not collected the others' shares yet")
        check_index(self.plan, index)


def adds(party: str, other: str) -> bool:
    """Tell whether a party adds the mask that it shares with another, who then subtracts it."""
    return party > other


def check_index(plan: MaskPlan, index: int) -> None:
    """Raise UsageError unless a sum is one of those planned."""
    if not 0 <= index < plan.sums:
        raise UsageError(f"sum {index}; {plan.sums} are planned, from 0: plan more, or start anew")


def check_numbers(plan: MaskPlan, array: NDArray[np.int64]) -> None:
    """Raise unless an array is of int64, and sums of so many parties' stay there."""
    if array.dtype != np.int64:
        raise UsageError(f"masks are added to int64 arrays; got {array.dtype}: encode it first")
    limit = (2**63 - 1) // len(plan.parties)
    if array.size and max(int(array.max()), -int(array.min())) > limit:
        raise PlaintextOverflowError(
            f"a number beyond +-{limit} is to be summed over {len(plan.parties)} parties, and the "
            "sum might not fit an int64: take fewer binary places, or clip"
        )


def check_roster(plan: MaskPlan, roster: Sequence[Advertisement]) -> None:
    """Raise unless enough parties of the plan advertised, each once, with keys of its own."""
    names = [item.party for item in roster]
    if not {*names} <= {*plan.parties} or len({*names}) != len(names):
        raise MalformedError(f"keys from {names}; each of {list(plan.parties)} advertises once")
    for item in roster:
        if len(item.key) != KEY_BYTES:
            raise MalformedError(
                f"{item.party!r} advertised a key of {len(item.key)} bytes; it has {KEY_BYTES}"
            )
    if len({item.key for item in roster}) != len(roster):
        raise MalformedError(f"two of the keys that {names} advertised are the same")
    plan.need(names, "advertised keys")
