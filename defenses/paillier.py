"""Secure aggregation under a Paillier key, computed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import (
    FLOAT_LIMIT,
    Aggregation,
    Closing,
    Known,
    Opening,
    Wire,
    agreed,
    from_whole,
    size_of_whole,
    summands,
    summed,
    whole,
)
from fedtrees.core.errors import UsageError, check_flag, check_whole
from fedtrees.core.messages import Message, Trait
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, check_equal
from fedtrees.core.sealed import Sealed
from fedtrees.crypto import encrypted_sums
from fedtrees.defenses.real_sums import RealSums, opaque
from fedtrees.messages.aggregation import OpenedSum, PaillierKey, PaillierSeeds
from fedtrees.sealing import sizes
from fedtrees.sealing.ledger import Ledger, Told, costs_by_party
from fedtrees.sealing.slots import Slots

# Symmetric strength of a modulus of so many bits (NIST SP 800-57, part 1, table 2).
_STRENGTH = {1024: 80, 2048: 112, 3072: 128}

_INT64_BITS = 64
_KEY = "the public key that everybody encrypts under; its holder opens sums"
_SEEDS = "seeds of masks that bind a sum to what all were told, for the holder of the key"
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


@dataclass(frozen=True)
class Declared:
    """What bounds sums: rows, None where they have weights; and of each class, once known."""

    rows: int | None
    classes: tuple[int, ...] = ()


def ranges(reply: Message, known: Known, told: Declared) -> tuple[tuple[int, int], ...] | None:
    """Return between what sums over so many rows are, place by place in turn; None: unknown."""
    if told.rows is None or not known.exact:
        return None
    rows = max(told.rows, 1)
    if Trait.COUNTED in reply.traits:
        return ((0, rows),)
    numeric = not known.classes or known.parameters.get("objective") == "reg:squarederror"
    if Trait.GRADIENTS not in reply.traits or numeric:
        return None
    g_bits, h_bits = (getattr(reply, name) for name in ("g_bits", "h_bits"))
    # Of each row p - y and p (1 - p), of several classes 2 p (1 - p): y is 1 for as many rows
    # as the base score tells everybody.
    below = above = rows
    if len(told.classes) == 2:
        above, below = told.classes
    hessians = -(-rows // 2) << h_bits
    if known.classes == 2:
        hessians = -(-(rows << h_bits) // 4)
    return (-below << g_bits, above << g_bits), (0, hessians)


class PaillierSums(Aggregation):
    """The sums of one run under a key."""

    def __init__(self, how: Paillier) -> None:
        self.how, self.ideal = how, how.mode == "ideal"
        self._inside: dict[str, NDArray[Any]] = {}

    def closing(self, name: str, rows: int | None, known: Known) -> Closing:
        """Make the side of the holder of the key, who is the first, or of another client."""
        return (KeyHolding if name == known.parties[0] else Encrypting)(self, name, rows, known)

    def opening(self) -> Opening:
        """Make the side of whoever adds."""
        return Adding(self)

    def costs(self, ledgers: Mapping[str, Told]) -> Mapping[str, float]:
        """Return what it took."""
        return costs_by_party(ledgers)

    def holder(self, others: int, ledger: Ledger) -> encrypted_sums.KeyHolder:
        """Make what the holder of the key computes with."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealHolder(how.bits, ledger, self._inside)
        return encrypted_sums.RealHolder(others, how.bits, how.djn, ledger)

    def encrypter(self, name: str, ledger: Ledger) -> encrypted_sums.Encrypter:
        """Make what another client computes with."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealEncrypter(how.bits, ledger, self._inside)
        return encrypted_sums.RealEncrypter(name, how.djn, ledger)

    def adder(self, others: Sequence[str], ledger: Ledger) -> encrypted_sums.Adder:
        """Make what whoever adds computes with."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealAdder(how.bits, ledger, self._inside)
        return encrypted_sums.RealAdder(others, ledger)

    def slots(self, reply: Message, field: Any, known: Known, told: Declared) -> Slots:
        """Return places for sums of a field, as public knowledge bounds them."""
        terms = len(known.parties)
        if np.dtype(field.dtype).kind == "f":
            return Slots(FLOAT_LIMIT, terms)
        limit = (1 << (self.how.packing or _INT64_BITS) - 1) - 1
        field_ranges = None if self.how.packing else ranges(reply, known, told)
        if (
            field_ranges is None
            or (bound := max(max(-low, high) for low, high in field_ranges)) > limit
        ):
            return Slots(limit // terms, terms)
        return Slots(bound, terms, field_ranges)

    def seeds(self, names: Sequence[str], texts: Iterable[bytes]) -> PaillierSeeds:
        """Return the sealed seeds of parties as a message."""
        size = len(names) * sizes.rows(1, self.how.bits).nbytes
        return PaillierSeeds(",".join(names), opaque(b"".join(texts), size, real=not self.ideal))

    def sealed(
        self, reply: Message, texts: Mapping[str, bytes], slots: Mapping[str, Slots],
        holder: str, ledger: Ledger,
    ) -> Message:  # fmt: skip
        """Return a reply with ciphertexts in place of its summed fields, and count them."""
        fields = {}
        for field, text in texts.items():
            value = getattr(reply, field)
            count, nbytes = sizes.array(size_of_whole(value), slots[field], self.how.bits)
            assert len(text) == (0 if self.ideal else nbytes)
            dtype = np.dtype(value.dtype).newbyteorder("<").str
            fields[field] = Sealed((holder,), value.shape, dtype, nbytes, text)
            ledger.sent(type(reply).__name__, count, nbytes)
        return replace(reply, **fields)


class _Client(Closing):
    """What holder and others share: what they know of the sums, and of their own rows."""

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, known: Known) -> None:
        super().__init__()
        self._sums, self._name, self._known = sums, name, known
        self.ledger = Ledger()
        self._own = Declared(rows)

    def _numbers(self, reply: Message, how: Mapping[str, Any]) -> tuple[Any, dict[str, Slots]]:
        """Return its summed fields as whole numbers, checked by its own rows, and their slots.

        Nobody sees whether all together keep to what is declared: each sees to its own part.
        """
        declared = Declared(how["rows"], tuple(how["classes"]))
        arrays = summands(reply)
        slots = {f: self._sums.slots(reply, a, self._known, declared) for f, a in arrays.items()}
        numbers = {field: whole(array) for field, array in arrays.items()}
        own_ranges = ranges(reply, self._known, self._own)
        for field, where in slots.items():
            checked = (
                where
                if own_ranges is None or not where.ranges
                else replace(where, ranges=own_ranges)
            )
            checked.check(numbers[field])
        if Trait.LABELS_COUNTED in reply.traits:
            classes = (max(int(rows), 1) for rows in arrays["sums"][1:])  # it may have none
            self._own = replace(self._own, classes=tuple(classes))
        return numbers, slots


class KeyHolding(_Client):
    """The first client's side: it draws the key, and opens sums.

    A product of other ciphertexts than those of all other clients does not open: their seeds bind
    them to one another, and to what all were told.
    """

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        PaillierSeeds: {
            "parties": "all other clients of the agreement, in order",
            "seeds": "taken once",
        },
    }

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, known: Known) -> None:
        super().__init__(sums, name, rows, known)
        self._holder: encrypted_sums.KeyHolder
        self._seeded = Once()
        self._reply: Message | None = None  # its part of the sum that it will open

    def takes(self, message: Message) -> bool:
        """Tell whether it is a sum to be opened, or what opens it."""
        return isinstance(message, PaillierSeeds) or type(message) is type(self._reply)

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Return the public key where it is asked for; its own reply crosses nowhere."""
        if how.get("key"):
            sums, bits = self._sums, self._sums.how.bits
            self._holder = sums.holder(len(self._known.parties) - 1, self.ledger)
            size = sizes.public_key_bytes(bits, sums.how.djn)
            key = opaque(self._holder.public_key(), size, real=not sums.ideal)
            return PaillierKey(self._name, bits, key)
        assert reply is not None
        self._reply, (self._parts, self._slots) = reply, self._numbers(reply, how)
        return None

    def answer(self, message: Message) -> Message | None:
        """Open a sum, and add its own part; take in the others' seeds before."""
        if isinstance(message, PaillierSeeds):
            other_clients = ",".join(self._known.parties[1:])
            check_equal(message, "parties", other_clients, "the list of other clients")
            self._seeded.take(message)
            names, text = message.parties.split(","), message.seeds.payload
            size = len(text) // len(names)
            texts = {name: text[i * size : (i + 1) * size] for i, name in enumerate(names)}
            self._holder.take_seeds(texts)
            return None
        assert self._reply is not None
        opened, opened_fields = [], {}
        for field, array in summands(self._reply).items():
            own_numbers, text = self._parts[field], getattr(message, field).payload
            slots, digest = self._slots[field], self._told.digest()
            opened.append(self._holder.opened(text, own_numbers.size, slots, digest) + own_numbers)
            opened_fields[field] = from_whole(opened[-1], array.shape, array.dtype)
        self.kept.append((replace(self._reply, **opened_fields), _OPENED))
        self._reply = None
        return OpenedSum(type(message).__name__, np.concatenate(opened))


class Encrypting(_Client):
    """Another client's side: it encrypts."""

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        PaillierKey: {
            "holder": "the first client of the agreement",
            "bits": "the agreed length",
            "key": "taken once",
        },
    }

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, known: Known) -> None:
        super().__init__(sums, name, rows, known)
        self._encrypter = sums.encrypter(name, self.ledger)
        self._holder, self._keyed = "", Once()

    def takes(self, message: Message) -> bool:
        """Tell whether it is the key."""
        return isinstance(message, PaillierKey)

    def answer(self, message: Message) -> Message:
        """Take in the key, and tell its holder the seed of its masks."""
        assert isinstance(message, PaillierKey)
        check_equal(message, "holder", self._known.parties[0], "the holder of the key")
        check_equal(message, "bits", self._sums.how.bits, "the length of the key")
        self._keyed.take(message)
        self._encrypter.learn(message.key.payload, message.bits)
        self._holder = message.holder
        return self._sums.seeds([self._name], [self._encrypter.seed()])

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message:
        """Encrypt the reply; ``rows`` and ``classes`` are what is declared of all."""
        assert reply is not None
        numbers, slots = self._numbers(reply, how)
        digest = self._told.digest()
        texts = {f: self._encrypter.encrypted(n, slots[f], digest) for f, n in numbers.items()}
        return self._sums.sealed(reply, texts, slots, self._holder, self.ledger)


class Adding(Opening):
    """The side of whoever adds: who says what to whom."""

    def __init__(self, sums: PaillierSums) -> None:
        self._sums, self.ledger = sums, Ledger()
        self._adder: encrypted_sums.Adder | None = None
        self._classes: tuple[int, ...] = ()  # rows of each, once everybody knows

    def opened(self, waiting: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let encrypted replies cross, add them, and let the holder of the key open the sum.

        Raises `MissingPartyError` if somebody's reply is not there who has a part in the sums.
        """
        first, agreed_sums = agreed(waiting.values()), wire.known
        holder, *other_clients = agreed_sums.parties
        if not other_clients:
            raise UsageError(
                f"{self._sums.how.name!r} needs two clients or more: the sum of one is its own; "
                "leave it out"
            )
        adder = self._adder = self._adder or self._agree(holder, other_clients, wire)
        encrypted_sums.check_all(agreed_sums.parties, waiting)
        declared = Declared(wire.rows, self._classes)
        replies = wire.seal(
            waiting, {"rows": declared.rows, "classes": list(declared.classes)}, why
        )
        slots, added = {}, {}
        for field, seal in summands(first).items():
            slots[field] = self._sums.slots(first, seal, agreed_sums, declared)
            texts = {name: getattr(reply, field).payload for name, reply in replies.items()}
            added[field] = adder.added(texts, size_of_whole(seal), slots[field])
        product = self._sums.sealed(first, added, slots, holder, self.ledger)
        message = wire.ask([holder], product, _ADDED, _OPENED)[holder]
        assert isinstance(message, OpenedSum)
        total = summed(first, message.values)
        if Trait.LABELS_COUNTED in total.traits:
            self._classes = tuple(map(int, summands(total)["sums"][1:]))
        return total

    def _agree(self, holder: str, others: Sequence[str], wire: Wire) -> encrypted_sums.Adder:
        """Let the first client draw a key and tell its public part."""
        key = wire.seal([holder], {"key": True}, _KEY)[holder]
        assert isinstance(key, PaillierKey)
        seeds = wire.ask(others, key, _KEY, _SEEDS).values()
        texts = [m.seeds.payload for m in seeds if isinstance(m, PaillierSeeds)]
        wire.ask([holder], self._sums.seeds(others, texts), _SEEDS)
        adder = self._sums.adder(others, self.ledger)
        adder.learn(key.key.payload, key.bits)
        return adder
