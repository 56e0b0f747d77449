"""Threads over blocks of rows.

Sums of integers over blocks are exactly the sums over all rows, so that the trees do not depend on
the number of threads. Kernels and the larger numpy operations release the interpreter lock. Splits
are chosen in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fedtrees.core.errors import UsageError

T = TypeVar("T")

# Measured: with 50,000 rows per block, two threads were slower than one while another process was
# running. With 500,000 rows they were 1.6 times as fast.
SMALLEST_BLOCK = 2**17


class Workers:
    """Calls a function for several arguments in parallel.

    Parameters
    ----------
    threads : int
        Number of threads. 1: all calls run one after the other in the calling thread.

    Raises
    ------
    UsageError
        If ``threads`` is below 1.
    """

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads!r}: give a whole number of 1 or more")
        self._threads = threads
        # The calling thread is one of the threads.
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def blocks(self, n: int) -> list[slice]:
        """Divide ``n`` rows into equal consecutive blocks: one per thread, fewer for few rows."""
        # Small blocks cost more than a second thread saves.
        count = max(1, min(self._threads, n // SMALLEST_BLOCK))
        return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]

    def map(self, function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
        """Return the results of ``function`` for all arguments, in order.

        The first error is raised.
        """
        calls = list(zip(*arguments, strict=True))
        if self._pool is None or len(calls) < 2:
            return [function(*call) for call in calls]
        submitted = [self._pool.submit(function, *call) for call in calls[1:]]
        return [function(*calls[0]), *(other.result() for other in submitted)]
