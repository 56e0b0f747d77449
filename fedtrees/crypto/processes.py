"""Obfuscators and decryption on several processors."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import TypeVar

from gmpy2 import mpz

from fedtrees.core.errors import UsageError
from fedtrees.crypto import paillier
from fedtrees.crypto.keys import KeyPair, Prime, PublicKey
from fedtrees.crypto.ledger import Ledger, Operation
from fedtrees.crypto.obfuscators import Obfuscators, OwnerObfuscators

Work = TypeVar("Work")

_CHUNKS = 4  # to each process, so that none waits long for the last


class ProcessObfuscators(Obfuscators):
    """Obfuscators of the owner of a key, and decryption, by worker processes.

    Each worker gets the key once, through the pipe it is started with, and keeps it in memory
    until `close`; plaintexts to be encrypted never go there. Workers are spawned: a script needs
    its ``if __name__ == "__main__"``.

    Parameters
    ----------
    keys : KeyPair
    processes : int
    ledger : Ledger, optional
        What the workers did and spent is entered.

    Raises
    ------
    UsageError
        If there is to be no process.
    """

    __slots__ = ("_executor", "_processes")

    def __init__(self, keys: KeyPair, processes: int = 2, ledger: Ledger | None = None) -> None:
        super().__init__(keys.public, ledger)
        if processes < 1:
            raise UsageError(f"processes must be at least 1; got {processes}")
        self._processes = processes
        self._executor = ProcessPoolExecutor(
            processes,
            multiprocessing.get_context("spawn"),
            _start,
            (keys.public, [(prime.p, prime.generator) for prime in keys.primes()]),
        )

    def take(self, count: int) -> list[mpz]:
        """Return so many, never seen before."""
        return self._make(count)

    def decrypt(self, ciphertexts: Sequence[mpz]) -> list[int]:
        """Decrypt as `fedtrees.crypto.paillier.decrypt` does."""
        return self._spread(_open, list(ciphertexts), "decrypted")

    def _make(self, count: int) -> list[mpz]:
        return self._spread(_make, [None] * count, "obfuscators")

    def _spread(
        self,
        work: Callable[[list[Work]], tuple[list[mpz], float]],
        items: list[Work],
        operation: Operation,
    ) -> list[mpz]:
        size = max(-(-len(items) // (_CHUNKS * self._processes)), 1)
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        found: list[mpz] = []
        for part, seconds in self._executor.map(work, chunks):
            self.ledger.enter(operation, len(part), seconds)
            found += part
        return found

    def close(self) -> None:
        """End the workers."""
        self._executor.shutdown()

    def __enter__(self) -> ProcessObfuscators:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_mine: OwnerObfuscators | None = None  # of a worker process
_keys: KeyPair | None = None


def _start(public: PublicKey, parts: list[tuple[mpz, mpz | None]]) -> None:
    global _mine, _keys
    first, second = (Prime(p, public.modulus, generator) for p, generator in parts)
    _keys = KeyPair(public, (first, second))
    _mine = OwnerObfuscators(_keys)


def _make(items: list[None]) -> tuple[list[mpz], float]:
    assert _mine is not None
    started = time.process_time()
    return _mine.take(len(items)), time.process_time() - started


def _open(items: list[mpz]) -> tuple[list[int], float]:
    assert _keys is not None
    started = time.process_time()
    return paillier.decrypt(items, _keys), time.process_time() - started
