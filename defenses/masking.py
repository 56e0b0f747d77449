"""Secure aggregation by pairwise masks, computed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.aggregation import (
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
from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Place
from fedtrees.core.errors import ProtocolError, UsageError, check_flag, check_whole
from fedtrees.core.guarantee import Computational, Guarantee
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealed
from fedtrees.core.transcript import Transcript
from fedtrees.crypto import sizes
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
from fedtrees.crypto.survivor_sets import SurvivorSets
from fedtrees.defenses.real_sums import RealSums, opaque
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

# Sums whose masks are agreed on at once (`MaskPlan.sums`); those that are left at the end of a run
# were made for nothing.
SUMS_AT_ONCE = 32

# In the claim: sums over other survivors were opened, which together tell one client's part.
_DIFFERING = "differing-survivors"

# Tells whether a client's replies of a series are lost on the way.
Lost = Callable[[str, Message, Wire], bool]

_KEYS = "keys and shares for masks: none of them opens a single client's values"
_OPEN = "shares that open the sum of those whose values came, and no other"


@register.defense("masking")
@dataclass(frozen=True)
class Masking(RealSums):  # type: ignore[misc]
    """Let the server open only sums, by masks that cancel in them (Bonawitz et al. 2017, figure 4).

    X25519 for each pair, HKDF-SHA256 for each sum, ChaCha20, Shamir shares. Whoever colludes with
    the server and with so many clients that they reach the threshold reads every client.

    Parameters
    ----------
    threshold : int or None
        How many clients must stay to the end for a sum to be opened, above half of them; None: two
        thirds and one.
    mode : {"real", "ideal"}
        ``ideal``: the same views and byte counts without arithmetic.
    dropout : float
        Share of the trees that a client misses, by the experiment's seed: its part of their sums is
        lost, and they are grown on the others; with fewer than the threshold the run stops. So for
        what is no tree: label sums, counts on a grid, validation losses. Where clients share the
        noise a sum that lacks one is not opened, and the run stops.
    exposing : bool
        Open sums although those over other survivors, with these, tell one client's part
        (`fedtrees.crypto.survivor_sets`); false: the clients refuse, and the run stops.
    """

    threshold: int | None = None
    mode: str = "real"
    dropout: float = 0.0
    exposing: bool = False

    acts_through = frozenset({"aggregation", "summed"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            check_whole("threshold", self.threshold, 2)
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise UsageError(f"dropout={self.dropout!r}: give a number from 0 to below 1")
        check_flag("exposing", self.exposing)

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse a threshold that is no majority the clients can meet."""
        if self.threshold is not None:
            clients = tuple(name for name, role in roles.items() if role == "client")
            MaskPlan(clients, self.threshold)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State that clients may be missing in sums; else a sum is of all."""
        lost = Event("a client's part of the sums of a tree may be lost on the way")
        return {("sums", "parties"): lost} if self.dropout else {}

    def strength(self) -> tuple[int, str]:
        """Return that of X25519 and ChaCha20."""
        return 128, "x25519+chacha20"

    def aggregation(self) -> Aggregation:
        """Make the rounds of one run."""
        lost = partial(_misses, self.dropout)
        return MaskedSums(self.threshold, self.mode == "real", lost, exposing=self.exposing)

    def claim(self) -> Guarantee:
        """Return what holds, and what may be read beside the server's sums."""
        return _told_by_survivors(super().claim(), self.exposing)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return the same with what really crossed, and what the sums told together."""
        sets = SurvivorSets(exposing=True)
        for d in transcript:
            if isinstance(d.message, MaskSurvivors):
                sets.note(d.message.parties.split(","))
        return _told_by_survivors(super().spent(transcript), bool(sets.told))

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return why, where the server colludes with as many clients as the threshold."""
        clients = [name for name, role in roles.items() if role == "client"]
        colluding = [name for name in clients if name in principals]
        threshold = self.threshold or usual_threshold(len(clients))
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or len(colluding) < threshold or len(clients) - len(colluding) < 2:
            return None
        who = ", ".join((*servers, *colluding))
        details = {"shares": len(colluding), "threshold": threshold, "defense": self.name}
        return Reason("shares-open", who=who, **details)


class MaskedSums(Aggregation):
    """The sums of one run under masks.

    `real`: Whether masks are computed; else by the ideal functionality.
    `lost`: ``lost(name, reply, wire)``: whether it does not arrive.
    `exposing`: As for `Masking`.
    """

    def __init__(self, threshold: int | None, real: bool, lost: Lost, *, exposing: bool) -> None:
        self.threshold, self.real, self.lost, self.exposing = threshold, real, lost, exposing
        self._kept: defaultdict[int, Kept] = defaultdict(dict)  # by batch

    def closing(self, name: str, rows: int | None, known: Known) -> Closing:
        """Make a client's side."""
        return MaskedReplies(self, name, known)

    def opening(self) -> Opening:
        """Make the side of whoever adds."""
        return UnmaskedSums(self)

    def costs(self, ledgers: Mapping[str, Told]) -> Mapping[str, float]:
        """Return what it took."""
        return costs_by_party(ledgers)

    def plan(self, parties: tuple[str, ...], batch: int) -> MaskPlan:
        """Return what all parties agree on for a batch of sums."""
        threshold = self.threshold or usual_threshold(len(parties))
        return MaskPlan(parties, threshold, SUMS_AT_ONCE, b"fedtrees, batch %d" % batch)

    def masker(
        self, plan: MaskPlan, batch: int, name: str, ledger: Ledger, opened: SurvivorSets
    ) -> Masker:
        """Make what a client computes with, for a batch of sums."""
        if self.real:
            return RealMasker(plan, name, ledger, opened)
        return IdealMasker(plan, name, ledger, opened, self._kept[batch])

    def unmasker(self, plan: MaskPlan, batch: int, ledger: Ledger) -> Unmasker:
        """Make what whoever adds computes with, for a batch of sums."""
        if self.real:
            return RealUnmasker(plan, ledger)
        return IdealUnmasker(plan, ledger, self._kept[batch])

    def opaque(self, text: bytes, nbytes: int) -> Sealed:
        """Return bytes as a message field."""
        sealed: Sealed = opaque(text, nbytes, real=self.real)
        return sealed


class MaskedReplies(Closing):
    """One client's side: its masks, its shares, and what it refuses to open."""

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

    def __init__(self, sums: MaskedSums, name: str, known: Known) -> None:
        super().__init__()
        self._sums, self._name, self._parties = sums, name, known.parties
        self._known, self._shares = known, dict[int, int]()  # needed for noise, by sum
        self._rostered, self._boxed = Once(), Once()  # of a batch
        self._batches = Turns(1 << 31, gaps=True)  # a client that is gone misses some
        self._opened = SurvivorSets(exposing=sums.exposing)
        self.ledger = Ledger()
        self._masker: Masker
        self._dealt = 0

    def takes(self, message: Message) -> bool:
        """Tell whether it is one of the rounds."""
        return isinstance(message, (MaskKeysRequest, MaskRoster, MaskBoxes, MaskSurvivors))

    def answer(self, message: Message) -> Message | None:
        """Answer in a round."""
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
            among = self._named(message, message.parties)
            self._rostered.take(message)
            self._dealt = len(among)
            text = self._masker.shares(message.keys.payload, among)
            return MaskShares(sums.opaque(text, sizes.deal(self._masker.plan, len(among))))
        if isinstance(message, MaskBoxes):
            senders = self._named(message, message.parties)
            self._boxed.take(message)
            self._masker.collect(message.boxes.payload, senders)
            return None
        assert isinstance(message, MaskSurvivors)
        survivors = self._named(message, message.parties)
        if self._name not in survivors:  # its own refusals depend on what was opened
            self._opened.note(survivors)
            return None
        if message.sum not in self._shares:
            refuse(message, "sum", f"{self._name!r} has masked nothing for that sum")
        _check_shares(message, survivors, self._shares[message.sum])
        text = self._masker.opening(message.sum, survivors)
        return MaskOpening(message.sum, sums.opaque(text, sizes.unmasking(self._dealt)))

    def _named(self, message: Message, parties: str) -> list[str]:
        """Return the parties that a message names; refuse strangers and repeated names."""
        names = parties.split(",")
        if len({*names}) != len(names) or not {*names} <= {*self._parties}:
            refuse(message, "parties", f"different ones of {', '.join(self._parties)} take part")
        return names

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Mask all summed fields of the reply as one array; ``sum`` is its number in the batch."""
        assert reply is not None
        if how["sum"] in self._shares:
            raise RepeatedError(
                f"{self._name!r} has masked an array for sum {how['sum']} before; two under one "
                "mask tell their difference. Plan another sum"
            )
        self._shares[how["sum"]] = self._known.shares.get(type(reply), 0)
        arrays = summands(reply)
        parts = {field: whole(array) for field, array in arrays.items()}
        array = np.concatenate(list(parts.values()))
        text = self._masker.masked(how["sum"], array, self._told.digest())
        fields: dict[str, Sealed] = {}
        begin = 0
        for field, array in arrays.items():
            size = sizes.masked(parts[field].size)
            size += sizes.TAG_BYTES * (len(fields) == len(arrays) - 1)  # it stands at the end
            payload = text[begin : begin + size]
            fields[field] = Sealed(
                (), array.shape, array.dtype.newbyteorder("<").str, size, payload
            )
            begin += size
        return replace(reply, **fields)


class UnmaskedSums(Opening):
    """The side of whoever adds: who says what to whom."""

    def __init__(self, sums: MaskedSums) -> None:
        self._sums, self.ledger = sums, Ledger()
        self._masks: Unmasker | None = None
        self._dealt: set[str] = set()  # who has keys for the next sums
        self._series: dict[str, tuple[str, ...]] = {}  # survivors of each
        self._used = self._batches = 0
        self._told: defaultdict[str, Any] = defaultdict(blake2b)

    def hear(self, names: Iterable[str], message: Message) -> None:
        """Note what each was told, as it does itself."""
        for name in names:
            self._told[name].update(digest_of(message))

    def opened(self, waiting: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Agree on keys where none are left, let masked replies cross, and open their sum.

        Raises `TooFewPartiesError` if fewer replies arrive than the threshold, or than the noise in
        them is shared by.
        Raises `MissingPartyError` if not those arrive that are in the sums before, with which it is
        combined.
        Raises `ExposureError` if the sum and those before would tell what one client sent.
        Raises `WrongKeyError` if not all were told the same before.
        """
        names = tuple(waiting)
        arrived = {n: reply for n, reply in waiting.items() if not self._sums.lost(n, reply, wire)}
        plan = self._sums.plan(wire.known.parties, self._batches)
        plan.need(arrived, f"sent {type(next(iter(waiting.values()))).__name__}")
        _check_noise(names, tuple(arrived), wire.least)
        first = agreed(arrived.values())
        self._check_series(first.series, tuple(arrived))
        masks = self._masks
        if masks is None or not {*arrived} <= self._dealt or self._used == masks.plan.sums:
            masks = self._masks = self._agree(plan, tuple(arrived), wire)
        index, self._used = self._used, self._used + 1
        for name, reply in wire.seal(arrived, {"sum": index}, why).items():
            seals = (getattr(reply, field) for field in summands(first))
            masks.take_masked(name, index, b"".join(seal.payload for seal in seals))
        survivors = masks.survivors(index)
        # who is missing hears of it later: its own refusals depend on what was opened
        openings = wire.ask(names, MaskSurvivors(index, ",".join(survivors)), _OPEN)
        for name, opening in openings.items():
            assert isinstance(opening, MaskOpening)
            masks.take_opening(name, index, opening.shares.payload, survivors)
        return summed(first, masks.opened(index, self._told[survivors[0]].digest()))

    def _check_series(self, series: str, found: tuple[str, ...]) -> None:
        """Raise unless the same parties are in all sums that a protocol combines."""
        before = self._series.setdefault(series, found)
        if before != found:
            differ = [name for name in {**dict.fromkeys(before), **dict.fromkeys(found)}
                      if (name in before) != (name in found)]  # fmt: skip
            raise MissingPartyError(
                f"{', '.join(differ)}: in some sums of {series}, missing from others; what is "
                f"worked out from both would be wrong. Those before are over {', '.join(before)}. "
                "Wait for who is missing"
            )

    def _agree(self, plan: MaskPlan, names: tuple[str, ...], wire: Wire) -> Unmasker:
        """Rounds 0 and 1, for the next sums of those who are there: keys, and shares in boxes."""
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
            boxes = sums.opaque(masks.boxes(name), sizes.box(plan) * (len(names) - 1))
            wire.ask([name], MaskBoxes(other_names, boxes), _KEYS)
        return masks


def _misses(dropout: float, name: str, reply: Message, wire: Wire) -> bool:
    """Tell whether a client misses the series that a reply belongs to."""
    if not dropout:
        return False
    randomness = wire.streams.rng(f"{name} misses {reply.series}")
    return bool(randomness.random() < dropout)


def _check_shares(message: MaskSurvivors, survivors: Sequence[str], needed: int) -> None:
    """Refuse, at a client, to open a sum over fewer parties than its noise is shared by."""
    if len(survivors) < needed:
        rule = f"{needed} parties share the noise of that sum, and fewer have too little"
        refuse(message, "parties", rule)


def _check_noise(asked: tuple[str, ...], found: tuple[str, ...], least: int) -> None:
    """Raise unless so many are left as the noise is calibrated for that they share."""
    if len(found) < least:
        missing = ", ".join(name for name in asked if name not in found)
        raise TooFewPartiesError(
            f"{len(found)} of {len(asked)} parties share noise that is calibrated for {least}; "
            f"missing: {missing}. Nothing is opened. Wait for them, or let noise be added in whole "
            "(noise=central, dp-quantile-cuts) or for fewer (dp-grid-cuts[survivors=])"
        )


def _told_by_survivors(claim: Guarantee, also: bool) -> Guarantee:
    assert isinstance(claim, Computational)
    names = [claim.uncovered, _DIFFERING] if also else [claim.uncovered]
    return replace(claim, uncovered="+".join(filter(None, names)))
