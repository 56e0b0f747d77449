"""Secure aggregation under a Paillier key, computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import (
    FLOAT_LIMIT,
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
from fedtrees.crypto import encrypted_sums, sizes
from fedtrees.crypto.keys import DEFAULT_BITS, KEY_BITS
from fedtrees.crypto.ledger import Ledger, costs_of
from fedtrees.crypto.slots import Slots
from fedtrees.defenses.real_sums import RealSums, opaque
from fedtrees.messages.aggregation import OpenedSum, PaillierKey
from fedtrees.messages.boosting import Histogram
from fedtrees.messages.cuts import GridCounts
from fedtrees.messages.forests import ClassCounts, ClassTotals

# Symmetric strength of a modulus of so many bits (NIST SP 800-57, part 1, table 2).
_STRENGTH = {1024: 80, 2048: 112, 3072: 128}

_INT64_BITS = 64
_KEY = "the public key that everybody encrypts under; its holder opens sums"
_ADDED = "the encrypted sum, for the holder of the key to open"
_OPENED = "the sum, opened by the holder of the key"


@register.defense("paillier")
@dataclass(frozen=True)
class Paillier(RealSums):  # type: ignore[misc]
    """Let the server add what it cannot read (Paillier 1999), and one client open the sums.

    The first client draws the key; nobody else has it. The server multiplies ciphertexts and sends
    the product to that client, which decrypts it and returns the sum. So the server sees what it
    sees under ``secure-sum``, **and the first client sees every sum too**. The server and the first
    client together read every client.

    Parameters
    ----------
    bits : {1024, 2048, 3072}
        Length of the key; 1024 is weak, and for comparison.
    packing : int or None
        Bits that a sum is given in a plaintext, 8 to 64. None: as many as the declared number of
        rows can need, 64 where rows have weights or somebody adds noise. A number that does not
        fit stops the run.
    djn : bool
        Obfuscators of clients without the private key are short powers (Damgaard, Jurik, Nielsen
        2010), which has an assumption of its own; false: ``r^n``, some 15 times slower.
    mode : {"real", "ideal"}
        ``ideal``: the same views and byte counts without arithmetic.
    """

    bits: int = DEFAULT_BITS
    packing: int | None = None
    djn: bool = True
    mode: str = "real"

    always_read = "sums-to-key-holder"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in KEY_BITS:
            known = ", ".join(map(str, KEY_BITS))
            raise UsageError(f"bits={self.bits!r}: a Paillier key has one of {known}")
        width = self.packing
        if width is not None and (type(width) is not int or not 8 <= width <= _INT64_BITS):
            raise UsageError(f"packing={width!r}: give a whole number of bits from 8 to 64")
        if not isinstance(self.djn, bool):
            raise UsageError(f"djn={self.djn!r}: give true or false")

    def strength(self) -> tuple[int, str]:
        """Return that of the key, and the assumptions."""
        return _STRENGTH[self.bits], "paillier+djn" if self.djn else "paillier"

    def aggregation(self) -> Aggregation:
        """Make the key holder, the adder and the others of one run."""
        return PaillierSums(self)

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> str | None:
        """Return why, where the server colludes with the holder of the key."""
        holder = next((name for name, role in roles.items() if role == "client"), None)
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or holder not in principals:
            return None
        return (
            f"{servers[0]} has every client's ciphertexts and {holder} the key: together they read "
            f"every client as without {self.name!r}. Leave it out, or use 'masking'"
        )


class PaillierSums(Aggregation):
    """The sums of one run under a key: who says what to whom.

    Parameters
    ----------
    how : Paillier
    """

    def __init__(self, how: Paillier) -> None:
        self._how, self._real = how, how.mode == "real"
        self._ledger = Ledger()
        self._sums: encrypted_sums.EncryptedSums | None = None
        self._holder = ""

    def costs(self) -> Mapping[str, float]:
        """Return what it took."""
        return dict(costs_of(self._ledger))

    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let encrypted replies cross, add them, and let the holder of the key open the sum."""
        first, server, names = agreed(replies.values()), wire.server, tuple(replies)
        sums = self._sums or self._agree(names, wire)
        slots = {
            field: self._slots(first, array, wire, len(names))
            for field, array in summands(first).items()
        }
        texts: dict[str, dict[str, bytes]] = {name: {} for name in names}
        added: dict[str, bytes] = {}
        opened: dict[str, NDArray[np.int64]] = {}
        arrays = summands(first)
        for field, array in arrays.items():
            where, size = slots[field], size_of_whole(array)
            for name, reply in replies.items():
                texts[name][field] = sums.encrypted(name, whole(summands(reply)[field]), where)
            added[field] = sums.added([text[field] for text in texts.values()], size, where)
            opened[field] = sums.opened(added[field], size, where)
        for name, reply in replies.items():
            wire.carry(name, (server,), self._sealed(reply, texts[name], slots), why)
        wire.carry(server, (self._holder,), self._sealed(first, added, slots), _ADDED)
        whole_sums = {f: from_whole(opened[f], a.shape, a.dtype) for f, a in arrays.items()}
        total = replace(first, **whole_sums)
        wire.carry(self._holder, (self._holder,), total, _OPENED)
        message = OpenedSum(type(first).__name__, np.concatenate(list(opened.values())))
        wire.carry(self._holder, (server,), message, _OPENED)
        return total

    def _agree(self, names: tuple[str, ...], wire: Wire) -> encrypted_sums.EncryptedSums:
        """Let the first client draw a key and tell its public part."""
        how, (self._holder, *others) = self._how, names
        if not others:
            raise UsageError(
                f"{how.name!r} needs two clients or more: the sum of one is its own; leave it out"
            )
        sums: encrypted_sums.EncryptedSums
        if self._real:
            sums = encrypted_sums.RealSums(self._holder, how.bits, how.djn, self._ledger)
        else:
            sums = encrypted_sums.IdealSums(how.bits, self._ledger)
        size = encrypted_sums.public_key_bytes(how.bits, how.djn)
        key = opaque(sums.public_key(), size, real=self._real)
        message = PaillierKey(self._holder, how.bits, key)
        wire.carry(self._holder, (wire.server,), message, _KEY)
        wire.carry(wire.server, tuple(others), message, _KEY)
        self._sums = sums
        return sums

    def _slots(self, reply: Message, array: NDArray[Any], wire: Wire, terms: int) -> Slots:
        """Return places for sums of a field, as public knowledge bounds them."""
        limit = FLOAT_LIMIT
        if array.dtype.kind != "f":
            most = (1 << (self._how.packing or _INT64_BITS) - 1) - 1
            limit = most // terms
            known = _bound(reply, wire) if self._how.packing is None else None
            limit = limit if known is None else min(limit, known)
        return Slots(limit, terms)

    def _sealed(
        self, reply: Message, texts: Mapping[str, bytes], slots: Mapping[str, Slots]
    ) -> Message:
        """Return a reply with ciphertexts in place of its summed fields, and count them."""
        fields = {}
        for field, text in texts.items():
            array = getattr(reply, field)
            count, nbytes = sizes.array(size_of_whole(array), slots[field], self._how.bits)
            assert len(text) == (nbytes if self._real else 0)
            dtype = array.dtype.newbyteorder("<").str
            fields[field] = Sealed((self._holder,), array.shape, dtype, nbytes, text)
            self._ledger.sent(type(reply).__name__, count, nbytes)
        return replace(reply, **fields)


def _bound(reply: Message, wire: Wire) -> int | None:
    """Return what no summed whole number of a party exceeds, None where nothing public tells."""
    if wire.rows is None or not wire.exact:
        return None
    if isinstance(reply, (ClassCounts, ClassTotals, GridCounts)):
        return max(wire.rows, 1)
    bounded = wire.classes > 0 and wire.parameters.get("objective") != "reg:squarederror"
    if isinstance(reply, Histogram) and bounded:  # |g| <= 1 and 0 <= h <= 1 of every row
        return max(wire.rows, 1) << max(reply.bits)
    return None
