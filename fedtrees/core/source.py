"""Digests of the installed source code, which distinguish the results of different versions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import fedtrees

# Packages that compute no result. A change in any other package changes the key of every task.
_SHOW = ("benchmarks", "model_audit", "cli", "cluster", "estimators", "report")
#: Files that a program reads next to its modules, for example the texts of reasons and suites.
_DATA = (".py", ".csv", ".toml", ".json")


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of the installed source that can change a number.

    It covers the attacks, the defenses, and all packages of fedtrees except `_SHOW`. A benchmark
    computes a cell again if this digest has changed, and the sites of a federation refuse to train
    with different ones.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    return _digest_files(_SHOW, (".py",))


@lru_cache(maxsize=1)
def package_digest() -> str:
    """Return a digest of all modules and data files of fedtrees, 16 hexadecimal digits.

    Cached facts about the installation are valid as long as it does not change.
    """
    return _digest_files((), _DATA)


def _digest_files(without: Collection[str], suffixes: Collection[str]) -> str:
    """Return a digest of the files with the given suffixes in all packages but some."""
    root = Path(fedtrees.__file__).parent
    packages = sorted(path.parent for path in root.glob("*/__init__.py"))
    folders = {folder.name: folder for folder in packages}
    # These packages may be installed in other folders.
    for name in ("defenses", "attacks", "benchmarks"):
        spec = find_spec(f"fedtrees.{name}")
        assert spec is not None
        assert spec.origin is not None
        folders[name] = Path(spec.origin).parent
    digest = hashlib.sha256()
    for part, folder in folders.items():
        if part in without:
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix in suffixes and path.is_file():
                digest.update(f"{part}/{path.relative_to(folder).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
