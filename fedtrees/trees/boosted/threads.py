"""Several threads over blocks of rows.

Integer sums over blocks are the sums over all rows, exactly, so that any number of threads gives
the same trees. Kernels and the larger numpy operations release the interpreter lock; splits are
chosen on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fedtrees.core.errors import UsageError

T = TypeVar("T")

# At 50,000 rows a block, two threads were slower than one while another process was running;
# at 500,000 they were 1.6 times as fast.
SMALLEST_BLOCK = 2**17


class Workers:
    """Call a function on several arguments at once.

    `threads`: 1: in turn, on the calling thread.

    Raises `UsageError` if ``threads`` is below 1.
    """

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads!r}: give a whole number of 1 or more")
        self._threads = threads
        # The calling thread works too.
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def blocks(self, n: int) -> list[slice]:
        """Cut ``n`` rows into equal consecutive blocks: one per thread, fewer where few."""
        count = max(1, min(self._threads, n // SMALLEST_BLOCK))
        return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]

    def map(self, function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
        """Return ``function`` of every argument, in order; the first error is raised."""
        calls = list(zip(*arguments, strict=True))
        if self._pool is None or len(calls) < 2:
            return [function(*call) for call in calls]
        others = [self._pool.submit(function, *call) for call in calls[1:]]
        return [function(*calls[0]), *(other.result() for other in others)]
