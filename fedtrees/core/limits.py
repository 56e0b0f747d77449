"""Limit the time of a block of code with the timer signal of the operating system."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from fedtrees.core.errors import UsageError


class TimeLimit(BaseException):
    """A block of code exceeded its time limit.

    It is not an ordinary exception, so that an attack with ``except Exception`` cannot swallow it.
    """


def check_thread() -> None:
    """Raise `UsageError` outside the main thread, which does not receive the signal of a timer."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "a time limit works in the main thread only; run it there, or without a time limit"
        )


def limited_if_possible(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Limit a block like `limited` in the main thread.

    No limit is set in other threads, or if the operating system has no timers.
    """
    on_main = threading.current_thread() is threading.main_thread()
    return limited(seconds if on_main and hasattr(signal, "setitimer") else 0.0)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` in the block after the given number of seconds. 0 sets no limit.

    Limits can be nested: a block inside another limited block also ends when the time of the outer
    block is over, and the outer limit continues after the inner block.

    Raises `UsageError` outside the main thread, which does not receive the signal of the timer.
    """
    if seconds <= 0:
        yield
        return
    check_thread()

    def stop(*_: Any) -> None:
        raise TimeLimit

    begin = time.monotonic()
    outer = signal.getitimer(signal.ITIMER_REAL)[0]  # remaining seconds of an enclosing limit, or 0
    previous = signal.signal(signal.SIGALRM, stop)
    # The signal is repeated every second, in case the block swallows the first one.
    signal.setitimer(signal.ITIMER_REAL, min(seconds, outer or seconds), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if outer:
            left = outer - (time.monotonic() - begin)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), 1.0)
