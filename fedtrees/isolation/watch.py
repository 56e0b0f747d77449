"""Notes what an attack opens while it runs: files, sockets, and modules that hold truth."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOLD_TRUTH = ("fedtrees.data", "fedtrees.metrics", "fedtrees.bench", "fedtrees.report")
_CODE = (".py", ".pyc", ".nbi", ".nbc", ".so", ".pth")


@contextmanager
def watching(touched: list[str] | None) -> Iterator[None]:
    """Note what is opened in the block; None: do not watch.

    An audit hook cannot be removed again, and Python that wants to get round it can: it is there
    for mistakes.
    """
    if touched is None:
        yield
        return
    watched = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if not watched:
            return
        if event in ("socket.connect", "subprocess.Popen"):
            touched.append(event)
        elif event == "import" and str(arguments[0]).startswith(HOLD_TRUTH):
            touched.append(f"import {arguments[0]}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path = Path(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode())
            # Importing a module and numba's kernel cache are not looking for truth.
            if not (
                path.suffix in _CODE
                or "__pycache__" in path.parts
                or str(path).startswith(("/proc", "/sys", "/dev"))
            ):
                touched.append(f"open {path.name}")

    sys.addaudithook(note)
    try:
        yield
    finally:
        watched = False
