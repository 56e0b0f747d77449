"""Defense `paillier`: secure aggregation under a Paillier key, with real cryptography.

The first client draws the key. All other clients encrypt their replies, the server multiplies the
ciphertexts, and the first client decrypts the product (Paillier 1999). The cryptographic steps are
in `fedtrees.crypto.encrypted_sums`. This module connects them to the interface of secure sums
(`fedtrees.core.secure_sum`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, check_flag, check_known, check_whole
from fedtrees.core.messages import Message, Sealed, Trait
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, check_equal
from fedtrees.core.secure_sum import (
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
from fedtrees.crypto import encrypted_sums
from fedtrees.crypto.backends import BACKENDS, backend
from fedtrees.defenses.secure_sum import RealSums, opaque
from fedtrees.messages.aggregation import OpenedSum, PaillierKey, PaillierSeeds
from fedtrees.sealing import sizes
from fedtrees.sealing.ledger import Ledger, Told, costs_by_party
from fedtrees.sealing.slots import Slots

# Symmetric strength in bits by length of the modulus (NIST SP 800-57, part 1, table 2).
_STRENGTH = {1024: 80, 2048: 112, 3072: 128}

_INT64_BITS = 64
_KEY = "the public key that everybody encrypts under; its holder opens sums"
_SEEDS = "seeds of masks that bind a sum to what all were told, for the holder of the key"
_ADDED = "the encrypted sum, for the holder of the key to open"
_OPENED = "the sum, opened by the holder of the key"


@register.defense("paillier")
@dataclass(frozen=True)
class Paillier(RealSums):  # type: ignore[misc]
    """Let the server add encrypted sums (Paillier 1999), and one client decrypt their total.

    The first client draws the key, and only it knows the private key. The server multiplies the
    ciphertexts of all other clients and sends the product to the first client. This client decrypts
    the product, adds its own numbers and returns the sum. The server therefore learns the same as
    under ``secure-sum``, **and the first client learns every sum too**. The server and the first
    client together can read the reply of every client.

    Parameters
    ----------
    bits : {1024, 2048, 3072}
        Length of the modulus. 1024 is weak and provided for comparison.
    packing : int or None
        Number of plaintext bits for each sum, 8 to 64. None: as many as the declared numbers of
        rows and of rows per class require, or 64 if rows have weights or a party adds noise. A
        number that does not fit stops the run.
    djn : bool or None
        Clients without the private key use short exponents for their obfuscators (Damgaard, Jurik,
        Nielsen 2010), which needs an additional assumption. False: ``r^n``, about 15 times slower.
        None: True with gmpy2, and False with phe, which has no short exponents.
    mode : {"real", "ideal"}
        ``ideal``: the same messages and byte counts without cryptographic computations.
    backend : {"gmpy2", "phe"}
        Library that computes with ciphertexts: our implementation on gmpy2, or python-paillier.
        Models are the same to the bit, and messages are the same except for the ciphertexts, as
        with ``djn=false``.
    """

    bits: int = sizes.DEFAULT_BITS
    packing: int | None = None
    djn: bool | None = None
    mode: str = "real"
    backend: str = BACKENDS[0]

    always_read = "sums-to-key-holder"
    additional_readers = frozenset({"client"})

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes.check_key_bits("bits", self.bits)
        if self.packing is not None:
            check_whole("packing", self.packing, 8, _INT64_BITS)
        if self.djn is not None:
            check_flag("djn", self.djn)
        check_known("backend", self.backend, BACKENDS)
        if self.backend == "phe" and self.djn:
            raise UsageError(
                "djn=true: backend=phe has no short exponents; leave out djn, or take backend=gmpy2"
            )

    @property
    def short_powers(self) -> bool:
        """Whether clients use short exponents, so that the key is sent with a base for them."""
        return self.backend == BACKENDS[0] if self.djn is None else self.djn

    def strength(self) -> tuple[int, str]:
        """Return the security level of the key in bits, and the assumptions."""
        return _STRENGTH[self.bits], "paillier+djn" if self.short_powers else "paillier"

    def secure_aggregation(self) -> Aggregation:
        """Create the secure aggregation of one run."""
        return PaillierSums(self)

    def broken_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return a reason if the server colludes with the first client, None otherwise."""
        holder = next((name for name, role in roles.items() if role == "client"), None)
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or holder is None or holder not in principals:
            return None
        return Reason("key-and-ciphertexts", server=servers[0], holder=holder, defense=self.name)


@dataclass(frozen=True)
class Declared:
    """Public numbers that bound the sums.

    Attributes
    ----------
    rows : int or None
        Number of rows, None if they have weights.
    classes : tuple of int
        Number of rows of each class. Empty until the label sums are known.
    """

    rows: int | None
    classes: tuple[int, ...] = ()


def ranges(
    reply: Message, context: Known, declarations: Declared
) -> tuple[tuple[int, int], ...] | None:
    """Return the smallest and the largest value of each sum over the declared rows.

    Parameters
    ----------
    reply : Message
        Message whose summed fields are added.
    context : Known
        Public facts about the sums of the run.
    declarations : Declared
        Numbers of rows.

    Returns
    -------
    ranges : tuple of (int, int) or None
        One pair for counts. For gradients, two pairs: for g and for h, which alternate in the
        array. None if the sums are not bounded by rows: with weights, noise or rounding, a
        numeric target, or another type of message.
    """
    if declarations.rows is None or not context.exact:
        return None
    rows = max(declarations.rows, 1)
    if Trait.COUNTED in reply.traits:
        return ((0, rows),)
    numeric = not context.classes or context.parameters.get("objective") == "reg:squarederror"
    if Trait.GRADIENTS not in reply.traits or numeric:
        return None
    g_bits, h_bits = (getattr(reply, name) for name in ("g_bits", "h_bits"))
    # A row contributes the gradient p - y and the hessian p (1 - p), or 2 p (1 - p) with several
    # classes. The number of rows with y = 1 follows from the public base score.
    below = above = rows
    if len(declarations.classes) == 2:
        above, below = declarations.classes
    hessians = -(-rows // 2) << h_bits
    if context.classes == 2:
        # p (1 - p) is at most 1/4, rounded up to a fixed-point number.
        hessians = -(-(rows << h_bits) // 4)
    return (-below << g_bits, above << g_bits), (0, hessians)


class PaillierSums(Aggregation):
    """Secure aggregation of one run under a Paillier key."""

    def __init__(self, how: Paillier) -> None:
        self.how, self.ideal = how, how.mode == "ideal"
        self._inside: dict[str, NDArray[Any]] = {}

    def closing(self, name: str, rows: int | None, context: Known) -> Closing:
        """Create the side of one client. The first client of the agreement holds the key.

        `rows` is the number of the client's rows, None if they have weights.
        """
        return (KeyHolding if name == context.parties[0] else Encrypting)(self, name, rows, context)

    def opening(self) -> Opening:
        """Create the side of the server."""
        return Adding(self)

    def costs(self, ledgers: Mapping[str, Told]) -> Mapping[str, float]:
        """Return the operation counts and CPU seconds of all parties."""
        return costs_by_party(ledgers)

    def holder(self, n_other_parties: int, ledger: Ledger) -> encrypted_sums.KeyHolder:
        """Create the cryptographic state of the key holder."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealHolder(how.bits, ledger, self._inside)
        return encrypted_sums.RealHolder(
            n_other_parties, how.bits, how.short_powers, ledger, backend(how.backend)
        )

    def encrypter(self, name: str, ledger: Ledger) -> encrypted_sums.Encrypter:
        """Create the cryptographic state of a client that encrypts."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealEncrypter(how.bits, ledger, self._inside)
        return encrypted_sums.RealEncrypter(name, how.short_powers, ledger, backend(how.backend))

    def adder(self, other_parties: Sequence[str], ledger: Ledger) -> encrypted_sums.Adder:
        """Create the cryptographic state of the server."""
        how = self.how
        if self.ideal:
            return encrypted_sums.IdealAdder(how.bits, ledger, self._inside)
        return encrypted_sums.RealAdder(other_parties, ledger, backend(how.backend))

    def slots(self, reply: Message, field: Any, context: Known, declarations: Declared) -> Slots:
        """Return the layout of the sums of a field in plaintexts.

        It depends on public knowledge only, so that all parties compute the same layout: on the
        parameter ``packing``, or else on the declared numbers of rows of all parties.
        """
        terms = len(context.parties)
        if np.dtype(field.dtype).kind == "f":
            # Floats are represented by twelve digits of 32 bits each (`fedtrees.core.secure_sum`).
            return Slots(FLOAT_LIMIT, terms)
        # The limit is that of signed integers of `packing` bits.
        limit = (1 << (self.how.packing or _INT64_BITS) - 1) - 1
        field_ranges = None if self.how.packing else ranges(reply, context, declarations)
        if (
            field_ranges is None
            or (bound := max(max(-low, high) for low, high in field_ranges)) > limit
        ):
            # Without known ranges the sum of all addends must not exceed the limit.
            return Slots(limit // terms, terms)
        return Slots(bound, terms, field_ranges)

    def seeds(self, names: Sequence[str], texts: Iterable[bytes]) -> PaillierSeeds:
        """Return the encrypted mask seeds of parties as a message."""
        size = len(names) * sizes.rows(1, self.how.bits).nbytes
        return PaillierSeeds(",".join(names), opaque(b"".join(texts), size, real=not self.ideal))

    def sealed(
        self, reply: Message, texts: Mapping[str, bytes], slots: Mapping[str, Slots],
        holder: str, ledger: Ledger,
    ) -> Message:  # fmt: skip
        """Replace the summed fields of a reply by ciphertexts, and count these in `ledger`.

        `texts` and `slots` contain the ciphertexts and the layout of the plaintexts by field.
        """
        fields = {}
        for field, text in texts.items():
            value = getattr(reply, field)
            count, nbytes = sizes.array(size_of_whole(value), slots[field], self.how.bits)
            # Byte counts of the transcript are computed, also if nothing is encrypted.
            assert len(text) == (0 if self.ideal else nbytes)
            dtype = np.dtype(value.dtype).newbyteorder("<").str
            fields[field] = Sealed((holder,), value.shape, dtype, nbytes, text)
            ledger.sent(type(reply).__name__, count, nbytes)
        return replace(reply, **fields)


class _Client(Closing):
    """Common part of the key holder and of the clients that encrypt."""

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, context: Known) -> None:
        super().__init__()
        self._sums, self._name, self._known = sums, name, context
        self.ledger = Ledger()
        self._own = Declared(rows)

    def _numbers(self, reply: Message, how: Mapping[str, Any]) -> tuple[Any, dict[str, Slots]]:
        """Return the summed fields as integers, and their layout in plaintexts.

        Each client checks that its numbers are in the range of its number of rows. A party cannot
        check the numbers of another client, because they are encrypted.
        """
        declared = Declared(how["rows"], tuple(how["classes"]))
        arrays = summands(reply)
        slots = {f: self._sums.slots(reply, a, self._known, declared) for f, a in arrays.items()}
        numbers = {field: whole(array) for field, array in arrays.items()}
        local_ranges = ranges(reply, self._known, self._own)
        for field, layout in slots.items():
            checked = (
                layout
                if local_ranges is None or not layout.ranges
                else replace(layout, ranges=local_ranges)
            )
            checked.check(numbers[field])
        if Trait.LABELS_COUNTED in reply.traits:
            # A client may have no row of a class. A range must contain a number besides 0.
            classes = (max(int(rows), 1) for rows in arrays["sums"][1:])  # it may have none
            self._own = replace(self._own, classes=tuple(classes))
        return numbers, slots


class KeyHolding(_Client):
    """Side of the first client: it draws the key and opens sums.

    It opens only the product of the ciphertexts of all other clients. The masks of these clients,
    whose seeds the key holder knows, make every other product decrypt to a meaningless number. They
    also depend on all messages that a client received, so that a sum is not opened if the server
    sent different messages to the clients.
    """

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        PaillierSeeds: {
            "parties": "all other clients of the agreement, in order",
            "seeds": "taken once",
        },
    }

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, context: Known) -> None:
        super().__init__(sums, name, rows, context)
        self._holder: encrypted_sums.KeyHolder
        self._seeded = Once()
        self._reply: Message | None = None  # its reply to the request of the sum that it will open

    def takes(self, message: Message) -> bool:
        """Return whether a message is a sum to open, or the seeds of the other clients."""
        return isinstance(message, PaillierSeeds) or type(message) is type(self._reply)

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Return the public key if it is requested, else store the local reply and return None."""
        if how.get("key"):
            sums, bits = self._sums, self._sums.how.bits
            self._holder = sums.holder(len(self._known.parties) - 1, self.ledger)
            size = sizes.public_key_bytes(bits, sums.how.short_powers)
            key = opaque(self._holder.public_key(), size, real=not sums.ideal)
            return PaillierKey(self._name, bits, key)
        assert reply is not None
        self._reply, (self._parts, self._slots) = reply, self._numbers(reply, how)
        return None

    def answer(self, message: Message) -> Message | None:
        """Handle the seeds of the other clients, or open a sum and add the local reply."""
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
        totals, total_fields = [], {}
        for field, array in summands(self._reply).items():
            local_numbers, text = self._parts[field], getattr(message, field).payload
            slots, digest = self._slots[field], self._told.digest()
            totals.append(
                self._holder.opened(text, local_numbers.size, slots, digest) + local_numbers
            )
            total_fields[field] = from_whole(totals[-1], array.shape, array.dtype)
        self.kept.append((replace(self._reply, **total_fields), _OPENED))
        self._reply = None
        return OpenedSum(type(message).__name__, np.concatenate(totals))


class Encrypting(_Client):
    """Side of the other clients: they encrypt their replies."""

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        PaillierKey: {
            "holder": "the first client of the agreement",
            "bits": "the agreed length",
            "key": "taken once",
        },
    }

    def __init__(self, sums: PaillierSums, name: str, rows: int | None, context: Known) -> None:
        super().__init__(sums, name, rows, context)
        self._encrypter = sums.encrypter(name, self.ledger)
        self._holder, self._keyed = "", Once()

    def takes(self, message: Message) -> bool:
        """Return whether a message is the public key."""
        return isinstance(message, PaillierKey)

    def answer(self, message: Message) -> Message:
        """Store the public key, and return the encrypted seed of the masks for its holder."""
        assert isinstance(message, PaillierKey)
        check_equal(message, "holder", self._known.parties[0], "the holder of the key")
        check_equal(message, "bits", self._sums.how.bits, "the length of the key")
        self._keyed.take(message)
        self._encrypter.learn(message.key.payload, message.bits)
        self._holder = message.holder
        return self._sums.seeds([self._name], [self._encrypter.seed()])

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message:
        """Encrypt the reply. `how` contains the declared ``rows`` and ``classes``."""
        assert reply is not None
        numbers, slots = self._numbers(reply, how)
        # The mask depends on everything that the client received, see `KeyHolding`.
        digest = self._told.digest()
        texts = {f: self._encrypter.encrypted(n, slots[f], digest) for f, n in numbers.items()}
        return self._sums.sealed(reply, texts, slots, self._holder, self.ledger)


class Adding(Opening):
    """Server side: it exchanges keys and seeds, multiplies ciphertexts and requests the sums."""

    def __init__(self, sums: PaillierSums) -> None:
        self._sums, self.ledger = sums, Ledger()
        self._adder: encrypted_sums.Adder | None = None
        self._classes: tuple[int, ...] = ()  # rows of each class, empty until they are public

    def opened(self, pending: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Collect encrypted replies, add them, and let the key holder decrypt the sum.

        Parameters
        ----------
        pending : mapping of str to Message
            Incomplete reply of every party.
        wire : Wire
            Access to the network.
        why : str
            Reason that the transcript records for the encrypted replies.

        Raises
        ------
        MissingPartyError
            If the reply of a party is missing.
        UsageError
            If there is only one client.
        """
        first, agreed_sums = agreed(pending.values()), wire.known
        holder, *other_clients = agreed_sums.parties
        if not other_clients:
            raise UsageError(
                f"{self._sums.how.name!r} needs two clients or more: the sum of one is its own; "
                "leave it out"
            )
        adder = self._adder = self._adder or self._agree(holder, other_clients, wire)
        encrypted_sums.check_all(agreed_sums.parties, pending)
        declared = Declared(wire.rows, self._classes)
        replies = wire.seal(
            pending, {"rows": declared.rows, "classes": list(declared.classes)}, why
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

    def _agree(self, holder: str, encrypters: Sequence[str], wire: Wire) -> encrypted_sums.Adder:
        """Request a public key from the first client, and send it to the other clients."""
        key = wire.seal([holder], {"key": True}, _KEY)[holder]
        assert isinstance(key, PaillierKey)
        seeds = wire.ask(encrypters, key, _KEY, _SEEDS).values()
        texts = [m.seeds.payload for m in seeds if isinstance(m, PaillierSeeds)]
        wire.ask([holder], self._sums.seeds(encrypters, texts), _SEEDS)
        adder = self._sums.adder(encrypters, self.ledger)
        adder.learn(key.key.payload, key.bits)
        return adder
