"""Describe the software and the machine of a run, for `environment.json` and `fedtrees doctor`.

The module also checks that the optional packages which a protocol and its defenses need are
installed. `recall` keeps facts that take seconds to compute and follow from the installation alone:
`fedtrees list` imports every plug-in, and `fedtrees explain` trains federations. Their answers are
stored as JSON in the cache folder of the user (``$XDG_CACHE_HOME/fedtrees`` or
``~/.cache/fedtrees``), under a digest of the source of fedtrees and the installed libraries.
Results that a plug-in can change are not stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedtrees import __version__
from fedtrees.core.errors import INSTALL, StoreError, UsageError, listed
from fedtrees.core.files import write_whole
from fedtrees.core.registry import register
from fedtrees.core.source import package_digest
from fedtrees.core.specs import Composed, Spec

LIBRARIES = (
    "numpy", "numba", "scipy", "pandas", "scikit-learn", "xgboost", "gmpy2", "ortools",
    "plotly", "matplotlib", "typer", "rich", "joblib", "imbalanced-learn", "phe",
)  # fmt: skip
OPTIONAL = ("torch", "dp-accounting", "opacus")


def library_versions() -> dict[str, str | None]:
    """Return the installed version of every library that is used, None if it is missing."""
    return {name: installed(name) for name in (*LIBRARIES, *OPTIONAL)}


def installed(name: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Return versions and the size of the machine.

    The result contains no names, no paths and no environment variables, so that it can be
    published.
    """
    return {
        "fedtrees": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "libraries": {k: v for k, v in library_versions().items() if v},
    }


def browser() -> str | None:
    """Return the name of an installed Chromium-like browser, None if there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    return None


def check_extras(protocol: Spec | None, defense: Composed) -> None:
    """Raise `UsageError` if an optional package is missing that a protocol or its defense needs.

    The message names the protocol or defense, the module and the command that installs it.

    Parameters
    ----------
    protocol : Spec or None
        The protocol. None to check a defense only.
    defense : Composed
        The defense, ``Composed()`` for none.
    """
    needs = {} if protocol is None else {protocol.name: missing_extras(protocol, Composed())}
    needs |= {spec.name: missing_modules(_needs("defense", spec)) for spec in defense.parts}
    missing = {name: modules for name, modules in needs.items() if modules}
    if missing:
        raise UsageError(install_text(missing))


def missing_extras(protocol: Spec, defense: Composed) -> list[str]:
    """Return the missing optional modules that a protocol and a defense need."""
    parts = [module for spec in defense.parts for module in _needs("defense", spec)]
    return missing_modules([*_needs("protocol", protocol), *parts])


def missing_modules(modules: Sequence[str]) -> list[str]:
    """Return the names of modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def install_text(missing: Mapping[str, Sequence[str]]) -> str:
    """Write a sentence about missing modules, with the commands that install them.

    Parameters
    ----------
    missing : mapping of str to sequence of str
        Missing modules by the name of the protocol or defense that needs them.
    """
    modules = dict.fromkeys(module for names in missing.values() for module in names)
    verb = "needs" if len(missing) == 1 else "need"
    how = "; ".join(dict.fromkeys(INSTALL.get(m, f"pip install {m}") for m in modules))
    return f"{listed([*missing])} {verb} {listed([*modules])}, not installed: {how}"


def _needs(kind: str, spec: Spec) -> tuple[str, ...]:
    """Return the modules of optional packages that a registered protocol or defense declares."""
    # The modules of a defense can depend on its parameters.
    if kind == "defense":
        return tuple(register.make(kind, spec).extra_packages)
    protocol: Any = register.get(kind, spec.name)
    return tuple(protocol.info.extra_packages)


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
