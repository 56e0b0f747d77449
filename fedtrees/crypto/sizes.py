"""Sizes of the messages of secure aggregation by masks, computed without encryption.

The ideal functionality uses them to count the same traffic as real cryptography.
"""

from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import MaskPlan
from fedtrees.crypto.shamir import SHARE_BYTES

BOX_OVERHEAD = 16  # tag of a box with shares, and of a lock, in bytes
COMMITMENT_BYTES = 32
TAG_BYTES = 16  # of a masked array


def box(plan: MaskPlan) -> int:
    """Return the bytes of one box of a `Deal`."""
    return BOX_OVERHEAD + 2 * plan.sums * SHARE_BYTES


def lock(advertised: int) -> int:
    """Return the bytes of one lock of a `Deal` among `advertised` parties."""
    return BOX_OVERHEAD + (advertised - 1) * KEY_BYTES


def deal(plan: MaskPlan, advertised: int) -> int:
    """Return the bytes of a `Deal` among `advertised` parties."""
    return (advertised - 1) * box(plan) + plan.sums * (COMMITMENT_BYTES + lock(advertised))


def masked(size: int) -> int:
    """Return the bytes of a `MaskedArray` with `size` elements, without its tag."""
    return 8 * size


def unmasking(dealt: int) -> int:
    """Return the bytes of an `Unmasking` if `dealt` parties dealt shares."""
    return dealt * SHARE_BYTES
