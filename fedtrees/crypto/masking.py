"""Secure sums by pairwise masks (Bonawitz et al. 2017): what clients and server send each other.

`MaskedAggregation` implements the interface of secure sums (`fedtrees.core.secure_sum`). Its sides
are `MaskingClient` and `MaskingServer`. They exchange messages, and pass bytes to a `MaskingParty`
and a `MaskedSum` (`fedtrees.crypto.masks`), or to those of the ideal functionality.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.errors import ProtocolError
from fedtrees.core.messages import Message, Sealed
from fedtrees.core.requests import Once, Turns, refuse
from fedtrees.core.secure_sum import (
    AggregationExchange,
    ClientAggregator,
    SecureAggregation,
    ServerAggregator,
    SumContext,
    check_same_fields,
    digest_of,
    replace_sums,
    summed_fields,
    to_integers,
)
from fedtrees.crypto.costs import CostCounts, OperationCounter, sum_costs_by_party
from fedtrees.crypto.mask_keys import TAG_BYTES, MaskPlan, usual_threshold
from fedtrees.crypto.masks import (
    IdealMaskedSum,
    IdealMaskingParty,
    MaskedSum,
    MaskingParty,
    PlainArrays,
)
from fedtrees.crypto.modes import seal_opaque
from fedtrees.crypto.primitives import (
    KEY_BYTES,
    MissingPartyError,
    RepeatedError,
    TooFewPartiesError,
)
from fedtrees.crypto.shamir import SHARE_BYTES
from fedtrees.crypto.survivors import SurvivorSets
from fedtrees.messages.aggregation import (
    MaskBoxes,
    MaskKeys,
    MaskKeysRequest,
    MaskOpening,
    MaskRoster,
    MaskShares,
    MaskSurvivors,
)

# Number of sums that one key agreement prepares (`MaskPlan.sums`). Masks that remain at the end of
# a run are discarded.
SUMS_AT_ONCE = 32

_KEYS = "keys and shares for masks, which do not reveal the values of a single client"
_OPEN = "shares that open the sum over the clients whose values arrived, and no other sum"


class MaskedAggregation(SecureAggregation):
    """Secure aggregation of one run with masks.

    Parameters
    ----------
    threshold, dropout, exposing
        As in the defense ``masking``.
    ideal : bool
        Whether the ideal functionality replaces the cryptography.
    """

    def __init__(
        self, threshold: int | None, *, ideal: bool, dropout: float, exposing: bool
    ) -> None:
        self.threshold, self.ideal = threshold, ideal
        self.dropout, self.exposing = dropout, exposing
        # Arrays of the ideal functionality, by batch.
        self._arrays: defaultdict[int, PlainArrays] = defaultdict(dict)

    def client_side(self, name: str, rows: int | None, context: SumContext) -> ClientAggregator:
        return MaskingClient(self, name, context)

    def server_side(self) -> ServerAggregator:
        return MaskingServer(self)

    def costs(self, ledgers: Mapping[str, CostCounts]) -> Mapping[str, float]:
        return sum_costs_by_party(ledgers)

    def plan(self, parties: tuple[str, ...], batch: int) -> MaskPlan:
        """Return the public parameters of a batch of sums."""
        threshold = self.threshold or usual_threshold(len(parties))
        return MaskPlan(parties, threshold, SUMS_AT_ONCE, b"fedtrees, batch %d" % batch)

    def masker(
        self, plan: MaskPlan, batch: int, name: str, ledger: OperationCounter, opened: SurvivorSets
    ) -> MaskingParty | IdealMaskingParty:
        """Create the cryptographic state of a client for a batch of sums.

        `opened` contains the sets of survivors whose sums the client helped to open.
        """
        if self.ideal:
            return IdealMaskingParty(plan, name, ledger, opened, self._arrays[batch])
        return MaskingParty(plan, name, ledger, opened=opened)

    def unmasker(
        self, plan: MaskPlan, batch: int, ledger: OperationCounter
    ) -> MaskedSum | IdealMaskedSum:
        """Create the cryptographic state of the server for a batch of sums."""
        if self.ideal:
            return IdealMaskedSum(plan, ledger, self._arrays[batch])
        return MaskedSum(plan, ledger)

    def loses(self, name: str, reply: Message, exchange: AggregationExchange) -> bool:
        """Return whether the network loses the series that a client's reply belongs to."""
        if not self.dropout:
            return False
        # One draw per client and series: a client misses either all sums of a tree or none.
        randomness = exchange.streams.rng(f"{name} misses {reply.series}")
        return bool(randomness.random() < self.dropout)

    def opaque(self, text: bytes, nbytes: int) -> Sealed:
        """Return bytes, for example keys or shares, as a message field."""
        return seal_opaque(text, nbytes, real=not self.ideal)


class MaskingClient(ClientAggregator):
    """Client side: it masks replies, keeps shares, and refuses to open certain sums."""

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        MaskKeysRequest: {
            "batch": "ascending, each once",
            "sums": "the agreed number",
            "threshold": "the agreed number",
        },
        MaskRoster: {
            "parties": "different clients of the agreement, at least the threshold",
            "keys": "one for each client, including the receiver; accepted once in a batch",
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

    def __init__(self, aggregation: MaskedAggregation, name: str, context: SumContext) -> None:
        super().__init__()
        self._aggregation, self._name, self._context = aggregation, name, context
        self._shares: dict[int, int] = {}  # number of replies that the noise of a sum needs
        self._rostered, self._boxed = Once(), Once()  # of the current batch
        self._batches = Turns(1 << 31, gaps=True)  # a client that drops out misses batches
        self._opened = SurvivorSets(exposing=aggregation.exposing)
        self.ledger = OperationCounter()
        self._masker: MaskingParty | IdealMaskingParty
        self._dealt = 0

    def accepts(self, message: Message) -> bool:
        """Return whether a message belongs to the rounds of this protocol."""
        return isinstance(message, (MaskKeysRequest, MaskRoster, MaskBoxes, MaskSurvivors))

    def handle(self, message: Message) -> Message | None:
        """Handle a message of the server in round 0, 1 or 3 of the protocol, and return the reply.

        It raises `ProtocolError` if the server requests other public parameters than agreed, and
        `BeyondParametersError` if a message violates one of the `rules`.
        """
        aggregation = self._aggregation
        if isinstance(message, MaskKeysRequest):
            plan = aggregation.plan(self._context.parties, message.batch)
            if (message.sums, message.threshold) != (plan.sums, plan.threshold):
                raise ProtocolError(
                    f"keys for {message.sums} sums of {message.threshold} are asked for; agreed on "
                    f"are {plan.sums} of {plan.threshold}"
                )
            self._batches.take(message, "batch")
            self._shares, self._rostered, self._boxed = {}, Once(), Once()
            batch, opened = message.batch, self._opened
            self._masker = aggregation.masker(plan, batch, self._name, self.ledger, opened)
            return MaskKeys(aggregation.opaque(self._masker.advertise(), KEY_BYTES))
        if isinstance(message, MaskRoster):
            roster_names = self._named_parties(message, message.parties)
            self._rostered.take(message)
            self._dealt = len(roster_names)
            text = self._masker.deal(message.keys.payload, roster_names)
            return MaskShares(
                aggregation.opaque(text, self._masker.plan.deal_bytes(len(roster_names)))
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
        text = self._masker.unmask(message.sum, survivors)
        return MaskOpening(message.sum, aggregation.opaque(text, self._dealt * SHARE_BYTES))

    def _named_parties(self, message: Message, parties: str) -> list[str]:
        """Return the parties that a message names. Refuse unknown and repeated names."""
        names = parties.split(",")
        if len({*names}) != len(names) or not {*names} <= {*self._context.parties}:
            rule = f"the names are different ones of {', '.join(self._context.parties)}"
            refuse(message, "parties", rule)
        return names

    def protect(self, reply: Message | None, arguments: Mapping[str, Any]) -> Message | None:
        """Mask all summed fields of the reply as one array. The tag follows the last field.

        `arguments` contains ``sum``, the number of the sum in its batch. It raises `RepeatedError`
        if the client has masked another array for the same sum.
        """
        assert reply is not None
        if arguments["sum"] in self._shares:
            # The difference of two arrays under the same mask is the difference of the plain
            # arrays.
            raise RepeatedError(
                f"{self._name!r} has already masked an array for sum {arguments['sum']}; two "
                "arrays under one mask would reveal their difference. Plan another sum"
            )
        self._shares[arguments["sum"]] = self._context.min_noise_shares.get(type(reply), 0)
        arrays = summed_fields(reply)
        parts = {field: to_integers(array) for field, array in arrays.items()}
        # A single array per reply needs one mask and one tag, whatever the number of fields.
        array = np.concatenate(list(parts.values()))
        text = self._masker.mask(arguments["sum"], array, self._history.digest())
        fields: dict[str, Sealed] = {}
        begin = 0
        for field, array in arrays.items():
            size = 8 * parts[field].size
            # The tag follows the last field.
            size += TAG_BYTES * (len(fields) == len(arrays) - 1)
            payload = text[begin : begin + size]
            fields[field] = Sealed(
                (), array.shape, array.dtype.newbyteorder("<").str, size, payload
            )
            begin += size
        return replace(reply, **fields)


class MaskingServer(ServerAggregator):
    """Server side: it exchanges the messages of all rounds and opens the sums."""

    def __init__(self, aggregation: MaskedAggregation) -> None:
        self._aggregation, self.ledger = aggregation, OperationCounter()
        self._masks: MaskedSum | IdealMaskedSum | None = None
        self._dealt: set[str] = set()  # clients that have keys for the next sums
        self._series: dict[str, tuple[str, ...]] = {}  # survivors of each series
        self._used = self._batches = 0
        self._history: defaultdict[str, Any] = defaultdict(blake2b)

    def record_sent(self, names: Iterable[str], message: Message) -> None:
        """Add a message to the digest of everything that the named clients received."""
        for name in names:
            self._history[name].update(digest_of(message))

    def open_sum(
        self, incomplete_replies: Mapping[str, Message], exchange: AggregationExchange, reason: str
    ) -> Message:
        """Collect masked replies and return their sum. Agree on keys if none are left.

        Parameters
        ----------
        incomplete_replies : mapping of str to Message
            Incomplete reply of every party.
        exchange : AggregationExchange
            Access to the network.
        reason : str
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
            if not self._aggregation.loses(n, reply, exchange)
        }
        plan = self._aggregation.plan(exchange.context.parties, self._batches)
        plan.need(arrived, f"sent {type(next(iter(incomplete_replies.values()))).__name__}")
        _check_noise(names, tuple(arrived), exchange.min_replies)
        first = check_same_fields(arrived.values())
        self._check_series(first.series, tuple(arrived))
        masks = self._masks
        # New keys are needed at the start, if a client returns that missed the last agreement, and
        # if all prepared sums are used.
        if masks is None or not {*arrived} <= self._dealt or self._used == masks.plan.sums:
            masks = self._masks = self._agree(plan, tuple(arrived), exchange)
        index, self._used = self._used, self._used + 1
        for name, reply in exchange.protect(arrived, {"sum": index}, reason).items():
            seals = (getattr(reply, field) for field in summed_fields(first))
            masks.take_array(name, index, b"".join(seal.payload for seal in seals))
        survivors = masks.survivors(index)
        # Clients that are missing from the sum also receive the set of survivors, because they must
        # refuse later sets that would expose a reply together with this one.
        openings = exchange.request(names, MaskSurvivors(index, ",".join(survivors)), _OPEN)
        for name, opening in openings.items():
            masks.take_shares(name, index, opening.shares.payload)
        return replace_sums(first, masks.open_sum(index, self._history[survivors[0]].digest()))

    def _check_series(self, series: str, arrived: tuple[str, ...]) -> None:
        """Raise MissingPartyError unless all sums of a series are over the same parties."""
        # The first sum of a series decides its parties.
        earlier = self._series.setdefault(series, arrived)
        if earlier != arrived:
            differ = [name for name in {**dict.fromkeys(earlier), **dict.fromkeys(arrived)}
                      if (name in earlier) != (name in arrived)]  # fmt: skip
            raise MissingPartyError(
                f"{', '.join(differ)}: in some sums of {series} and missing in other sums, so that "
                f"results from both would be wrong. Earlier sums are over {', '.join(earlier)}. "
                "Wait for the missing parties"
            )

    def _agree(
        self, plan: MaskPlan, names: tuple[str, ...], exchange: AggregationExchange
    ) -> MaskedSum | IdealMaskedSum:
        """Run rounds 0 and 1 with the parties that replied: exchange keys and encrypted shares."""
        aggregation = self._aggregation
        missing = [name for name in plan.parties if name not in names]
        masks = aggregation.unmasker(plan, self._batches, self.ledger)
        request = MaskKeysRequest(self._batches, plan.sums, plan.threshold)
        for name, reply in exchange.request(
            plan.parties, request, _KEYS, disconnected=missing
        ).items():
            masks.take_keys(name, reply.keys.payload)
        self._used, self._batches, self._dealt = 0, self._batches + 1, {*names}
        keys = aggregation.opaque(masks.roster(), KEY_BYTES * len(names))
        for name, dealt in exchange.request(
            names, MaskRoster(",".join(names), keys), _KEYS
        ).items():
            masks.take_deal(name, dealt.boxes.payload)
        boxes_bytes = plan.box_bytes * (len(names) - 1)
        for name, boxes in masks.boxes().items():
            other_names = ",".join(other for other in names if other != name)
            message = MaskBoxes(other_names, aggregation.opaque(boxes, boxes_bytes))
            exchange.request([name], message, _KEYS)
        return masks


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
