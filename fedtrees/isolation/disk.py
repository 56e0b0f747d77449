"""What a process may open for the rest of its life: Landlock, of Linux 5.13 and later.

A process that restricts itself so keeps to it, and so does all that it starts, root's too: paths
that no rule names can be neither opened nor made. What is open already stays so; whether a file
exists, and how large it is, can be asked still.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# From linux/landlock.h; the numbers of these calls are the same on every processor.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = (1 << n for n in (0, 1, 2, 3, 14))
_RIGHTS = {1: 13, 2: 14, 3: 15}  # how many rights on files each version knows; later ones: 15
_TCP, _SCOPES = 0b11, 0b11  # bind, connect; abstract sockets, signals
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

#: Beside what is installed, what interpreters and libraries look at.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime",
    "/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo", "/proc/self", "/dev/null",
    "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
_SINK = "/dev/null"
_OURS = ("fedtrees", "fedtrees.attacks", "fedtrees.defenses")


def version() -> int:
    """Return the version of Landlock that the kernel offers, 0 if none."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def close_disk(readable: Iterable[str | Path], writable: Iterable[str | Path]) -> bool:
    """Open nothing but these, and what lies in them, from here on; tell whether that holds.

    Folders on the path to modules can be listed, too: Python looks there. TCP is closed as well
    from version 4 on, signals to other processes from version 6 on.
    """
    offered = version()
    if not offered:
        return False
    rights = (1 << _RIGHTS.get(offered, 15)) - 1
    tcp, scopes = _TCP * (offered >= 4), _SCOPES * (offered >= 6)
    attributes = struct.pack("=QQQ", rights, tcp, scopes)
    size = 8 if offered < 4 else 16 if offered < 6 else 24  # bytes that this version reads
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
    """Return where code lies: system, interpreter, installed packages, and where numba keeps its.

    Of a folder on the path to modules that is no installation, a project's own say, only packages,
    modules and the shared libraries of wheels (``ortools.libs``) are named: runs and tables may lie
    beside them.
    """
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    found = [Path(p) for p in _SYSTEM] + installed
    found += map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    for entry in map(Path, filter(None, sys.path)):
        if entry.is_absolute() and not any(entry.is_relative_to(root) for root in installed):
            with suppress(OSError):
                found += filter(_is_code, entry.iterdir())
    for name in _OURS:
        found += map(Path, import_module(name).__path__)
    return list(dict.fromkeys(found))


def _is_code(path: Path) -> bool:
    return (
        path.suffix in (".py", ".so", ".libs", ".dist-info", ".egg-info")
        or (path / "__init__.py").is_file()
    )


def _allow(rules: int, path: str | Path, rights: int) -> None:
    """Let be opened what lies at a path; where nothing does, there is nothing to open."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir() and not (rights := rights & _OF_FILES):
            return
        rule = struct.pack("=Qi", rights, fd)
        _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), *arguments))
