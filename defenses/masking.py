"""Secure aggregation by pairwise masks, computed."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import (
    Aggregation,
    Wire,
    agreed,
    from_whole,
    size_of_whole,
    summands,
    whole,
)
from fedtrees.core.channel import Change, Event
from fedtrees.core.defense import Place
from fedtrees.core.errors import UsageError, check_flag, check_whole
from fedtrees.core.guarantee import Computational, Guarantee
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealed
from fedtrees.core.transcript import Transcript
from fedtrees.crypto import sizes
from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import MaskPlan, usual_threshold
from fedtrees.crypto.mask_rounds import IdealMasks, MaskRounds, RealMasks
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
from fedtrees.sealing.errors import MissingPartyError, TooFewPartiesError
from fedtrees.sealing.ledger import Ledger, costs_by_party

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
        kind = RealMasks if self.mode == "real" else IdealMasks
        lost = partial(_misses, self.dropout)
        return MaskedSums(self.threshold, kind, lost, exposing=self.exposing)

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
        told = {"shares": len(colluding), "threshold": threshold, "defense": self.name}
        return Reason("shares-open", who=who, **told)


class MaskedSums(Aggregation):
    """The sums of one run under masks: who says what to whom.

    Parameters
    ----------
    rounds : type
        `RealMasks` or `IdealMasks`.
    lost : callable
        ``lost(name, reply, wire)``: whether it does not arrive.
    exposing : bool
        As for `Masking`.
    """

    def __init__(
        self,
        threshold: int | None,
        rounds: type[RealMasks] | type[IdealMasks],
        lost: Lost,
        *,
        exposing: bool,
    ) -> None:
        self._threshold, self._rounds = threshold, rounds
        self._lost, self._exposing = lost, exposing
        self._real = rounds is RealMasks
        self._ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._masks: MaskRounds | None = None
        self._dealt: set[str] = set()  # who has keys for the next sums
        self._opened: dict[str, SurvivorSets] = {}  # each client's own
        self._series: dict[str, tuple[str, ...]] = {}  # survivors of each
        self._used = self._batches = 0

    def costs(self) -> Mapping[str, float]:
        """Return what it took."""
        return costs_by_party(self._ledgers)

    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Agree on keys where none are left, let masked replies cross, and open their sum.

        Raises
        ------
        TooFewPartiesError
            If fewer replies arrive than the threshold, or than the noise in them is shared by.
        MissingPartyError
            If not those arrive that are in the sums before, with which it is combined.
        ExposureError
            If the sum and those before would tell what one client sent.
        """
        names = tuple(replies)
        found = {n: reply for n, reply in replies.items() if not self._lost(n, reply, wire)}
        plan = self._plan(names)
        plan.need(found, f"sent {type(next(iter(replies.values()))).__name__}")
        _check_noise(names, tuple(found), wire.least)
        first = agreed(found.values())
        self._check_series(first.series, tuple(found))
        masks = self._masks
        if masks is None or not {*found} <= self._dealt or self._used == masks.plan.sums:
            masks = self._masks = self._agree(plan, tuple(found), wire)
        index, self._used = self._used, self._used + 1
        for name, reply in found.items():
            wire.carry(name, (wire.server,), self._masked(masks, name, index, reply), why)
        survivors = masks.survivors(index)
        # who is missing hears of it later: its own refusals depend on what was opened
        wire.carry(wire.server, names, MaskSurvivors(index, ",".join(survivors)), _OPEN)
        for name in survivors:
            text = masks.opening(name, index, survivors)
            shares = opaque(text, sizes.unmasking(len(self._dealt)), real=self._real)
            wire.carry(name, (wire.server,), MaskOpening(index, shares), _OPEN)
        return _put(first, masks.opened(index))

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

    def _masked(self, masks: MaskRounds, name: str, index: int, reply: Message) -> Message:
        """Let a client mask all its summed fields as one array; return its reply as it crosses."""
        arrays = summands(reply)
        parts = {field: whole(array) for field, array in arrays.items()}
        text = masks.masked(name, index, np.concatenate(list(parts.values())))
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

    def _plan(self, names: tuple[str, ...]) -> MaskPlan:
        threshold = self._threshold or usual_threshold(len(names))
        return MaskPlan(names, threshold, SUMS_AT_ONCE, b"fedtrees, batch %d" % self._batches)

    def _agree(self, plan: MaskPlan, names: tuple[str, ...], wire: Wire) -> MaskRounds:
        """Rounds 0 and 1, for the next sums of those who are there: keys, and shares in boxes."""
        for name in plan.parties:
            self._opened.setdefault(name, SurvivorSets(exposing=self._exposing))
        server, real = wire.server, self._real
        masks = self._rounds(plan, server, self._ledgers, self._opened)
        request = MaskKeysRequest(self._batches, plan.sums, plan.threshold)
        wire.carry(server, plan.parties, request, _KEYS)
        self._used, self._batches, self._dealt = 0, self._batches + 1, {*names}
        roster, size = b"", KEY_BYTES
        for name in names:
            text = masks.keys(name)
            roster += text
            wire.carry(name, (server,), MaskKeys(opaque(text, size, real=real)), _KEYS)
        keys = opaque(roster, size * len(names), real=real)
        wire.carry(server, names, MaskRoster(",".join(names), keys), _KEYS)
        for name in names:
            text = masks.shares(name, roster, names)
            dealt = opaque(text, sizes.deal(plan, len(names)), real=real)
            wire.carry(name, (server,), MaskShares(dealt), _KEYS)
        for name in names:
            others = ",".join(other for other in names if other != name)
            boxes = opaque(masks.boxes(name), sizes.box(plan) * (len(names) - 1), real=real)
            wire.carry(server, (name,), MaskBoxes(others, boxes), _KEYS)
        return masks


def _misses(dropout: float, name: str, reply: Message, wire: Wire) -> bool:
    """Tell whether a client misses the series that a reply belongs to."""
    if not dropout:
        return False
    randomness = wire.streams.rng(f"{name} misses {reply.series}")
    return bool(randomness.random() < dropout)


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


def _put(first: Message, opened: NDArray[np.int64]) -> Message:
    """Return the message with its summed fields from one array of whole numbers."""
    found, begin = {}, 0
    for field, array in summands(first).items():
        size = size_of_whole(array)
        found[field] = from_whole(opened[begin : begin + size], array.shape, array.dtype)
        begin += size
    return replace(first, **found)
