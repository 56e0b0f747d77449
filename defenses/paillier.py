"""Secure aggregation under a Paillier key, computed."""

from collections import defaultdict
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
from fedtrees.core.errors import UsageError, check_flag, check_whole
from fedtrees.core.messages import Message, Trait
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.sealed import Sealed
from fedtrees.crypto import encrypted_sums
from fedtrees.defenses.real_sums import RealSums, opaque
from fedtrees.messages.aggregation import OpenedSum, PaillierKey
from fedtrees.sealing import sizes
from fedtrees.sealing.ledger import Ledger, costs_by_party
from fedtrees.sealing.slots import Slots

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

    The first client draws the key; nobody else has it. The server multiplies the ciphertexts of the
    others and sends the product to that client, which decrypts it, adds its own numbers and returns
    the sum. So the server sees what it
    sees under ``secure-sum``, **and the first client sees every sum too**. The server and the first
    client together read every client.

    Parameters
    ----------
    bits : {1024, 2048, 3072}
        Length of the key; 1024 is weak, and for comparison.
    packing : int or None
        Bits that a sum is given in a plaintext, 8 to 64. None: what the declared numbers of rows
        and of each class can need, 64 where rows have weights or somebody adds noise. A number
        that does not fit stops the run.
    djn : bool
        Obfuscators of clients without the private key are short powers (Damgaard, Jurik, Nielsen
        2010), which has an assumption of its own; false: ``r^n``, some 15 times slower.
    mode : {"real", "ideal"}
        ``ideal``: the same views and byte counts without arithmetic.
    """

    bits: int = sizes.DEFAULT_BITS
    packing: int | None = None
    djn: bool = True
    mode: str = "real"

    acts_through = frozenset({"aggregation", "summed"})
    always_read = "sums-to-key-holder"
    opens_to = frozenset({"client"})

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes.check_key_bits("bits", self.bits)
        if self.packing is not None:
            check_whole("packing", self.packing, 8, _INT64_BITS)
        check_flag("djn", self.djn)

    def strength(self) -> tuple[int, str]:
        """Return that of the key, and the assumptions."""
        return _STRENGTH[self.bits], "paillier+djn" if self.djn else "paillier"

    def aggregation(self) -> Aggregation:
        """Make the key holder, the adder and the others of one run."""
        return PaillierSums(self)

    def undone_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return why, where the server colludes with the holder of the key."""
        holder = next((name for name, role in roles.items() if role == "client"), None)
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or holder is None or holder not in principals:
            return None
        return Reason("key-and-ciphertexts", server=servers[0], holder=holder, defense=self.name)


class PaillierSums(Aggregation):
    """The sums of one run under a key: who says what to whom."""

    def __init__(self, how: Paillier) -> None:
        self._how, self._real = how, how.mode == "real"
        self._ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._sums: encrypted_sums.EncryptedSums | None = None
        self._classes: NDArray[np.float64] | None = None  # rows of each, once everybody knows
        self._parties: tuple[str, ...] = ()
        self._holder = ""

    def costs(self) -> Mapping[str, float]:
        """Return what it took."""
        return costs_by_party(self._ledgers)

    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let encrypted replies cross, add them, and let the holder of the key open the sum.

        Raises `MissingPartyError` if somebody's reply is not there who had a part in the first sum.
        """
        first, server = agreed(replies.values()), wire.server
        sums = self._sums or self._agree(tuple(replies), wire)
        encrypted_sums.check_all(self._parties, replies)
        others = {name: reply for name, reply in replies.items() if name != self._holder}
        texts: dict[str, dict[str, bytes]] = {name: {} for name in others}
        slots: dict[str, Slots] = {}
        added: dict[str, bytes] = {}
        opened: dict[str, NDArray[np.int64]] = {}
        arrays = summands(first)
        for field, array in arrays.items():
            where = slots[field] = self._slots(first, array, wire, len(replies))
            numbers = {name: whole(summands(reply)[field]) for name, reply in replies.items()}
            own = numbers[self._holder]
            where.check(own)
            if where.ranges:  # nobody sees whether all together keep to them: it is checked here
                where.check(np.sum(list(numbers.values()), axis=0))
            for name in others:
                texts[name][field] = sums.encrypted(name, numbers[name], where)
            sent = {name: text[field] for name, text in texts.items()}
            added[field] = sums.added(server, sent, own.size, where)
            opened[field] = sums.opened(added[field], own.size, where) + own
        for name, reply in others.items():
            wire.carry(name, (server,), self._sealed(name, reply, texts[name], slots), why)
        product = self._sealed(server, first, added, slots)
        wire.carry(server, (self._holder,), product, _ADDED)
        whole_sums = {f: from_whole(opened[f], a.shape, a.dtype) for f, a in arrays.items()}
        total = replace(first, **whole_sums)
        if Trait.LABELS_COUNTED in total.traits:
            self._classes = summands(total)["sums"][1:]
        wire.carry(self._holder, (self._holder,), total, _OPENED)
        message = OpenedSum(type(first).__name__, np.concatenate(list(opened.values())))
        wire.carry(self._holder, (server,), message, _OPENED)
        return total

    def _agree(self, names: tuple[str, ...], wire: Wire) -> encrypted_sums.EncryptedSums:
        """Let the first client draw a key and tell its public part."""
        how, self._parties, (self._holder, *others) = self._how, names, names
        if not others:
            raise UsageError(
                f"{how.name!r} needs two clients or more: the sum of one is its own; leave it out"
            )
        sums: encrypted_sums.EncryptedSums
        if self._real:
            sums = encrypted_sums.RealSums(names, how.bits, how.djn, self._ledgers)
        else:
            sums = encrypted_sums.IdealSums(self._holder, how.bits, self._ledgers)
        size = sizes.public_key_bytes(how.bits, how.djn)
        key = opaque(sums.public_key(), size, real=self._real)
        message = PaillierKey(self._holder, how.bits, key)
        wire.carry(self._holder, (wire.server,), message, _KEY)
        wire.carry(wire.server, tuple(others), message, _KEY)
        self._sums = sums
        return sums

    def _slots(self, reply: Message, array: NDArray[Any], wire: Wire, terms: int) -> Slots:
        """Return places for sums of a field, as public knowledge bounds them."""
        if array.dtype.kind == "f":
            return Slots(FLOAT_LIMIT, terms)
        most = (1 << (self._how.packing or _INT64_BITS) - 1) - 1
        ranges = None if self._how.packing else self._ranges(reply, wire)
        if ranges is None or (bound := max(max(-low, high) for low, high in ranges)) > most:
            return Slots(most // terms, terms)
        return Slots(bound, terms, ranges)

    def _ranges(self, reply: Message, wire: Wire) -> tuple[tuple[int, int], ...] | None:
        """Return between what sums are, place by place in turn; None: nothing public tells."""
        if wire.rows is None or not wire.exact:
            return None
        rows = max(wire.rows, 1)
        if Trait.COUNTED in reply.traits:
            return ((0, rows),)
        numeric = not wire.classes or wire.parameters.get("objective") == "reg:squarederror"
        if Trait.GRADIENTS not in reply.traits or numeric:
            return None
        g_bits, h_bits = (getattr(reply, name) for name in ("g_bits", "h_bits"))
        # Of each row p - y and p (1 - p), of several classes 2 p (1 - p): y is 1 for as many rows
        # as the base score tells everybody.
        below = above = rows
        if self._classes is not None and len(self._classes) == 2:
            above, below = map(int, self._classes)
        hessians = -(-rows // 2) << h_bits
        if wire.classes == 2:
            hessians = -(-(rows << h_bits) // 4)
        return (-below << g_bits, above << g_bits), (0, hessians)

    def _sealed(
        self, sender: str, reply: Message, texts: Mapping[str, bytes], slots: Mapping[str, Slots]
    ) -> Message:
        """Return a reply with ciphertexts in place of its summed fields, and count them."""
        fields = {}
        for field, text in texts.items():
            array = getattr(reply, field)
            count, nbytes = sizes.array(size_of_whole(array), slots[field], self._how.bits)
            assert len(text) == (nbytes if self._real else 0)
            dtype = array.dtype.newbyteorder("<").str
            fields[field] = Sealed((self._holder,), array.shape, dtype, nbytes, text)
            self._ledgers[sender].sent(type(reply).__name__, count, nbytes)
        return replace(reply, **fields)
