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


def read_roster(text: bytes, names: Sequence[str]) -> list[Advertisement]:
    """Read the keys of these parties, one after the other.

    Raises
    ------
    MalformedError
        Here and below: if the length is not as planned.
    """
    keys = _pieces(text, KEY_BYTES, len(names), "the keys of everybody")
    return [Advertisement(party, key) for party, key in zip(names, keys, strict=True)]


def deal_bytes(message: Deal, others: Sequence[str]) -> bytes:
    """Return the boxes for the others, in that order, then the commitments and the locks."""
    boxes = (message.boxes[name] for name in others)
    return b"".join((*boxes, *message.commitments, *message.locks))


def read_deal(text: bytes, plan: MaskPlan, party: str, others: Sequence[str]) -> Deal:
    """Read what `deal_bytes` wrote."""
    boxed = len(others) * sizes.box(plan)
    locked = boxed + plan.sums * sizes.COMMITMENT_BYTES
    commitments, locks = (
        tuple(_pieces(part, size, plan.sums, f"the {what} of {party!r}"))
        for part, size, what in (
            (text[boxed:locked], sizes.COMMITMENT_BYTES, "commitments"),
            (text[locked:], sizes.lock(len(others) + 1), "locks"),
        )
    )
    return Deal(party, read_boxes(text[:boxed], plan, others), commitments, locks)


def boxes_bytes(boxes: Mapping[str, bytes]) -> bytes:
    """Return boxes one after the other."""
    return b"".join(boxes.values())


def read_boxes(text: bytes, plan: MaskPlan, names: Sequence[str]) -> dict[str, bytes]:
    """Return the boxes of these parties, by name."""
    found = _pieces(text, sizes.box(plan), len(names), f"the boxes of {', '.join(names)}")
    return dict(zip(names, found, strict=True))


def unmasking_bytes(message: Unmasking, dealt: Sequence[str]) -> bytes:
    """Return one share for each party that dealt, in that order."""
    given = {**message.self_masks, **message.lock_keys}
    return b"".join(given[name] for name in dealt)


def read_unmasking(
    text: bytes, party: str, index: int, dealt: Sequence[str], survivors: Sequence[str]
) -> Unmasking:
    """Read what `unmasking_bytes` wrote: self-masks of survivors, lock keys of the others."""
    found = _pieces(text, SHARE_BYTES, len(dealt), f"the shares of {party!r}")
    given = dict(zip(dealt, found, strict=True))
    stayed = {name: share for name, share in given.items() if name in survivors}
    gone = {name: share for name, share in given.items() if name not in survivors}
    return Unmasking(party, index, stayed, gone)


def _pieces(text: bytes, size: int, count: int, what: str) -> list[bytes]:
    if len(text) != size * count:
        raise MalformedError(f"{what} take {len(text)} bytes; planned are {count} of {size}")
    return [text[size * i : size * (i + 1)] for i in range(count)]
