"""Limits of time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from fedtrees.core.errors import UsageError


class TimeLimit(BaseException):
    """A cell, or a run, took longer than it may.

    No ordinary exception: an attack must not swallow it.
    """


def check_thread() -> None:
    """Raise `UsageError` off the main thread, where no limit would hold."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("a time limit holds on the main thread alone; run there, or without one")


def limited_if_possible(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Limit a block as `limited` does on the main thread, and not at all on other threads."""
    on_main = threading.current_thread() is threading.main_thread()
    return limited(seconds if on_main else 0.0)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeLimit` in the block after so many seconds.

    Raises `UsageError` off the main thread, where no limit would hold.
    """
    if seconds <= 0:
        yield
        return
    check_thread()

    def stop(*_: Any) -> None:
        raise TimeLimit

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, should it be swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
