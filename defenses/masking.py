"""Defense `masking`: secure aggregation by pairwise masks, with real cryptography.

The protocol is that of Bonawitz et al. (2017, figure 4). Each client adds masks to its summed
fields that cancel in the sum over all clients. The server learns the sum if at least a threshold of
clients stays until the end. The rounds are computed in `fedtrees.crypto.mask_rounds`. This module
connects them to the interface of secure sums (`fedtrees.core.secure_sum`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Place
from fedtrees.core.errors import ProtocolError, UsageError, check_flag, check_whole
from fedtrees.core.guarantee import Computational, Guarantee
from fedtrees.core.messages import Message, Sealed
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import (
    Aggregation,
    Closing,
    Known,
    Opening,
    Wire,
    agreed,
    digest_of,
    summands,
    summed,
    whole,
)
from fedtrees.core.transcript import Transcript
from fedtrees.crypto import mask_messages
from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import MaskPlan, usual_threshold
from fedtrees.crypto.mask_rounds import (
    IdealMasker,
    IdealUnmasker,
    Kept,
    Masker,
    RealMasker,
    RealUnmasker,
    Unmasker,
)
from fedtrees.crypto.masking_party import SurvivorSets
from fedtrees.defenses.secure_sum import RealSums, opaque
from fedtrees.messages.aggregation import (
    MaskBoxes,
    MaskKeys,
    MaskKeysRequest,
    MaskOpening,
    MaskRoster,
    MaskShares,
    MaskSurvivors,
)
from fedtrees.sealing.errors import MissingPartyError, RepeatedError, TooFewPartiesError
from fedtrees.sealing.ledger import Ledger, Told, costs_by_party

# Number of sums that one key agreement prepares (`MaskPlan.sums`). Masks that remain at the end of
# a run are discarded.
SUMS_AT_ONCE = 32

# Name in the claim: the opened sums have different survivors, and their combination reveals the
# reply of one client.
_DIFFERING = "differing-survivors"

# Predicate of client, reply and wire: whether the network loses the reply.
Lost = Callable[[str, Message, Wire], bool]

_KEYS = "keys and shares for masks: none of them opens a single client's values"
_OPEN = "shares that open the sum of those whose values came, and no other"


@register.defense("masking")
@dataclass(frozen=True)
class Masking(RealSums):  # type: ignore[misc]
    """Let the server open only sums, by masks that cancel in them (Bonawitz et al. 2017, figure 4).

    Each pair of clients agrees on a key with X25519, derives a seed per sum with HKDF-SHA256, and
    expands it with ChaCha20. Shamir shares of the secrets recover the masks of clients that drop
    out. A server that colludes with at least `threshold` clients can read the reply of every
    client.

    Parameters
    ----------
    threshold : int or None
        Number of clients that must stay until the end for a sum to be opened, more than half of
        them. None: ``floor(2 n / 3) + 1``, at most n.
    mode : {"real", "ideal"}
        ``ideal``: the same messages and byte counts without cryptographic computations.
    dropout : float
        Probability in [0, 1) that the network loses a client's replies for one tree. It is drawn
        from the experiment's seed, and the tree is grown on the remaining clients. The same applies
        to label sums, counts on a grid and validation losses. With fewer clients than the
        threshold, the run stops. It also stops if fewer clients contribute to a sum than its shared
        noise is calibrated for.
    exposing : bool
        Open sums over different sets of survivors even if their combination reveals the reply of
        one client (`fedtrees.crypto.masking_party`). False: the clients refuse, and the run stops.
    """

    threshold: int | None = None
    mode: str = "real"
    dropout: float = 0.0
    exposing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            check_whole("threshold", self.threshold, 2)
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise UsageError(f"dropout={self.dropout!r}: give a number from 0 to below 1")
        check_flag("exposing", self.exposing)

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse a threshold that is not a majority of the clients, or more than all of them."""
        if self.threshold is not None:
            clients = tuple(name for name, role in roles.items() if role == "client")
            MaskPlan(clients, self.threshold)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that clients may be missing from sums, if there is dropout."""
        lost = Event("a client's part of the sums of a tree may be lost on the way")
        return {("sums", "parties"): lost} if self.dropout else {}

    def strength(self) -> tuple[int, str]:
        """Return the security level in bits, and the cryptographic assumptions."""
        return 128, "x25519+chacha20"

    def secure_aggregation(self) -> Aggregation:
        """Create the secure aggregation of one run."""
        lost = partial(_misses, self.dropout)
        return MaskedSums(self.threshold, self.mode == "real", lost, exposing=self.exposing)

    def claim(self) -> Guarantee:
        """Return the claim, and the information that is not covered by it."""
        return _told_by_survivors(super().claim(), self.exposing)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the claim for the messages of a run.

        It names different survivors as uncovered if the combination of the opened sums reveals a
        reply.
        """
        sets = SurvivorSets(exposing=True)
        for d in transcript:
            if isinstance(d.message, MaskSurvivors):
                sets.note(d.message.parties.split(","))
        return _told_by_survivors(super().spent(transcript), bool(sets.told))

    def broken_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return a reason if the server colludes with at least `threshold` clients, None otherwise.

        Also None if fewer than two clients do not collude. The sum then reveals the remaining reply
        without breaking the masks.
        """
        clients = [name for name, role in roles.items() if role == "client"]
        colluding = [name for name in clients if name in principals]
        threshold = self.threshold or usual_threshold(len(clients))
        servers = [name for name in principals if roles[name] == "server"]
        # The collusion only matters if it reveals a reply that the sum does not reveal anyway.
        if not servers or len(colluding) < threshold or len(clients) - len(colluding) < 2:
            return None
        names = ", ".join((*servers, *colluding))
        details = {"shares": len(colluding), "threshold": threshold, "defense": self.name}
        return Reason("shares-open", who=names, **details)


class MaskedSums(Aggregation):
    """Secure aggregation of one run with masks.

    `threshold` and `exposing` are those of `Masking`. Without `real` the ideal functionality is
    used. ``lost(name, reply, wire)`` returns whether the network loses a client's reply.
    """

    def __init__(self, threshold: int | None, real: bool, lost: Lost, *, exposing: bool) -> None:
        self.threshold, self.real, self.lost, self.exposing = threshold, real, lost, exposing
        self._kept: defaultdict[int, Kept] = defaultdict(dict)  # ideal arrays, by batch

    def closing(self, name: str, rows: int | None, facts: Known) -> Closing:
        """Create the side of one client. Its number of rows is not used."""
        return MaskedReplies(self, name, facts)

    def opening(self) -> Opening:
        """Create the side of the server."""
        return UnmaskedSums(self)

    def costs(self, ledgers: Mapping[str, Told]) -> Mapping[str, float]:
        """Return the operation counts and CPU seconds of all parties."""
        return costs_by_party(ledgers)

    def plan(self, parties: tuple[str, ...], batch: int) -> MaskPlan:
        """Return the public parameters of a batch of sums."""
        threshold = self.threshold or usual_threshold(len(parties))
        return MaskPlan(parties, threshold, SUMS_AT_ONCE, b"fedtrees, batch %d" % batch)

    def masker(
        self, plan: MaskPlan, batch: int, name: str, ledger: Ledger, opened: SurvivorSets
    ) -> Masker:
        """Create the cryptographic state of a client for a batch of sums.

        `opened` contains the sets of survivors whose sums the client helped to open.
        """
        if self.real:
            return RealMasker(plan, name, ledger, opened)
        return IdealMasker(plan, name, ledger, opened, self._kept[batch])

    def unmasker(self, plan: MaskPlan, batch: int, ledger: Ledger) -> Unmasker:
        """Create the cryptographic state of the server for a batch of sums."""
        if self.real:
            return RealUnmasker(plan, ledger)
        return IdealUnmasker(plan, ledger, self._kept[batch])

    def opaque(self, text: bytes, nbytes: int) -> Sealed:
        """Return bytes, for example keys or shares, as a message field."""
        sealed: Sealed = opaque(text, nbytes, real=self.real)
        return sealed


class MaskedReplies(Closing):
    """Client side: it masks replies, keeps shares, and refuses to open certain sums."""

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        MaskKeysRequest: {
            "batch": "ascending, each once",
            "sums": "the agreed number",
            "threshold": "the agreed number",
        },
        MaskRoster: {
            "parties": "different clients of the agreement, at least the threshold",
            "keys": "one for each, the client's own among them; taken once in a batch",
        },
        MaskBoxes: {
            "parties": "different clients of the roster, at least the threshold",
            "boxes": "one for each, sealed by its sender for this client; taken once in a batch",
        },
        MaskSurvivors: {
            "sum": "a sum that the client masked; for one set of survivors only",
            "parties": "different clients, at least the threshold; where clients share the noise, "
            "at least as many as its shares are scaled for",
        },
    }

    def __init__(self, sums: MaskedSums, name: str, facts: Known) -> None:
        super().__init__()
        self._sums, self._name, self._parties = sums, name, facts.parties
        self._known, self._shares = facts, dict[int, int]()  # replies that the noise needs, by sum
        self._rostered, self._boxed = Once(), Once()  # of the current batch
        self._batches = Turns(1 << 31, gaps=True)  # a client that drops out misses batches
        self._opened = SurvivorSets(exposing=sums.exposing)
        self.ledger = Ledger()
        self._masker: Masker
        self._dealt = 0

    def takes(self, message: Message) -> bool:
        """Return whether a message belongs to the rounds of this protocol."""
        return isinstance(message, (MaskKeysRequest, MaskRoster, MaskBoxes, MaskSurvivors))

    def answer(self, message: Message) -> Message | None:
        """Handle a message of the server in round 0, 1 or 3 of the protocol, and return the reply.

        It raises `ProtocolError` if the server requests other public parameters than agreed, and
        `BeyondParametersError` if a message violates one of the `rules`.
        """
        sums = self._sums
        if isinstance(message, MaskKeysRequest):
            plan = sums.plan(self._parties, message.batch)
            if (message.sums, message.threshold) != (plan.sums, plan.threshold):
                raise ProtocolError(
                    f"keys for {message.sums} sums of {message.threshold} are asked for; agreed on "
                    f"are {plan.sums} of {plan.threshold}"
                )
            self._batches.take(message, "batch")
            self._shares, self._rostered, self._boxed = {}, Once(), Once()
            batch, opened = message.batch, self._opened
            self._masker = sums.masker(plan, batch, self._name, self.ledger, opened)
            return MaskKeys(sums.opaque(self._masker.keys(), KEY_BYTES))
        if isinstance(message, MaskRoster):
            roster_names = self._named_parties(message, message.parties)
            self._rostered.take(message)
            self._dealt = len(roster_names)
            text = self._masker.shares(message.keys.payload, roster_names)
            return MaskShares(
                sums.opaque(text, mask_messages.deal(self._masker.plan, len(roster_names)))
            )
        if isinstance(message, MaskBoxes):
            senders = self._named_parties(message, message.parties)
            self._boxed.take(message)
            self._masker.collect(message.boxes.payload, senders)
            return None
        assert isinstance(message, MaskSurvivors)
        survivors = self._named_parties(message, message.parties)
        if self._name not in survivors:  # the client records the set to refuse later ones
            self._opened.note(survivors)
            return None
        if message.sum not in self._shares:
            refuse(message, "sum", f"{self._name!r} has masked nothing for that sum")
        # A malicious server could name fewer survivors than the noise needs. Clients check the
        # number themselves.
        _check_shares(message, survivors, self._shares[message.sum])
        text = self._masker.opening(message.sum, survivors)
        return MaskOpening(message.sum, sums.opaque(text, mask_messages.unmasking(self._dealt)))

    def _named_parties(self, message: Message, parties: str) -> list[str]:
        """Return the parties that a message names. Refuse unknown and repeated names."""
        names = parties.split(",")
        if len({*names}) != len(names) or not {*names} <= {*self._parties}:
            refuse(message, "parties", f"different ones of {', '.join(self._parties)} take part")
        return names

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Mask all summed fields of the reply as one array. The tag follows the last field.

        `how` contains ``sum``, the number of the sum in its batch. It raises `RepeatedError` if the
        client has masked another array for the same sum.
        """
        assert reply is not None
        if how["sum"] in self._shares:
            # The difference of two arrays under the same mask is the difference of the plain
            # arrays.
            raise RepeatedError(
                f"{self._name!r} has masked an array for sum {how['sum']} before; two under one "
                "mask tell their difference. Plan another sum"
            )
        self._shares[how["sum"]] = self._known.shares.get(type(reply), 0)
        arrays = summands(reply)
        parts = {field: whole(array) for field, array in arrays.items()}
        # A single array per reply needs one mask and one tag, whatever the number of fields.
        array = np.concatenate(list(parts.values()))
        text = self._masker.masked(how["sum"], array, self._told.digest())
        fields: dict[str, Sealed] = {}
        begin = 0
        for field, array in arrays.items():
            size = mask_messages.masked(parts[field].size)
            # The tag follows the last field.
            size += mask_messages.TAG_BYTES * (len(fields) == len(arrays) - 1)
            payload = text[begin : begin + size]
            fields[field] = Sealed(
                (), array.shape, array.dtype.newbyteorder("<").str, size, payload
            )
            begin += size
        return replace(reply, **fields)


class UnmaskedSums(Opening):
    """Server side: it exchanges the messages of all rounds and opens the sums."""

    def __init__(self, sums: MaskedSums) -> None:
        self._sums, self.ledger = sums, Ledger()
        self._masks: Unmasker | None = None
        self._dealt: set[str] = set()  # clients that have keys for the next sums
        self._series: dict[str, tuple[str, ...]] = {}  # survivors of each series
        self._used = self._batches = 0
        self._told: defaultdict[str, Any] = defaultdict(blake2b)

    def hear(self, names: Iterable[str], message: Message) -> None:
        """Add a message to the digest of everything that the named clients received."""
        for name in names:
            self._told[name].update(digest_of(message))

    def opened(self, incomplete_replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Collect masked replies and return their sum. Agree on keys if none are left.

        Parameters
        ----------
        incomplete_replies : mapping of str to Message
            Incomplete reply of every party.
        wire : Wire
            Access to the network.
        why : str
            Reason that the transcript records for the masked replies.

        Raises
        ------
        TooFewPartiesError
            If fewer replies arrive than the threshold, or than the shared noise is calibrated for.
        MissingPartyError
            If other parties reply than to the earlier sums of the same series, because the protocol
            combines these sums.
        ExposureError
            If this sum and earlier ones together would reveal the reply of one client.
        WrongKeyError
            If the clients received different messages from the server.
        """
        names = tuple(incomplete_replies)
        arrived = {
            n: reply
            for n, reply in incomplete_replies.items()
            if not self._sums.lost(n, reply, wire)
        }
        plan = self._sums.plan(wire.known.parties, self._batches)
        plan.need(arrived, f"sent {type(next(iter(incomplete_replies.values()))).__name__}")
        _check_noise(names, tuple(arrived), wire.least)
        first = agreed(arrived.values())
        self._check_series(first.series, tuple(arrived))
        masks = self._masks
        # New keys are needed at the start, if a client returns that missed the last agreement, and
        # if all prepared sums are used.
        if masks is None or not {*arrived} <= self._dealt or self._used == masks.plan.sums:
            masks = self._masks = self._agree(plan, tuple(arrived), wire)
        index, self._used = self._used, self._used + 1
        for name, reply in wire.seal(arrived, {"sum": index}, why).items():
            seals = (getattr(reply, field) for field in summands(first))
            masks.take_masked(name, index, b"".join(seal.payload for seal in seals))
        survivors = masks.survivors(index)
        # Clients that are missing from the sum also receive the set of survivors, because they must
        # refuse later sets that would expose a reply together with this one.
        openings = wire.ask(names, MaskSurvivors(index, ",".join(survivors)), _OPEN)
        for name, opening in openings.items():
            assert isinstance(opening, MaskOpening)
            masks.take_opening(name, index, opening.shares.payload, survivors)
        return summed(first, masks.opened(index, self._told[survivors[0]].digest()))

    def _check_series(self, series: str, arrived: tuple[str, ...]) -> None:
        """Raise MissingPartyError unless all sums of a series are over the same parties."""
        # The first sum of a series decides its parties.
        earlier = self._series.setdefault(series, arrived)
        if earlier != arrived:
            differ = [name for name in {**dict.fromkeys(earlier), **dict.fromkeys(arrived)}
                      if (name in earlier) != (name in arrived)]  # fmt: skip
            raise MissingPartyError(
                f"{', '.join(differ)}: in some sums of {series}, missing from others; what is "
                f"worked out from both would be wrong. Those before are over {', '.join(earlier)}. "
                "Wait for who is missing"
            )

    def _agree(self, plan: MaskPlan, names: tuple[str, ...], wire: Wire) -> Unmasker:
        """Run rounds 0 and 1 with the parties that replied: exchange keys and encrypted shares."""
        sums, missing = self._sums, [name for name in plan.parties if name not in names]
        masks = sums.unmasker(plan, self._batches, self.ledger)
        request = MaskKeysRequest(self._batches, plan.sums, plan.threshold)
        for name, reply in wire.ask(plan.parties, request, _KEYS, gone=missing).items():
            assert isinstance(reply, MaskKeys)
            masks.take_keys(name, reply.keys.payload)
        self._used, self._batches, self._dealt = 0, self._batches + 1, {*names}
        keys = sums.opaque(masks.roster(names), KEY_BYTES * len(names))
        for name, dealt in wire.ask(names, MaskRoster(",".join(names), keys), _KEYS).items():
            assert isinstance(dealt, MaskShares)
            masks.take_shares(name, dealt.boxes.payload)
        for name in names:
            other_names = ",".join(other for other in names if other != name)
            boxes = sums.opaque(masks.boxes(name), mask_messages.box(plan) * (len(names) - 1))
            wire.ask([name], MaskBoxes(other_names, boxes), _KEYS)
        return masks


def _misses(dropout: float, name: str, reply: Message, wire: Wire) -> bool:
    """Return whether the network loses the series that a client's reply belongs to."""
    if not dropout:
        return False
    # One draw per client and series: a client misses either all sums of a tree or none.
    randomness = wire.streams.rng(f"{name} misses {reply.series}")
    return bool(randomness.random() < dropout)


def _check_shares(message: MaskSurvivors, survivors: Sequence[str], needed: int) -> None:
    """Refuse, as a client, to open a sum over fewer parties than share its noise."""
    if len(survivors) < needed:
        rule = f"{needed} parties share the noise of that sum, and fewer have too little"
        refuse(message, "parties", rule)


def _check_noise(parties: tuple[str, ...], arrived: tuple[str, ...], least: int) -> None:
    """Raise TooFewPartiesError if fewer replies arrived than the shared noise is calibrated for."""
    if len(arrived) < least:
        missing = ", ".join(name for name in parties if name not in arrived)
        raise TooFewPartiesError(
            f"{len(arrived)} of {len(parties)} parties share noise that is calibrated for {least}; "
            f"missing: {missing}. Nothing is opened. Wait for them, or let noise be added in whole "
            "(noise=central, dp-quantile-cuts) or for fewer (dp-grid-cuts[survivors=])"
        )


def _told_by_survivors(claim: Guarantee, also: bool) -> Guarantee:
    """Add the name of different survivors to the uncovered information if `also` is true."""
    assert isinstance(claim, Computational)
    names = [claim.uncovered, _DIFFERING] if also else [claim.uncovered]
    return replace(claim, uncovered="+".join(filter(None, names)))
