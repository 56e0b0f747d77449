"""The messages of masking as bytes, of the lengths that `fedtrees.crypto.sizes` states, and back.

Who is meant by which part is known from the plan and the rounds before; names are not in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedtrees.crypto import sizes
from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.errors import MalformedError
from fedtrees.crypto.mask_messages import Advertisement, Deal, MaskPlan, Unmasking
from fedtrees.crypto.shamir import SHARE_BYTES


def advertisement_bytes(message: Advertisement) -> bytes:
    """Return the transport key, then the masking keys."""
    return b"".join((message.transport, *message.masking))


def read_advertisement(text: bytes, plan: MaskPlan, party: str) -> Advertisement:
    """Read what `advertisement_bytes` wrote.

    Raises
    ------
    MalformedError
        Here and below: if the length is not as planned.
    """
    first, *keys = _pieces(text, KEY_BYTES, 1 + plan.sums, f"the keys of {party!r}")
    return Advertisement(party, first, tuple(keys))


def read_roster(text: bytes, plan: MaskPlan, names: Sequence[str]) -> list[Advertisement]:
    """Read the keys of these parties, one after the other."""
    each = _pieces(text, sizes.advertisement(plan), len(names), "the keys of everybody")
    return [read_advertisement(t, plan, p) for t, p in zip(each, names, strict=True)]


def deal_bytes(message: Deal, others: Sequence[str]) -> bytes:
    """Return the boxes for the others, in that order, then the commitments."""
    return b"".join((*(message.boxes[name] for name in others), *message.commitments))


def read_deal(text: bytes, plan: MaskPlan, party: str, others: Sequence[str]) -> Deal:
    """Read what `deal_bytes` wrote."""
    boxed = len(others) * sizes.box(plan)
    commitments = _pieces(
        text[boxed:], sizes.COMMITMENT_BYTES, plan.sums, f"the commitments of {party!r}"
    )
    return Deal(party, read_boxes(text[:boxed], plan, others), tuple(commitments))


def boxes_bytes(boxes: Mapping[str, bytes]) -> bytes:
    """Return boxes one after the other."""
    return b"".join(boxes.values())


def read_boxes(text: bytes, plan: MaskPlan, names: Sequence[str]) -> dict[str, bytes]:
    """Return the boxes of these parties, by name."""
    found = _pieces(text, sizes.box(plan), len(names), f"the boxes of {', '.join(names)}")
    return dict(zip(names, found, strict=True))


def unmasking_bytes(message: Unmasking, dealt: Sequence[str]) -> bytes:
    """Return one share for each party that dealt, in that order."""
    given = {**message.self_masks, **message.masking_keys}
    return b"".join(given[name] for name in dealt)


def read_unmasking(
    text: bytes, party: str, index: int, dealt: Sequence[str], survivors: Sequence[str]
) -> Unmasking:
    """Read what `unmasking_bytes` wrote: self-masks of survivors, keys of the others."""
    found = _pieces(text, SHARE_BYTES, len(dealt), f"the shares of {party!r}")
    given = dict(zip(dealt, found, strict=True))
    stayed = {name: share for name, share in given.items() if name in survivors}
    gone = {name: share for name, share in given.items() if name not in survivors}
    return Unmasking(party, index, stayed, gone)


def _pieces(text: bytes, size: int, count: int, what: str) -> list[bytes]:
    if len(text) != size * count:
        raise MalformedError(f"{what} take {len(text)} bytes; planned are {count} of {size}")
    return [text[size * i : size * (i + 1)] for i in range(count)]
