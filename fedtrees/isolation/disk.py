"""Restrict the files that a process can open, with Landlock (Linux 5.13 and later).

The restriction cannot be removed, not even by root, and applies to all processes that this process
starts. Paths without a rule can be neither opened nor created. Files that are already open stay
open. The process can still ask whether a file exists, and how large it is.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

# From linux/landlock.h. The numbers of these calls are the same on every processor.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = (1 << n for n in (0, 1, 2, 3, 14))
_RIGHTS = {1: 13, 2: 14, 3: 15}  # number of rights on files in each version; later versions: 15
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

#: Paths that interpreters and libraries read in addition to installed packages.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime",
    "/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo", "/proc/self", "/dev/null",
    "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
_SINK = "/dev/null"
_OURS = ("fedtrees", "fedtrees.attacks", "fedtrees.defenses")


def version() -> int:
    """Return the version of Landlock in the kernel, 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def close_disk(readable: Iterable[str | Path], writable: Iterable[str | Path]) -> bool:
    """Allow this process to open only these paths and their contents.

    Return whether this is enforced.

    Folders on the path of modules can also be listed, because Python searches them. TCP is refused
    from Landlock version 4 on, and signals to other processes from version 6 on.
    """
    offered = version()
    if not offered:
        return False
    rights = (1 << _RIGHTS.get(offered, 15)) - 1
    tcp, scopes = _TCP * (offered >= 4), _SCOPES * (offered >= 6)
    attributes = struct.pack("=QQQ", rights, tcp, scopes)
    # Number of bytes that this version reads.
    size = 8 if offered < 4 else 16 if offered < 6 else 24
    rules = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(rules, path, rights & (_READ_FILE | _READ_DIR | _EXECUTE))
        for path in filter(os.path.isabs, sys.path):
            _allow(rules, path, _READ_DIR)
        for path in (*writable, _SINK):
            _allow(rules, path, rights)
        return _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0
    finally:
        os.close(rules)


def code() -> list[Path]:
    """Return the paths of installed code: system, interpreter, packages, and this package.

    If a folder on the path of modules is not an installation, for example the folder of a project,
    only its packages, modules and the shared libraries of wheels (``ortools.libs``) are included,
    because it may also contain runs and tables.
    """
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    paths = [Path(p) for p in _SYSTEM] + installed
    paths += map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    for entry in map(Path, filter(None, sys.path)):
        if entry.is_absolute() and not any(entry.is_relative_to(root) for root in installed):
            with suppress(OSError):
                paths += filter(_is_code, entry.iterdir())
    for name in _OURS:
        paths += map(Path, import_module(name).__path__)
    return list(dict.fromkeys(paths))


def _is_code(path: Path) -> bool:
    """Return whether a path is a module, a package or the metadata of a package."""
    return (
        path.suffix in (".py", ".so", ".libs", ".dist-info", ".egg-info")
        or (path / "__init__.py").is_file()
    )


def _allow(rules: int, path: str | Path, rights: int) -> None:
    """Allow opening a path with these rights. A missing path is skipped."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        if not is_folder and not (rights := rights & _OF_FILES):
            return
        rule = struct.pack("=Qi", rights, fd)
        _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    """Make a system call by its number."""
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library, which takes milliseconds to load."""
    return ctypes.CDLL(None)
