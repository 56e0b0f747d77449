"""Secure aggregation by pairwise masks, computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.sealed import Sealed
from fedtrees.crypto import sizes
from fedtrees.crypto.ledger import Ledger, costs_of
from fedtrees.crypto.mask_messages import MaskPlan, usual_threshold
from fedtrees.crypto.mask_rounds import IdealMasks, MaskRounds, RealMasks
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

# Sums whose keys are agreed on at once. Each has keys of its own (`MaskPlan.sums`); those that are
# left at the end of a run were made for nothing.
SUMS_AT_ONCE = 16

_KEYS = "keys and shares for masks: none of them opens a single client's values"
_OPEN = "shares that open the sum of those whose values came, and no other"


@register.defense("masking")
@dataclass(frozen=True)
class Masking(RealSums):  # type: ignore[misc]
    """Let the server open only sums, by masks that cancel in them (Bonawitz et al. 2017, figure 4).

    X25519 for each pair and sum, HKDF-SHA256, ChaCha20, Shamir shares. Whoever colludes with the
    server and with so many clients that they reach the threshold reads every client.

    Parameters
    ----------
    threshold : int or None
        How many clients must stay to the end for a sum to be opened, above half of them; None: two
        thirds and one.
    mode : {"real", "ideal"}
        ``ideal``: the same views and byte counts without arithmetic.
    """

    threshold: int | None = None
    mode: str = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and (type(self.threshold) is not int or self.threshold < 2):
            raise UsageError(f"threshold={self.threshold!r}: give a whole number, 2 or more")

    def strength(self) -> tuple[int, str]:
        """Return that of X25519 and ChaCha20."""
        return 128, "x25519+chacha20"

    def aggregation(self) -> Aggregation:
        """Make the rounds of one run."""
        return MaskedSums(self.threshold, RealMasks if self.mode == "real" else IdealMasks)

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> str | None:
        """Return why, where the server colludes with as many clients as the threshold."""
        clients = [name for name, role in roles.items() if role == "client"]
        colluding = [name for name in clients if name in principals]
        threshold = self.threshold or usual_threshold(len(clients))
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or len(colluding) < threshold or len(clients) - len(colluding) < 2:
            return None
        return (
            f"{', '.join((*servers, *colluding))} hold {len(colluding)} shares of every secret, "
            f"and {threshold} open it: they read every client as without {self.name!r}. Leave it "
            "out, or raise its threshold"
        )


class MaskedSums(Aggregation):
    """The sums of one run under masks: who says what to whom.

    Parameters
    ----------
    threshold : int or None
    rounds : type
        `RealMasks` or `IdealMasks`.
    """

    def __init__(self, threshold: int | None, rounds: type[RealMasks] | type[IdealMasks]) -> None:
        self._threshold, self._rounds = threshold, rounds
        self._real = rounds is RealMasks
        self._ledger = Ledger()
        self._masks: MaskRounds | None = None
        self._used = self._batches = 0

    def costs(self) -> Mapping[str, float]:
        """Return what it took."""
        return dict(costs_of(self._ledger))

    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Agree on keys where none are left, let masked replies cross, and open their sum."""
        first, names = agreed(replies.values()), tuple(replies)
        masks = self._masks
        if masks is None or masks.plan.parties != names or self._used == masks.plan.sums:
            masks = self._masks = self._agree(names, wire)
        index, self._used = self._used, self._used + 1
        for name, reply in replies.items():
            wire.carry(name, (wire.server,), self._masked(masks, name, index, reply), why)
        wire.carry(wire.server, names, MaskSurvivors(index, ",".join(names)), _OPEN)
        for name in names:
            text = masks.opening(name, index, names)
            shares = opaque(text, sizes.unmasking(len(names)), real=self._real)
            wire.carry(name, (wire.server,), MaskOpening(index, shares), _OPEN)
        return _put(first, masks.opened(index))

    def _masked(self, masks: MaskRounds, name: str, index: int, reply: Message) -> Message:
        """Let a client mask all its summed fields as one array; return its reply as it crosses."""
        arrays = summands(reply)
        parts = {field: whole(array) for field, array in arrays.items()}
        text = masks.masked(name, index, np.concatenate(list(parts.values())))
        fields, begin = {}, 0
        for field, array in arrays.items():
            size = sizes.masked(parts[field].size)
            payload = text[begin : begin + size]
            fields[field] = Sealed(
                (), array.shape, array.dtype.newbyteorder("<").str, size, payload
            )
            begin += size
        return replace(reply, **fields)

    def _agree(self, names: tuple[str, ...], wire: Wire) -> MaskRounds:
        """Rounds 0 and 1, for the next sums: keys, and shares of secrets in boxes."""
        threshold = self._threshold or usual_threshold(len(names))
        plan = MaskPlan(names, threshold, SUMS_AT_ONCE, b"fedtrees, batch %d" % self._batches)
        masks, server, real = self._rounds(plan, self._ledger), wire.server, self._real
        wire.carry(server, names, MaskKeysRequest(self._batches, plan.sums, threshold), _KEYS)
        self._used, self._batches = 0, self._batches + 1
        roster, size = b"", sizes.advertisement(plan)
        for name in names:
            text = masks.keys(name)
            roster += text
            wire.carry(name, (server,), MaskKeys(opaque(text, size, real=real)), _KEYS)
        keys = opaque(roster, size * len(names), real=real)
        wire.carry(server, names, MaskRoster(",".join(names), keys), _KEYS)
        for name in names:
            dealt = opaque(masks.shares(name, roster), sizes.deal(plan, len(names)), real=real)
            wire.carry(name, (server,), MaskShares(dealt), _KEYS)
        for name in names:
            others = ",".join(other for other in names if other != name)
            boxes = opaque(masks.boxes(name), sizes.box(plan) * (len(names) - 1), real=real)
            wire.carry(server, (name,), MaskBoxes(others, boxes), _KEYS)
        return masks


def _put(first: Message, opened: NDArray[np.int64]) -> Message:
    """Return the message with its summed fields from one array of whole numbers."""
    found, begin = {}, 0
    for field, array in summands(first).items():
        size = size_of_whole(array)
        found[field] = from_whole(opened[begin : begin + size], array.shape, array.dtype)
        begin += size
    return replace(first, **found)
