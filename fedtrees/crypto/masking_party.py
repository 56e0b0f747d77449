"""Secure aggregation by masks (Bonawitz et al. 2017, figure 4): a party with arrays to be added.

The class is a state machine with plain data as input and output. Its rounds are `advertise`,
`deal`, `collect`, and for each sum `mask` and `unmask`.

The module also stores the sets of survivors whose sums were opened, and refuses sums that would
expose the reply of one party (unless such sums are allowed). All sums of a run are sums over the
same rows, and depend on one another: the sum of a node is that of its children, the gradients of
all classes cancel, constant hessians count the same rows in every tree, and label sums are the
totals of the first root. The module therefore treats all sums that a party helped to open as sums
of the same quantity. Two sums whose survivors differ by one party expose the reply of this party by
subtraction. Three sums, over a and b, b and c, a and c, expose all replies (So et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.crypto import mask_messages, shamir
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_keys import (
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
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskedArray, MaskPlan, Unmasking
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    SYSTEM,
    ExposureError,
    LateError,
    MalformedError,
    PlaintextOverflowError,
    Randomness,
    RepeatedError,
    Secret,
    SecretHolder,
    WrongKeyError,
    agree_on_secret,
    draw_key,
    expand_mask,
    public_key_of,
)

# Fractions make the elimination exact.
_Row = Mapping[str, Fraction]


class SurvivorSets:
    """Sets of survivors whose sums one party knows to be opened.

    With `exposing` every set is admitted, even if the sums together expose a reply.

    >>> sets = SurvivorSets(exposing=True)
    >>> sets.admit(["a", "b"])
    >>> sets.admit(["a", "b", "c"])
    >>> sets.told
    ['c']
    """

    def __init__(self, *, exposing: bool = False) -> None:
        self._exposing = exposing
        self._known: dict[frozenset[str], None] = {}  # in the order of the sums
        # Basis of the span of the sets in reduced row echelon form, by pivot.
        self._rows: dict[str, _Row] = {}

    def admit(self, survivors: Iterable[str]) -> None:
        """Add a set whose sum is about to be opened.

        Raises
        ------
        ExposureError
            If a linear combination of this sum and earlier ones is the reply of one party, unless
            `exposing`. The set is not added then.
        """
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            exposed = told_alone(_spanned(self._rows, names))
            if exposed:
                earlier = (
                    "; ".join(", ".join(sorted(set_names)) for set_names in self._known) or "nobody"
                )
                raise ExposureError(
                    f"the sum over {', '.join(sorted(names))}, with those opened before over "
                    f"{earlier}, would tell what {', '.join(exposed)} sent alone. Wait for who is "
                    "missing, or allow it: exposing=true. To start anew with fewer on the same "
                    "rows tells as much"
                )
        self.note(names)

    def note(self, survivors: Iterable[str]) -> None:
        """Add a set whose sum was opened by further parties."""
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            self._rows = _spanned(self._rows, names)
        self._known[names] = None

    @property
    def told(self) -> list[str]:
        """Parties whose reply is a linear combination of the opened sums."""
        rows: dict[str, _Row] = {}
        for names in self._known:
            rows = _spanned(rows, names)
        return told_alone(rows)


def told_alone(rows: Mapping[str, _Row]) -> list[str]:
    """Return the parties whose unit vector is in a span: the pivots of rows with a single entry.

    A vector of the span is the sum of its values at the pivots times the rows. A unit vector at a
    pivot is therefore the row of this pivot. A unit vector at another position would be zero.
    """
    return sorted(pivot for pivot, row in rows.items() if len(row) == 1)


def _spanned(rows: Mapping[str, _Row], names: frozenset[str]) -> dict[str, _Row]:
    """Add the indicator vector of a set to a basis in reduced row echelon form."""
    new: _Row = dict.fromkeys(sorted(names), Fraction(1))
    for pivot, row in rows.items():
        # Eliminate the pivot of this row from the new vector.
        new = _less(new, new.get(pivot, Fraction(0)), row)
    if not new:
        return dict(rows)
    # The vector is linearly independent: make it a row with the pivot `first`.
    first = min(new)
    lead = new[first]
    new = {name: value / lead for name, value in new.items()}
    # Eliminate the new pivot from all rows.
    reduced = {pivot: _less(row, row.get(first, Fraction(0)), new) for pivot, row in rows.items()}
    return {**reduced, first: new}


def _less(row: _Row, factor: Fraction, other: _Row) -> dict[str, Fraction]:
    """Return ``row - factor * other`` without zeros."""
    difference = dict(row)
    if factor:
        for name, value in other.items():
            difference[name] = difference.get(name, Fraction(0)) - factor * value
    return {name: value for name, value in difference.items() if value}


class MaskingParty(SecretHolder):
    """One party with arrays to be added.

    Parameters
    ----------
    plan : MaskPlan
        Public parameters of the batch.
    name : str
        One of the plan's parties.
    ledger : Ledger, optional
        Counts the operations.
    randomness : Randomness
        Source of keys and shares.
    opened : SurvivorSets, optional
        Sets of survivors whose sums the party knows to be opened, also of other plans.
    """

    def __init__(
        self,
        plan: MaskPlan,
        name: str,
        ledger: OperationCounter | None = None,
        randomness: Randomness = SYSTEM,
        opened: SurvivorSets | None = None,
    ) -> None:
        if name not in plan.parties:
            raise UsageError(f"{name!r} is none of the plan's parties {list(plan.parties)}")
        self.plan, self.name = plan, name
        self.ledger = OperationCounter() if ledger is None else ledger
        self._randomness = randomness
        self._opened = SurvivorSets() if opened is None else opened
        self._key = draw_key(randomness)
        # Separate secrets for each sum: opening one sum does not reveal the masks of another.
        self._lock_keys = [draw_key(randomness) for _ in range(plan.sums)]
        self._seeds = [draw_key(randomness) for _ in range(plan.sums)]
        self._agreed: dict[str, Secret[bytes]] = {}  # by peer, until the boxes are open
        self._pairs: list[dict[str, Secret[bytes]]] = []  # mask seeds by peer, for each sum
        self._advertised: Advertisement | None = None
        self._roster: dict[str, Advertisement] = {}
        self._keys = b""  # digest of the roster
        self._kept = Secret(b"")  # the party's shares of its secrets
        self._shares: dict[str, Secret[bytes]] = {}  # shares of all parties' secrets, by owner
        self._masked: set[int] = set()
        self._unmasked: dict[int, Unmasking] = {}

    def __repr__(self) -> str:
        return f"<MaskingParty {self.name!r}: {len(self._masked)} of {self.plan.sums} sums masked>"

    def advertise(self) -> Advertisement:
        """Round 0: return the public key."""
        if self._advertised is None:
            self._advertised = Advertisement(self.name, public_key_of(self._key))
        return self._advertised

    def deal(self, roster: Sequence[Advertisement]) -> Deal:
        """Round 1: deal shares of the secrets to the parties that advertised keys.

        Raises
        ------
        LateError
            If this party's key is not in the roster.
        RepeatedError
            If the party has dealt before.
        TooFewPartiesError
            If the roster is smaller than the threshold.
        MalformedError
            If an advertisement is not as planned, or two parties have the same key.
        WrongKeyError
            If the roster contains another key for this party.
        """
        if self._roster:
            raise RepeatedError(f"{self.name!r} has dealt its shares before; make a new party")
        check_roster(self.plan, roster)
        advertised = {item.party: item for item in roster}
        if self.name not in advertised:
            raise LateError(f"the keys of {self.name!r} are not among those that were advertised")
        if advertised[self.name] != self.advertise():
            raise WrongKeyError(f"the keys of {self.name!r} were changed on the way; start anew")
        self._agreed = {
            name: agree_on_secret(self._key, advertised[name].key)
            for name in self.plan.parties
            if name in advertised and name != self.name
        }
        self._roster, self._keys = advertised, agreed_keys(self.plan, roster)
        self._key = Secret(b"")  # otherwise it could recompute seeds after their deletion
        points = [self.plan.point(name) for name in advertised]
        # Shares of the self-mask and of the lock key alternate, sum by sum (see `unmask`).
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
        """Derive the seeds that the party shares with each peer, and lock those of each sum."""
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
        """End of round 1: open the boxes of the parties that dealt shares.

        Masks are exchanged among these parties and this one.

        Parameters
        ----------
        boxes : mapping of str to bytes
            Encrypted shares by sender.

        Raises
        ------
        LateError
            If this party has not dealt shares yet.
        RepeatedError
            If it has collected boxes before.
        TooFewPartiesError
            If fewer parties than the threshold dealt shares, this party included.
        WrongKeyError
            If a box cannot be opened: it was changed, is for another party, or its sender received
            another roster.
        MalformedError
            If a sender did not advertise a key, or a box has a wrong length.
        """
        if not self._roster:
            raise LateError(f"{self.name!r} has dealt no shares yet; boxes come after that")
        if self._shares:
            raise RepeatedError(f"{self.name!r} has collected its boxes before")
        strangers = sorted({*boxes} - ({*self._roster} - {self.name}))
        if strangers:
            raise MalformedError(f"boxes from {strangers}, who did not advertise keys")
        self.plan.need([self.name, *boxes], "dealt shares")
        shares = {self.name: self._kept}
        for sender, closed in boxes.items():
            try:
                # The box authenticates the roster: a sender with another roster cannot create it.
                cipher = box(self.plan, self._agreed[sender], sender, self.name)
                text = opened(cipher, closed, self._keys)
            except WrongKeyError:
                raise WrongKeyError(
                    f"the box from {sender!r} to {self.name!r} does not open: it was changed on "
                    "the way, made for another key, or the two were told different keys"
                ) from None
            if len(closed) != mask_messages.box(self.plan):
                raise MalformedError(
                    f"the box from {sender!r} has {len(closed)} bytes; "
                    f"{2 * self.plan.sums} shares were planned"
                )
            shares[sender] = Secret(text)
        self._shares, self._kept = shares, Secret(b"")
        self._agreed = {}  # otherwise seeds of earlier sums could be recomputed

    def mask(
        self, index: int, array: NDArray[np.int64], history_digest: bytes = b""
    ) -> MaskedArray:
        """Round 2: mask an array. Masks between two parties cancel in the sum.

        `array` is int64, and so small that the sum over all parties fits into int64. The last
        argument is a digest of all messages that this party received. The sum can only be opened
        over parties with the same digest.

        Raises
        ------
        LateError
            If the boxes were not collected yet.
        RepeatedError
            If an array was masked for this sum before, because the difference of the two would be
            exposed.
        UsageError
            If the array is not int64, or the sum is not planned.
        PlaintextOverflowError
            If a number exceeds 2^63 - 1 divided by the number of parties.
        """
        self._check(index)
        check_numbers(self.plan, array)
        if index in self._masked:
            raise RepeatedError(
                f"{self.name!r} has masked an array for sum {index} before; two under one mask "
                "tell their difference. Plan another sum"
            )
        self._masked.add(index)
        # Signed numbers are reinterpreted as unsigned ones. Their addition modulo 2^64 is the same.
        total = np.ascontiguousarray(array).reshape(-1).view(np.uint64).copy()
        # The seeds are deleted before use, so that the masks cannot be computed twice.
        pairs, self._pairs[index] = self._pairs[index], {}
        with self.ledger.timed("masks expanded", len(self._shares)):
            total += expand_mask(self_seed(self._seeds[index]), total.size)
            for name in self._shares:
                if name != self.name:
                    mask = expand_mask(bound_to(pairs[name], history_digest), total.size)
                    if adds(self.name, name):
                        total += mask
                    else:
                        total -= mask
        values, seed = total.astype("<u8").tobytes(), self._seeds[index]
        among = [name for name in self.plan.parties if name in self._shares]
        array_tag = tag(seed, self._keys, among, index, array.shape, values, history_digest)
        return MaskedArray(self.name, index, array.shape, values, array_tag)

    def unmask(self, index: int, survivors: Sequence[str]) -> Unmasking:
        """Round 3: return the shares that open the sum of the survivors.

        For each party, the result contains a share of its self-mask if it survived, and a share of
        the key to its lock otherwise, but never both, because both would expose the array. Repeated
        calls with the same survivors return the same shares.

        Parameters
        ----------
        index : int
            Number of the sum.
        survivors : sequence of str
            Parties whose arrays are in the sum.

        Raises
        ------
        LateError
            If the boxes were not collected yet, or if this party's array is not in the sum.
        ExposureError
            If the party gave shares for other survivors of the same sum, or if this sum and earlier
            ones would expose the array of one party (`SurvivorSets`).
        TooFewPartiesError
            If there are fewer survivors than the threshold.
        MalformedError
            If a survivor never dealt shares, or is named twice.
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
        # Refuse before any share leaves the party.
        self._opened.admit(names)
        size = shamir.SHARE_BYTES
        shares: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}
        for name, text in self._shares.items():
            kind = 0 if name in names else 1
            # Position in the text of `deal`: self-mask first, then lock key.
            begin = (2 * index + kind) * size
            shares[kind][name] = text.reveal()[begin : begin + size]
        self._unmasked[index] = Unmasking(self.name, index, *shares)
        return self._unmasked[index]

    def hear(self, survivors: Sequence[str]) -> None:
        """Record that the sum of these parties, without this one, is opened."""
        self._opened.note(survivors)

    def _check(self, index: int) -> None:
        if not self._shares:
            raise LateError(f"{self.name!r} has not collected the others' shares yet")
        check_index(self.plan, index)


def adds(party: str, other: str) -> bool:
    """Return whether a party adds the mask that it shares with `other`, which subtracts it."""
    return party > other


def check_index(plan: MaskPlan, index: int) -> None:
    """Raise `UsageError` unless the sum is planned."""
    if not 0 <= index < plan.sums:
        raise UsageError(f"sum {index}; {plan.sums} are planned, from 0: plan more, or start anew")


def check_numbers(plan: MaskPlan, array: NDArray[np.int64]) -> None:
    """Raise an error unless an array is int64, and its sum over all parties fits into int64."""
    if array.dtype != np.int64:
        raise UsageError(f"masks are added to int64 arrays; got {array.dtype}: encode it first")
    limit = (2**63 - 1) // len(plan.parties)
    if array.size and max(int(array.max()), -int(array.min())) > limit:
        raise PlaintextOverflowError(
            f"a number beyond +-{limit} is to be summed over {len(plan.parties)} parties, and the "
            "sum might not fit an int64: take fewer binary places, or clip"
        )


def check_roster(plan: MaskPlan, roster: Sequence[Advertisement]) -> None:
    """Raise an error unless enough parties advertised, each once and with a different key."""
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
