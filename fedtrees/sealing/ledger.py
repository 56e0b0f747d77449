"""What the cryptography of a run cost: operations, CPU seconds, ciphertexts and bytes sent."""

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
    """Counts of one run. Ledgers add up; they hold numbers alone.

    `done`: Operations by name, one of `OPERATIONS`: obfuscators made, ciphertexts made, added (one
    multiplication modulo n^2) or multiplied by a plain number (one power), and decrypted; masks
    expanded from a seed, and Shamir shares dealt.
    `cpu`: CPU seconds of the same; what worker processes spent is among them.
    `ciphertexts, nbytes`: What was sent, by message type.
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.ciphertexts: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()

    def enter(self, operation: Operation, count: int, seconds: float = 0.0) -> None:
        """Enter operations that were done."""
        self.done[operation] += count
        # a Counter of floats; typeshed knows counters of whole numbers only
        self.cpu[operation] += seconds  # type: ignore[assignment]

    def sent(self, message: str, ciphertexts: int, nbytes: int) -> None:
        """Enter what crossed in a message of this type."""
        self.ciphertexts[message] += ciphertexts
        self.nbytes[message] += nbytes

    @contextmanager
    def timed(self, operation: Operation, count: int) -> Iterator[None]:
        """Enter operations with the CPU seconds that this process spends on them."""
        started = time.process_time()
        yield
        self.enter(operation, count, time.process_time() - started)

    def told(self) -> dict[str, dict[str, float]]:
        """Return all counters as plain numbers."""
        return {name: dict(counter) for name, counter in vars(self).items()}

    @classmethod
    def of(cls, told: Mapping[str, Mapping[str, float]]) -> Ledger:
        """Return the ledger whose counters were told."""
        ledger = cls()
        for name, counter in vars(ledger).items():
            counter.update(told[name])
        return ledger

    def __add__(self, other: Ledger) -> Ledger:
        both = Ledger()
        for name, counter in vars(both).items():
            counter.update(getattr(self, name))
            counter.update(getattr(other, name))
        return both

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and all(
            counter == getattr(other, name) for name, counter in vars(self).items() if name != "cpu"
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{self.done[name]:,} {name}" for name in OPERATIONS if self.done[name]]
        return f"<Ledger: {', '.join(parts)}; {self.nbytes.total():,} bytes sent>"


#: What `Ledger.told` returns.
Told = Mapping[str, Mapping[str, float]]


def costs_of(told: Iterable[Told]) -> dict[str, float]:
    """Return ledgers of all parties as numbers by name."""
    ledger = sum(map(Ledger.of, told), Ledger())
    names = {name: name.replace(" ", "_") for name in ledger.done}
    return {
        "ciphertexts": ledger.ciphertexts.total(),
        **{f"ciphertexts:{kind}": n for kind, n in ledger.ciphertexts.items()},
        **{names[name]: n for name, n in ledger.done.items()},
        **{f"cpu_seconds:{names[name]}": ledger.cpu[name] for name in ledger.done},
    }


def costs_by_party(told: Mapping[str, Told]) -> dict[str, float]:
    """Return the ledgers of the parties as numbers by name: all together, and who did what."""
    ledgers = {party: Ledger.of(one) for party, one in told.items()}
    return costs_of(told.values()) | {
        f"{name.replace(' ', '_')}:{party}": n
        for party, ledger in ledgers.items()
        for name, n in ledger.done.items()
    }
