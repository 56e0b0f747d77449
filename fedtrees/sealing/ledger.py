"""Costs of the cryptography of a run: operations, CPU seconds, ciphertexts and bytes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

Operation = Literal[
    "obfuscators", "encrypted", "added", "multiplied", "decrypted", "masks expanded", "shares"
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class Ledger:
    """Counters of one party in one run. Ledgers can be added.

    Attributes
    ----------
    done : Counter
        Number of operations by name, see `OPERATIONS`: obfuscators created, ciphertexts created,
        added (one multiplication modulo n^2), multiplied by a plain number (one power) or
        decrypted, masks expanded from a seed, and Shamir shares dealt.
    cpu : Counter
        CPU seconds by operation, those of worker processes included.
    ciphertexts, nbytes : Counter
        Number of ciphertexts and bytes that were sent, by message type.
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.ciphertexts: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()

    def enter(self, operation: Operation, count: int, seconds: float = 0.0) -> None:
        """Add operations and their CPU seconds."""
        self.done[operation] += count
        # a Counter of floats, although typeshed only has counters of integers
        self.cpu[operation] += seconds  # type: ignore[assignment]

    def sent(self, message: str, ciphertexts: int, nbytes: int) -> None:
        """Add ciphertexts and bytes that were sent in a message of this type."""
        self.ciphertexts[message] += ciphertexts
        self.nbytes[message] += nbytes

    @contextmanager
    def timed(self, operation: Operation, count: int) -> Iterator[None]:
        """Add operations with the CPU seconds that this process spends on them."""
        started = time.process_time()
        yield
        self.enter(operation, count, time.process_time() - started)

    def counts(self) -> dict[str, dict[str, float]]:
        """Return all counters as plain dictionaries, for example to send them."""
        return {name: dict(counter) for name, counter in vars(self).items()}

    @classmethod
    def of(cls, counts_by_party: Mapping[str, Mapping[str, float]]) -> Ledger:
        """Return a ledger with the given counters."""
        ledger = cls()
        for name, counter in vars(ledger).items():
            counter.update(counts_by_party[name])
        return ledger

    def __add__(self, other: Ledger) -> Ledger:
        both = Ledger()
        for name, counter in vars(both).items():
            counter.update(getattr(self, name))
            counter.update(getattr(other, name))
        return both

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and all(
            # CPU seconds differ between equal runs.
            counter == getattr(other, name)
            for name, counter in vars(self).items()
            if name != "cpu"
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{self.done[name]:,} {name}" for name in OPERATIONS if self.done[name]]
        return f"<Ledger: {', '.join(parts)}; {self.nbytes.total():,} bytes sent>"


#: Counters of a ledger as plain dictionaries.
Told = Mapping[str, Mapping[str, float]]


def costs_of(counts: Iterable[Told]) -> dict[str, float]:
    """Return the sum of the ledgers of all parties, as numbers by name."""
    ledger = sum(map(Ledger.of, counts), Ledger())
    names = {name: name.replace(" ", "_") for name in ledger.done}
    return {
        "ciphertexts": ledger.ciphertexts.total(),
        **{f"ciphertexts:{kind}": n for kind, n in ledger.ciphertexts.items()},
        **{names[name]: n for name, n in ledger.done.items()},
        **{f"cpu_seconds:{names[name]}": ledger.cpu[name] for name in ledger.done},
    }


def costs_by_party(counts_by_party: Mapping[str, Told]) -> dict[str, float]:
    """Return the sum of the ledgers, and the operations of each party, as numbers by name."""
    ledgers = {party: Ledger.of(counters) for party, counters in counts_by_party.items()}
    return costs_of(counts_by_party.values()) | {
        f"{name.replace(' ', '_')}:{party}": n
        for party, ledger in ledgers.items()
        for name, n in ledger.done.items()
    }
