"""Keep facts that take seconds to compute and follow from the installed source alone.

`fedtrees list` imports every plug-in, and `fedtrees explain` trains federations. The results change
only with the source of fedtrees and the installed libraries. They are therefore stored as JSON in
the cache folder of the user (``$XDG_CACHE_HOME/fedtrees`` or ``~/.cache/fedtrees``), under a digest
of both. Results that a plug-in can change are not stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtrees.core.errors import INSTALL, StoreError
from fedtrees.core.files import write_whole
from fedtrees.core.registry import register
from fedtrees.core.source import package_digest

#: Seconds after which an unused entry is removed, 30 days.
LIFETIME = 30 * 24 * 3600.0


def cache_folder() -> Path:
    """Return the cache folder of the user. It need not exist."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fedtrees"


def recall(question: Any, compute: Callable[[], Any]) -> Any:
    """Return the answer to a question, from the cache if it was computed before.

    Parameters
    ----------
    question : object
        What the answer depends on besides the installation, as plain JSON types.
    compute : callable
        Computes the answer, as plain JSON types. Its exceptions are not stored.
    """
    if not register.is_built_in:
        return compute()
    path = cache_folder() / f"{_digest(question)}.json"
    with contextlib.suppress(OSError, ValueError):
        answer = json.loads(path.read_bytes())
        os.utime(path)
        return answer
    answer = compute()
    # A cache that cannot be written, for example on a full disk, only costs time.
    with contextlib.suppress(OSError, StoreError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_unused(path.parent)
        write_whole(path, json.dumps(answer).encode())
    return answer


def _digest(question: Any) -> str:
    """Return the name of an entry: a digest of the question and the installation."""
    from fedtrees.experiments.environment import library_versions, missing_modules

    libraries = [library_versions(), missing_modules([*INSTALL])]
    inputs = [package_digest(), platform.python_version(), libraries, question]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]


def _remove_unused(folder: Path) -> None:
    """Remove the entries that were not read for `LIFETIME`."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - LIFETIME:
                path.unlink()
