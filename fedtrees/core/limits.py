"""Limits of time."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from fedtrees.core.errors import UsageError


class TimeLimit(BaseException):
    """A cell, or a run, took longer than it may.

    No ordinary exception: an attack must not swallow it.
    """


def check_thread() -> None:
    """Raise `UsageError` off the main thread, where the signal of a timer does not arrive."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "a time limit works in the main thread only; run it there, or without a time limit"
        )


def limited_if_possible(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Limit a block as `limited` does on the main thread; elsewhere, or without timers, do not."""
    on_main = threading.current_thread() is threading.main_thread()
    return limited(seconds if on_main and hasattr(signal, "setitimer") else 0.0)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` in the block after so many seconds; 0 sets no limit.

    Limits nest: a block inside another limited block is also stopped when the time of the outer
    block is over, and the outer limit goes on after the inner block.

    Raises `UsageError` off the main thread, where the signal of the timer does not arrive.
    """
    if seconds <= 0:
        yield
        return
    check_thread()

    def stop(*_: Any) -> None:
        raise TimeLimit

    begin = time.monotonic()
    outer = signal.getitimer(signal.ITIMER_REAL)[0]  # seconds left of an enclosing limit, or 0
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
