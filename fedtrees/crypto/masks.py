"""Secure aggregation by masks (Bonawitz et al. 2017, figure 4): both sides of one batch of sums.

`MaskingParty` has arrays to be added. Its rounds are `advertise`, `deal`, `collect`, and for each
sum `mask` and `unmask`. `MaskedSum` is the server, which opens only the sums over the parties that
stayed: `take_keys`, `roster`, `take_deal`, `boxes`, and for each sum `take_array`, `survivors`,
`take_shares` and `open_sum`. Both are state machines that exchange bytes. Messages contain no
names, because the plan and the earlier rounds determine which part belongs to which party.

`IdealMaskingParty` and `IdealMaskedSum` have the same methods and compute no cryptography.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.crypto import shamir
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.mask_keys import (
    COMMITMENT_BYTES,
    TAG_BYTES,
    MaskPlan,
    bind_to_history,
    box_cipher,
    commitment,
    decrypt_once,
    encrypt_once,
    lock,
    pair_key,
    pair_seed,
    roster_digest,
    self_seed,
    tag,
    unlock,
)
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
from fedtrees.crypto.survivors import SurvivorSets

T = TypeVar("T")


class MaskingParty(SecretHolder):
    """One party with arrays to be added.

    Parameters
    ----------
    plan : MaskPlan
        Public parameters of the batch.
    name : str
        One of the plan's parties.
    ledger : OperationCounter, optional
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
        self._public_key = public_key_of(self._key)
        # Separate secrets for each sum: opening one sum does not reveal the masks of another.
        self._lock_keys = [draw_key(randomness) for _ in range(plan.sums)]
        self._seeds = [draw_key(randomness) for _ in range(plan.sums)]
        self._agreed: dict[str, Secret[bytes]] = {}  # by peer, until the boxes are open
        self._pairs: list[dict[str, Secret[bytes]]] = []  # mask seeds by peer, for each sum
        self._roster: dict[str, bytes] = {}  # public keys by party
        self._keys = b""  # digest of the roster
        self._own_shares = Secret(b"")  # the party's shares of its secrets
        self._shares: dict[str, Secret[bytes]] = {}  # shares of all parties' secrets, by owner
        self._masked: set[int] = set()
        self._unmasked: dict[int, tuple[set[str], bytes]] = {}  # survivors, and the shares for them

    def __repr__(self) -> str:
        return f"<MaskingParty {self.name!r}: {len(self._masked)} of {self.plan.sums} sums masked>"

    def advertise(self) -> bytes:
        """Round 0: return the public key."""
        return self._public_key

    def deal(self, keys: bytes, names: Sequence[str]) -> bytes:
        """Round 1: deal shares of the secrets to the parties that advertised keys.

        Parameters
        ----------
        keys : bytes
            Public keys of the named parties, one after the other.
        names : sequence of str
            Parties that advertised keys.

        Returns
        -------
        dealt : bytes
            Each other party's shares in a box that only this party can open, in the order of the
            plan. Then for each sum a commitment to the seed of the self-mask, which reveals a wrong
            share, and for each sum a lock: the encrypted seeds of the masks that the party shares
            with the others (`fedtrees.crypto.mask_keys.lock`).

        Raises
        ------
        LateError
            If this party's key is not in the roster.
        RepeatedError
            If the party has dealt before.
        TooFewPartiesError
            If the roster is smaller than the threshold.
        MalformedError
            If the keys have a wrong length, or two parties have the same name or key.
        WrongKeyError
            If the roster contains another key for this party.
        """
        if self._roster:
            raise RepeatedError(f"{self.name!r} has dealt its shares before; create a new party")
        advertised = check_roster(self.plan, keys, names)
        if self.name not in advertised:
            raise LateError(f"the keys of {self.name!r} are not among the advertised keys")
        if advertised[self.name] != self._public_key:
            raise WrongKeyError(
                f"the keys of {self.name!r} were changed on the way; start a new run"
            )
        self._agreed = {
            name: agree_on_secret(self._key, advertised[name])
            for name in self.plan.parties
            if name in advertised and name != self.name
        }
        self._roster, self._keys = advertised, roster_digest(self.plan, advertised)
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
        self._own_shares = Secret(b"".join(texts[self.plan.point(self.name)]))
        boxes = [
            encrypt_once(
                box_cipher(self.plan, secret, self.name, name),
                b"".join(texts[self.plan.point(name)]),
                self._keys,
            )
            for name, secret in self._agreed.items()
        ]
        return b"".join([*boxes, *map(commitment, self._seeds), *self._locks()])

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

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1: open the boxes of the parties that dealt shares.

        Masks are exchanged among these parties and this one.

        Parameters
        ----------
        boxes : bytes
            Encrypted shares from the named senders, one box after the other.
        senders : sequence of str
            Parties that dealt shares, without this one.

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
            If a sender did not advertise a key, or the boxes have a wrong length.
        """
        if not self._roster:
            raise LateError(f"{self.name!r} has dealt no shares yet; boxes come after that")
        if self._shares:
            raise RepeatedError(f"{self.name!r} has collected its boxes before")
        strangers = sorted({*senders} - ({*self._roster} - {self.name}))
        if strangers:
            raise MalformedError(f"boxes from {strangers}, which did not advertise keys")
        self.plan.need([self.name, *senders], "dealt shares")
        shares = {self.name: self._own_shares}
        for sender, closed in split_named(boxes, senders, self.plan.box_bytes, "boxes").items():
            try:
                # The box authenticates the roster: a sender with another roster cannot create it.
                cipher = box_cipher(self.plan, self._agreed[sender], sender, self.name)
                text = decrypt_once(cipher, closed, self._keys)
            except WrongKeyError:
                raise WrongKeyError(
                    f"the box from {sender!r} to {self.name!r} does not open: it was changed on "
                    "the way, made for another key, or the two parties received different keys"
                ) from None
            shares[sender] = Secret(text)
        # Messages contain no names, so that shares are sent in the order of the plan.
        self._shares = {name: shares[name] for name in self.plan.parties if name in shares}
        self._own_shares = Secret(b"")
        self._agreed = {}  # otherwise seeds of earlier sums could be recomputed

    def mask(self, index: int, array: NDArray[np.int64], history_digest: bytes = b"") -> bytes:
        """Round 2: mask an array. Masks between two parties cancel in the sum.

        Parameters
        ----------
        index : int
            Number of the sum in its batch.
        array : int64 array
            So small that the sum over all parties fits into int64.
        history_digest : bytes
            Digest of all messages that this party received. The sum can only be opened over parties
            with the same digest.

        Returns
        -------
        masked : bytes
            Numbers modulo 2^64, eight bytes each, little-endian, then a tag of 16 bytes. The tag
            authenticates the array, the keys of all parties, and the parties whose masks are on
            the array. A sum is not opened if an array was changed, belongs to another sum, or was
            masked among other parties.

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
                f"{self.name!r} has already masked an array for sum {index}; two arrays "
                "under one mask would reveal their difference. Plan another sum"
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
                    mask = expand_mask(bind_to_history(pairs[name], history_digest), total.size)
                    if adds(self.name, name):
                        total += mask
                    else:
                        total -= mask
        values, seed = total.astype("<u8").tobytes(), self._seeds[index]
        among = [*self._shares]
        return values + tag(seed, self._keys, among, index, values, history_digest)

    def unmask(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: return the shares that open the sum of the survivors.

        For each party that dealt shares, in the order of the plan, the result contains a share of
        its self-mask if it survived, and a share of the key to its lock otherwise, but never both,
        because both would expose the array. Repeated calls with the same survivors return the same
        shares.

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
                f"survivors {list(survivors)} of sum {index}; the parties that dealt shares "
                f"are {list(self._shares)}"
            )
        self.plan.need(names, f"sent their array for sum {index}")
        if index in self._unmasked:
            if self._unmasked[index][0] != names:
                raise ExposureError(
                    f"{self.name!r} has helped to open sum {index} for other survivors; shares "
                    "for these survivors, too, could reveal the array of a single party. Plan "
                    "another sum"
                )
            return self._unmasked[index][1]
        if self.name not in names or index not in self._masked:
            raise LateError(
                f"the array of {self.name!r} is not in sum {index}; only parties in a sum open it"
            )
        # Refuse before any share leaves the party.
        self._opened.admit(names)
        shares = b""
        for name, text in self._shares.items():
            # Position in the text of `deal`: self-mask first, then lock key.
            begin = (2 * index + (name not in names)) * shamir.SHARE_BYTES
            shares += text.reveal()[begin : begin + shamir.SHARE_BYTES]
        self._unmasked[index] = names, shares
        return shares

    def _check(self, index: int) -> None:
        if not self._shares:
            raise LateError(f"{self.name!r} has not collected the shares of the other parties yet")
        check_index(self.plan, index)


class MaskedSum(SecretHolder):
    """Server that adds masked arrays and opens the sums."""

    def __init__(self, plan: MaskPlan, ledger: OperationCounter | None = None) -> None:
        self.plan = plan
        self.ledger = OperationCounter() if ledger is None else ledger
        self._keys: dict[str, bytes] = {}
        self._agreed = b""  # digest of the roster
        # Boxes by receiver, commitments and locks of each party.
        self._deals: dict[str, tuple[dict[str, bytes], list[bytes], list[bytes]]] = {}
        self._arrays: dict[int, dict[str, tuple[bytes, bytes]]] = {}  # numbers and tags, by sum
        self._given: dict[int, dict[str, dict[str, bytes]]] = {}  # shares by sum, helper and owner
        self._closed: set[str] = set()  # rounds that have ended

    def __repr__(self) -> str:
        return f"<MaskedSum of {len(self.plan.parties)} parties, {self.plan.sums} sums>"

    def take_keys(self, name: str, key: bytes) -> None:
        """Round 0: receive the public key of a party.

        All ``take_`` methods raise the same errors.

        Raises
        ------
        LateError
            If the round has ended, or has not started.
        RepeatedError
            If the party has sent a message in this round before.
        MalformedError
            If the party does not take part in the round, or the message is not as planned.
        """
        self._place(self._keys, name, key, "advertising", self.plan.parties)

    def take_deal(self, name: str, text: bytes) -> None:
        """Round 1: receive the boxes, commitments and locks of a party (`MaskingParty.deal`)."""
        self._need("advertising")
        plan, receivers = self.plan, [other for other in self._advertised() if other != name]
        # The server forwards boxes that it cannot open. All parts have a known length.
        boxed = len(receivers) * plan.box_bytes
        locked = boxed + plan.sums * COMMITMENT_BYTES
        lock_bytes = plan.lock_bytes(len(self._keys))
        deal = (
            split_named(text[:boxed], receivers, plan.box_bytes, f"boxes of {name!r} for each"),
            split(text[boxed:locked], COMMITMENT_BYTES, plan.sums, f"the commitments of {name!r}"),
            split(text[locked:], lock_bytes, plan.sums, f"the locks of {name!r}"),
        )
        self._place(self._deals, name, deal, "dealing", self._keys)

    def take_array(self, name: str, index: int, text: bytes) -> None:
        """Round 2: receive a masked array and its tag (`MaskingParty.mask`)."""
        self._need("dealing")
        check_index(self.plan, index)
        values, array_tag = text[:-TAG_BYTES], text[-TAG_BYTES:]
        arrays = self._arrays.setdefault(index, {})
        expected = next((len(numbers) for numbers, _ in arrays.values()), len(values) // 8 * 8)
        if len(text) < TAG_BYTES or len(values) != expected:
            raise MalformedError(
                f"{name!r} sent {len(text)} bytes for sum {index}; an array has {expected} and "
                f"{TAG_BYTES} for its tag"
            )
        self._place(arrays, name, (values, array_tag), _masking(index), self._deals)

    def take_shares(self, name: str, index: int, text: bytes) -> None:
        """Round 3: receive the shares of a party (`MaskingParty.unmask`)."""
        self._need(_masking(index))
        dealt = [party for party in self.plan.parties if party in self._deals]
        pieces = split(text, shamir.SHARE_BYTES, len(dealt), f"the shares of {name!r}")
        shares = dict(zip(dealt, pieces, strict=True))
        received_shares = self._given.setdefault(index, {})
        self._place(received_shares, name, shares, _opening(index), self._arrays[index])

    def roster(self) -> bytes:
        """End round 0: return the keys that are sent to all parties that advertised one."""
        names = self._advertised()
        keys = b"".join(self._keys[name] for name in names)
        roster = check_roster(self.plan, keys, names)
        self._closed.add("advertising")
        self._agreed = roster_digest(self.plan, roster)
        return keys

    def boxes(self) -> dict[str, bytes]:
        """End round 1: return the boxes for each party that dealt, in the order of the plan."""
        self._need("advertising")
        self.plan.need(self._deals, "dealt shares")
        self._closed.add("dealing")
        dealt = [name for name in self.plan.parties if name in self._deals]
        return {
            receiver: b"".join(
                self._deals[sender][0][receiver] for sender in dealt if sender != receiver
            )
            for receiver in dealt
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

    def open_sum(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
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
        first, _ = next(iter(arrays.values()))
        total = np.zeros(len(first) // 8, dtype=np.uint64)
        for values, _ in arrays.values():
            total += np.frombuffer(values, "<u8")
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
        return total.view(np.int64)

    def _self_mask(self, index: int, name: str, size: int, history: bytes) -> NDArray[np.uint64]:
        """Recover the self-mask of a survivor, and check the tag of its array."""
        seed = self._combined(index, name)
        # A wrong share gives another seed, which the commitment detects.
        if commitment(seed) != self._deals[name][1][index]:
            raise WrongKeyError(self._wrong(index, name, "self-mask"))
        values, array_tag = self._arrays[index][name]
        among = [party for party in self.plan.parties if party in self._deals]
        expected = tag(seed, self._agreed, among, index, values, history)
        if not hmac.compare_digest(expected, array_tag):
            raise WrongKeyError(
                f"the array of {name!r} in sum {index} does not match its tag: it was changed "
                "on the way, belongs to another sum, was masked for other keys or parties, or its "
                "owner received other values than the remaining parties. The sum is not opened. "
                "Start a new run"
            )
        return expand_mask(self_seed(seed), size)

    def _take_off_pairs(
        self, index: int, name: str, total: NDArray[np.uint64], history: bytes
    ) -> None:
        """Subtract, in place, the masks that survivors share with a missing party."""
        key = self._combined(index, name)
        try:
            seeds = unlock(key, self._deals[name][2][index], self._agreed)
        except WrongKeyError:
            raise WrongKeyError(self._wrong(index, name, "lock")) from None
        peers = [peer for peer in self._advertised() if peer != name]
        for peer, seed in zip(peers, seeds, strict=True):
            # A mask between two missing parties is not in the sum.
            if peer not in self._arrays[index]:
                continue
            mask = expand_mask(bind_to_history(seed, history), total.size)
            # Undo the sign with which the survivor applied the mask.
            if adds(peer, name):
                total -= mask
            else:
                total += mask

    def _combined(self, index: int, name: str) -> Secret[bytes]:
        """Recover a secret of a party from the shares of the helpers."""
        received_shares = self._given[index]
        shares = {self.plan.point(helper): item[name] for helper, item in received_shares.items()}
        try:
            return shamir.combine(shares, self.plan.threshold)
        except MalformedError:
            raise WrongKeyError(self._wrong(index, name, "secret")) from None

    def _wrong(self, index: int, name: str, what: str) -> str:
        return (
            f"the shares that {sorted(self._given[index])} sent do not determine the {what} of "
            f"{name!r} in sum {index}: one of them is wrong. The sum is not opened. Start a new run"
        )

    def _advertised(self) -> list[str]:
        """Return the parties whose keys arrived, in the order of the plan."""
        return [name for name in self.plan.parties if name in self._keys]

    def _need(self, stage: str) -> None:
        if stage not in self._closed:
            raise LateError(
                f"{stage} is not finished; a message of a later stage arrived too early"
            )

    def _place(
        self, messages: dict[str, T], name: str, message: T, stage: str, allowed: Collection[str]
    ) -> None:
        """Store a message under its party, unless it is late, repeated or not allowed."""
        # A late message must not change a round whose result was sent already.
        if stage in self._closed:
            raise LateError(
                f"a message of {name!r} arrived after the end of {stage}; it is ignored"
            )
        if name not in allowed:
            raise MalformedError(
                f"{name!r} does not take part in {stage}; the parties are {list(allowed)}"
            )
        if name in messages:
            raise RepeatedError(
                f"{name!r} sent two messages in {stage}; only the first one is used"
            )
        messages[name] = message


def _masking(index: int) -> str:
    return f"masking for sum {index}"


def _opening(index: int) -> str:
    return f"opening sum {index}"


def adds(party: str, other: str) -> bool:
    """Return whether a party adds the mask that it shares with `other`, which subtracts it."""
    return party > other


def check_index(plan: MaskPlan, index: int) -> None:
    """Raise `UsageError` unless the sum is planned."""
    if not 0 <= index < plan.sums:
        raise UsageError(
            f"there is no sum {index}: the plan has the sums 0 to {plan.sums - 1}; plan more sums"
        )


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


def check_roster(plan: MaskPlan, keys: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Return the public keys of the named parties.

    It raises an error unless enough parties advertised, each once and with a different key.
    """
    if not {*names} <= {*plan.parties} or len({*names}) != len(names):
        raise MalformedError(f"keys from {[*names]}; each of {list(plan.parties)} advertises once")
    roster = split_named(keys, names, KEY_BYTES, "keys")
    if len({*roster.values()}) != len(roster):
        raise MalformedError(f"two of the keys that {[*names]} advertised are the same")
    plan.need(names, "advertised keys")
    return roster


def split_named(text: bytes, names: Sequence[str], size: int, what: str) -> dict[str, bytes]:
    """Split a text into one piece of `size` bytes for each name, in order.

    It raises `MalformedError` if the text has another length.
    """
    pieces = split(text, size, len(names), f"the {what} of {', '.join(names)}")
    return dict(zip(names, pieces, strict=True))


def split(text: bytes, size: int, count: int, what: str) -> list[bytes]:
    """Split a text into `count` pieces of `size` bytes.

    It raises `MalformedError` if the text has another length.
    """
    if len(text) != size * count:
        raise MalformedError(f"{what} have {len(text)} bytes; expected {count} times {size}")
    return [text[size * i : size * (i + 1)] for i in range(count)]


#: Plain arrays of the ideal functionality, by sum and party, with the digest of received messages.
PlainArrays = dict[int, dict[str, tuple[bytes, NDArray[np.int64]]]]


class IdealMaskingParty(SecretHolder):
    """Party with access to the ideal functionality. Messages are empty.

    Operations are counted but not computed. `opened` makes the party refuse the same sets of
    survivors as a real party.
    """

    def __init__(
        self,
        plan: MaskPlan,
        name: str,
        ledger: OperationCounter,
        opened: SurvivorSets,
        arrays: PlainArrays,
    ) -> None:
        self.plan, self.name, self.ledger = plan, name, ledger
        self._opened, self._arrays, self._advertised = opened, arrays, 0

    def advertise(self) -> bytes:
        """Round 0."""
        return b""

    def deal(self, keys: bytes, names: Sequence[str]) -> bytes:
        """Round 1: count two secrets per sum, and one share of each for every party."""
        self.plan.need(names, "advertised keys")
        self._advertised = len(names)
        self.ledger.enter("shares", 2 * self.plan.sums * len(names))
        return b""

    def collect(self, boxes: bytes, senders: Sequence[str]) -> None:
        """End of round 1."""

    def mask(self, index: int, array: NDArray[np.int64], history_digest: bytes = b"") -> bytes:
        """Round 2: store the array."""
        check_numbers(self.plan, array)
        self.ledger.enter("masks expanded", self._advertised)
        self._arrays.setdefault(index, {})[self.name] = history_digest, array
        return b""

    def unmask(self, index: int, survivors: Sequence[str]) -> bytes:
        """Round 3: refuse sets of survivors that would expose a reply."""
        self._opened.admit(survivors)
        return b""


class IdealMaskedSum(SecretHolder):
    """Server with access to the ideal functionality."""

    def __init__(self, plan: MaskPlan, ledger: OperationCounter, arrays: PlainArrays) -> None:
        self.plan, self.ledger, self._arrays = plan, ledger, arrays
        self._names: list[str] = []  # parties that advertised

    def take_keys(self, name: str, key: bytes) -> None:
        """Round 0: record who takes part."""
        self._names.append(name)

    def roster(self) -> bytes:
        """End of round 0."""
        return b""

    def take_deal(self, name: str, text: bytes) -> None:
        """Round 1."""

    def boxes(self) -> dict[str, bytes]:
        """End of round 1."""
        return dict.fromkeys(self._names, b"")

    def take_array(self, name: str, index: int, text: bytes) -> None:
        """Round 2."""

    def survivors(self, index: int) -> tuple[str, ...]:
        """End of round 2: return the parties whose arrays were stored."""
        arrays = self._arrays.get(index, {})
        self.plan.need(arrays, f"sent their array for sum {index}")
        return tuple(name for name in self.plan.parties if name in arrays)

    def take_shares(self, name: str, index: int, text: bytes) -> None:
        """Round 3."""

    def open_sum(self, index: int, history_digest: bytes = b"") -> NDArray[np.int64]:
        """Return the sum. Raise `WrongKeyError` as `MaskedSum.open_sum` does."""
        contributions = self._arrays.pop(index)
        if unequal := [
            name for name, (history, _) in contributions.items() if history != history_digest
        ]:
            raise WrongKeyError(
                f"{', '.join(unequal)}: received other values than the other parties "
                f"before sum {index}, which cannot be opened. Start a new run"
            )
        arrays = [array for _, array in contributions.values()]
        # A real server expands a self-mask per survivor, and all its masks with each missing party.
        n_missing = len(self._names) - len(arrays)
        self.ledger.enter("masks expanded", len(arrays) * (1 + n_missing))
        total: NDArray[np.int64] = np.sum(arrays, axis=0)
        return total
