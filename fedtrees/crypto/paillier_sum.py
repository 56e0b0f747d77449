"""Secure sums under a Paillier key (Paillier 1999): the messages of clients and server.

One party, the key holder, has the private key. All remaining parties encrypt their arrays with the
public key. The server multiplies the ciphertexts, which it cannot decrypt. The key holder decrypts
the sum and adds its array, which needs no encryption, because only the key holder would decrypt it.

`PaillierAggregation` implements the interface of secure sums (`fedtrees.core.secure_sum`). Its
sides are `KeyHolderClient`, `EncryptingClient` and `PaillierServer`. They exchange messages, and
pass arrays and bytes to the three sides of `fedtrees.crypto.encrypted_sums`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message, Sealed, Trait
from fedtrees.core.requests import Once, check_equal
from fedtrees.core.secure_sum import (
    FLOAT_LIMIT,
    AggregationExchange,
    ClientAggregator,
    SecureAggregation,
    ServerAggregator,
    SumContext,
    check_same_fields,
    count_integers,
    from_integers,
    replace_sums,
    summed_fields,
    to_integers,
)
from fedtrees.crypto.costs import (
    CostCounts,
    OperationCounter,
    array_traffic,
    public_key_bytes,
    row_traffic,
    sum_costs_by_party,
)
from fedtrees.crypto.encrypted_sums import (
    Adder,
    Encrypter,
    IdealEncryptedSum,
    KeyHolder,
    check_complete,
)
from fedtrees.crypto.modes import load_backend, seal_opaque
from fedtrees.crypto.packing import Slots
from fedtrees.messages.aggregation import OpenedSum, PaillierKey, PaillierSeeds

_INT64_BITS = 64
_KEY = "the public key with which all parties encrypt; the owner of the key opens the sums"
_SEEDS = "seeds of masks that bind a sum to the values that all parties received"
_ADDED = "the encrypted sum, which the owner of the key opens"
_OPENED = "the sum, opened by the holder of the key"


@dataclass(frozen=True)
class DeclaredCounts:
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


def sum_ranges(
    reply: Message, context: SumContext, declarations: DeclaredCounts
) -> tuple[tuple[int, int], ...] | None:
    """Return the smallest and the largest value of each sum over the declared rows.

    Parameters
    ----------
    reply : Message
        Message whose summed fields are added.
    context : SumContext
        Public facts about the sums of the run.
    declarations : DeclaredCounts
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


class PaillierAggregation(SecureAggregation):
    """Secure aggregation of one run under a Paillier key.

    Parameters
    ----------
    bits, packing, short_powers, backend
        As in the defense ``paillier``.
    ideal : bool
        Whether the ideal functionality replaces the cryptography.
    """

    def __init__(
        self, bits: int, *, packing: int | None, short_powers: bool, ideal: bool, backend: str
    ) -> None:
        self.bits, self.packing, self.short_powers = bits, packing, short_powers
        self.ideal, self.backend = ideal, backend
        self._inside: dict[str, NDArray[Any]] = {}

    def client_side(self, name: str, rows: int | None, context: SumContext) -> ClientAggregator:
        """Create the side of one client. The first client of the agreement holds the key.

        `rows` is the number of the client's rows, None if they have weights.
        """
        return (KeyHolderClient if name == context.parties[0] else EncryptingClient)(
            self, name, rows, context
        )

    def server_side(self) -> ServerAggregator:
        return PaillierServer(self)

    def costs(self, ledgers: Mapping[str, CostCounts]) -> Mapping[str, float]:
        return sum_costs_by_party(ledgers)

    def holder(
        self, n_other_parties: int, ledger: OperationCounter
    ) -> KeyHolder | IdealEncryptedSum:
        """Create the cryptographic state of the key holder."""
        if self.ideal:
            return IdealEncryptedSum(self.bits, ledger, self._inside)
        library = load_backend(self.backend)
        return KeyHolder(n_other_parties, self.bits, self.short_powers, ledger, library)

    def encrypter(self, name: str, ledger: OperationCounter) -> Encrypter | IdealEncryptedSum:
        """Create the cryptographic state of a client that encrypts."""
        if self.ideal:
            return IdealEncryptedSum(self.bits, ledger, self._inside)
        return Encrypter(name, self.short_powers, ledger, load_backend(self.backend))

    def adder(
        self, other_parties: Sequence[str], ledger: OperationCounter
    ) -> Adder | IdealEncryptedSum:
        """Create the cryptographic state of the server."""
        if self.ideal:
            return IdealEncryptedSum(self.bits, ledger, self._inside)
        return Adder(other_parties, ledger, load_backend(self.backend))

    def slots(
        self, reply: Message, field: Any, context: SumContext, declarations: DeclaredCounts
    ) -> Slots:
        """Return the layout of the sums of a field in plaintexts.

        It depends on public knowledge only, so that all parties compute the same layout: on the
        parameter ``packing``, or else on the declared numbers of rows of all parties.
        """
        terms = len(context.parties)
        if np.dtype(field.dtype).kind == "f":
            # Floats are represented by twelve digits of 32 bits each (`fedtrees.core.secure_sum`).
            return Slots(FLOAT_LIMIT, terms)
        # The limit is that of signed integers of `packing` bits.
        limit = (1 << (self.packing or _INT64_BITS) - 1) - 1
        field_ranges = None if self.packing else sum_ranges(reply, context, declarations)
        if (
            field_ranges is None
            or (bound := max(max(-low, high) for low, high in field_ranges)) > limit
        ):
            # Without known ranges the sum of all addends must not exceed the limit.
            return Slots(limit // terms, terms)
        return Slots(bound, terms, field_ranges)

    def seeds(self, names: Sequence[str], texts: Iterable[bytes]) -> PaillierSeeds:
        """Return the encrypted mask seeds of parties as a message."""
        size = len(names) * row_traffic(1, self.bits).nbytes
        return PaillierSeeds(
            ",".join(names), seal_opaque(b"".join(texts), size, real=not self.ideal)
        )

    def sealed(
        self, reply: Message, texts: Mapping[str, bytes], slots: Mapping[str, Slots],
        holder: str, ledger: OperationCounter,
    ) -> Message:  # fmt: skip
        """Replace the summed fields of a reply by ciphertexts, and count these in `ledger`.

        `texts` and `slots` contain the ciphertexts and the layout of the plaintexts by field.
        """
        fields = {}
        for field, text in texts.items():
            value = getattr(reply, field)
            count, nbytes = array_traffic(count_integers(value), slots[field], self.bits)
            # Byte counts of the transcript are computed, also if nothing is encrypted.
            assert len(text) == (0 if self.ideal else nbytes)
            dtype = np.dtype(value.dtype).newbyteorder("<").str
            fields[field] = Sealed((holder,), value.shape, dtype, nbytes, text)
            ledger.sent(type(reply).__name__, count, nbytes)
        return replace(reply, **fields)


class _PaillierClient(ClientAggregator):
    """Common part of the key holder and of the clients that encrypt."""

    def __init__(
        self, aggregation: PaillierAggregation, name: str, rows: int | None, context: SumContext
    ) -> None:
        super().__init__()
        self._aggregation, self._name, self._context = aggregation, name, context
        self.ledger = OperationCounter()
        self._local_counts = DeclaredCounts(rows)

    def _numbers(
        self, reply: Message, arguments: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Slots]]:
        """Return the summed fields as integers, and their layout in plaintexts.

        Each client checks that its numbers are in the range of its number of rows. A party cannot
        check the numbers of another client, because they are encrypted.
        """
        declared = DeclaredCounts(arguments["rows"], tuple(arguments["classes"]))
        arrays = summed_fields(reply)
        slots = {
            f: self._aggregation.slots(reply, a, self._context, declared) for f, a in arrays.items()
        }
        numbers = {field: to_integers(array) for field, array in arrays.items()}
        local_ranges = sum_ranges(reply, self._context, self._local_counts)
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
            self._local_counts = replace(self._local_counts, classes=tuple(classes))
        return numbers, slots


class KeyHolderClient(_PaillierClient):
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

    def __init__(
        self, aggregation: PaillierAggregation, name: str, rows: int | None, context: SumContext
    ) -> None:
        super().__init__(aggregation, name, rows, context)
        self._holder: KeyHolder | IdealEncryptedSum
        self._seeded = Once()
        self._reply: Message | None = None  # its reply to the request of the sum that it will open

    def accepts(self, message: Message) -> bool:
        """Return whether a message is a sum to open, or the seeds of the other clients."""
        return isinstance(message, PaillierSeeds) or type(message) is type(self._reply)

    def protect(self, reply: Message | None, arguments: Mapping[str, Any]) -> Message | None:
        """Return the public key if it is requested, else store the local reply and return None."""
        if arguments.get("key"):
            aggregation, bits = self._aggregation, self._aggregation.bits
            self._holder = aggregation.holder(len(self._context.parties) - 1, self.ledger)
            size = public_key_bytes(bits, aggregation.short_powers)
            key = seal_opaque(self._holder.public_key(), size, real=not aggregation.ideal)
            return PaillierKey(self._name, bits, key)
        assert reply is not None
        self._reply, (self._parts, self._slots) = reply, self._numbers(reply, arguments)
        return None

    def handle(self, message: Message) -> Message | None:
        """Handle the seeds of the other clients, or open a sum and add the local reply."""
        if isinstance(message, PaillierSeeds):
            other_clients = ",".join(self._context.parties[1:])
            check_equal(message, "parties", other_clients, "the list of other clients")
            self._seeded.take(message)
            names, text = message.parties.split(","), message.seeds.payload
            size = len(text) // len(names)
            texts = {name: text[i * size : (i + 1) * size] for i, name in enumerate(names)}
            self._holder.take_seeds(texts)
            return None
        assert self._reply is not None
        totals, total_fields = [], {}
        for field, array in summed_fields(self._reply).items():
            local_numbers, text = self._parts[field], getattr(message, field).payload
            slots, digest = self._slots[field], self._history.digest()
            totals.append(
                self._holder.decrypt_sum(text, local_numbers.size, slots, digest) + local_numbers
            )
            total_fields[field] = from_integers(totals[-1], array.shape, array.dtype)
        self.opened_messages.append((replace(self._reply, **total_fields), _OPENED))
        self._reply = None
        return OpenedSum(type(message).__name__, np.concatenate(totals))


class EncryptingClient(_PaillierClient):
    """Side of the other clients: they encrypt their replies."""

    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {
        PaillierKey: {
            "holder": "the first client of the agreement",
            "bits": "the agreed length",
            "key": "taken once",
        },
    }

    def __init__(
        self, aggregation: PaillierAggregation, name: str, rows: int | None, context: SumContext
    ) -> None:
        super().__init__(aggregation, name, rows, context)
        self._encrypter = aggregation.encrypter(name, self.ledger)
        self._holder, self._keyed = "", Once()

    def accepts(self, message: Message) -> bool:
        """Return whether a message is the public key."""
        return isinstance(message, PaillierKey)

    def handle(self, message: Message) -> Message:
        """Store the public key, and return the encrypted seed of the masks for its holder."""
        assert isinstance(message, PaillierKey)
        check_equal(message, "holder", self._context.parties[0], "the holder of the key")
        check_equal(message, "bits", self._aggregation.bits, "the length of the key")
        self._keyed.take(message)
        self._encrypter.learn(message.key.payload, message.bits)
        self._holder = message.holder
        return self._aggregation.seeds([self._name], [self._encrypter.encrypt_seed()])

    def protect(self, reply: Message | None, arguments: Mapping[str, Any]) -> Message:
        """Encrypt the reply. `arguments` contains the declared ``rows`` and ``classes``."""
        assert reply is not None
        numbers, slots = self._numbers(reply, arguments)
        # The mask depends on everything that the client received, see `KeyHolderClient`.
        digest = self._history.digest()
        texts = {f: self._encrypter.encrypt(n, slots[f], digest) for f, n in numbers.items()}
        return self._aggregation.sealed(reply, texts, slots, self._holder, self.ledger)


class PaillierServer(ServerAggregator):
    """Server side: it exchanges keys and seeds, multiplies ciphertexts and requests the sums."""

    def __init__(self, aggregation: PaillierAggregation) -> None:
        self._aggregation, self.ledger = aggregation, OperationCounter()
        self._adder: Adder | IdealEncryptedSum | None = None
        self._classes: tuple[int, ...] = ()  # rows of each class, empty until they are public

    def open_sum(
        self, pending: Mapping[str, Message], exchange: AggregationExchange, reason: str
    ) -> Message:
        """Collect encrypted replies, add them, and let the key holder decrypt the sum.

        Parameters
        ----------
        pending : mapping of str to Message
            Incomplete reply of every party.
        exchange : AggregationExchange
            Access to the network.
        reason : str
            Reason that the transcript records for the encrypted replies.

        Raises
        ------
        MissingPartyError
            If the reply of a party is missing.
        UsageError
            If there is only one client.
        """
        first, agreed_sums = check_same_fields(pending.values()), exchange.context
        holder, *other_clients = agreed_sums.parties
        if not other_clients:
            raise UsageError(
                "'paillier' needs two clients or more, because a sum over one client is the array "
                "of this client; leave it out"
            )
        adder = self._adder = self._adder or self._agree(holder, other_clients, exchange)
        check_complete(agreed_sums.parties, pending)
        declared = DeclaredCounts(exchange.rows, self._classes)
        replies = exchange.protect(
            pending, {"rows": declared.rows, "classes": list(declared.classes)}, reason
        )
        slots, added = {}, {}
        for field, seal in summed_fields(first).items():
            slots[field] = self._aggregation.slots(first, seal, agreed_sums, declared)
            texts = {name: getattr(reply, field).payload for name, reply in replies.items()}
            added[field] = adder.add(texts, count_integers(seal), slots[field])
        product = self._aggregation.sealed(first, added, slots, holder, self.ledger)
        message = exchange.request([holder], product, _ADDED, _OPENED)[holder]
        assert isinstance(message, OpenedSum)
        total = replace_sums(first, message.values)
        if Trait.LABELS_COUNTED in total.traits:
            self._classes = tuple(map(int, summed_fields(total)["sums"][1:]))
        return total

    def _agree(
        self, holder: str, encrypters: Sequence[str], exchange: AggregationExchange
    ) -> Adder | IdealEncryptedSum:
        """Request a public key from the first client, and send it to the other clients."""
        key = exchange.protect([holder], {"key": True}, _KEY)[holder]
        assert isinstance(key, PaillierKey)
        seeds = exchange.request(encrypters, key, _KEY, _SEEDS).values()
        texts = [m.seeds.payload for m in seeds if isinstance(m, PaillierSeeds)]
        exchange.request([holder], self._aggregation.seeds(encrypters, texts), _SEEDS)
        adder = self._aggregation.adder(encrypters, self.ledger)
        adder.learn(key.key.payload, key.bits)
        return adder
