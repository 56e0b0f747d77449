"""Restrict the system calls of an attack's process to a list, with seccomp (Linux).

`system_calls.csv` contains the numbers of the calls on x86_64 and on aarch64, and their use: calls
that an attack may make, calls that it may make with certain arguments only, and calls that
`fedtrees doctor` tries because they would let one attack leave data for the next one or change the
bench.
Every call that is not allowed is refused, also calls that a newer kernel adds, calls of 32-bit
programs (another architecture) and calls of the x32 table (their numbers have bit 30 set).
"""

import csv
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ALLOWED, BY_ARGUMENT = "allowed", "by argument"

# linux/audit.h's number of each architecture.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From linux/bpf_common.h, linux/seccomp.h and linux/prctl.h.
_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_IF_AT_LEAST = 0x35
_PERMIT, _REFUSE, _MISSING = 0x7FFF0000, 0x00050001, 0x00050026  # the last two: EPERM, ENOSYS
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
#: Calls from clone3 on are answered as if the kernel had none: the C library then uses older ones.
_RECENT = 435
_X32 = 0x40000000
# linux/sched.h: a thread of this process, and flags for new namespaces.
_THREAD, _NAMESPACES = 0x00010000, 0x7E020000
# asm/ioctls.h: is it a terminal, its size, bytes to read, blocking, closing at exec.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# linux/fcntl.h: copies of a descriptor, its flags, the size of a pipe. Not among them: locks,
# leases, owners of signals and hints on files, which another process could read.
_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)

Line = tuple[int, int, int, int]  # an instruction of the filter: code, two jumps, operand


@cache
def numbers(use: str = "") -> dict[str, int]:
    """Return the numbers of the calls of one use on this machine, or of all of them.

    Returns
    -------
    dict of str to int
        By the name of the call. Empty on a system or processor without a list.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return {}
    return {
        row["call"]: int(row[machine])
        for row in _table()
        if row[machine] and use in ("", row["use"])
    }


def refused_uses() -> dict[str, list[str]]:
    """Return the calls that no attack may make, grouped by their use."""
    uses: dict[str, list[str]] = {}
    for row in _table():
        if row["use"] not in (ALLOWED, BY_ARGUMENT):
            uses.setdefault(row["use"], []).append(row["call"])
    return uses


def close_calls() -> bool:
    """Refuse this process all calls that are not listed, for the rest of its life.

    Returns
    -------
    bool
        Whether the kernel enforces this.
    """
    allowed = numbers(ALLOWED)
    if not allowed:
        return False
    rules = {numbers()[name]: check for name, check in _checks(os.getpid()).items()}
    return _install(_program(_ARCHITECTURES[platform.machine()], allowed.values(), rules))


def refuse_call(number: int) -> bool:
    """Refuse this process one call and allow all others; return whether the kernel enforces this.

    This is how a test runs on a kernel that lacks a call.
    """
    lines = [(_LOAD, 0, 0, _NUMBER_AT), (_IF_EQUAL, 0, 1, number)]
    return _install([*lines, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _PERMIT)])


def _table() -> list[dict[str, str]]:
    path = Path(__file__).parent / "system_calls.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _checks(pid: int) -> dict[str, list[Line]]:
    """Return, by call, the lines that allow it if its arguments are permitted.

    A process may start threads and no processes. It may signal itself and read its own limits.
    """
    thread = [
        *_argument(0), (_AND, 0, 0, _THREAD | _NAMESPACES), (_IF_EQUAL, 0, 1, _THREAD),
        (_RETURN, 0, 0, _PERMIT),
    ]  # fmt: skip
    return {
        "clone": thread,
        "fcntl": _one_of(1, _FCNTLS),
        "ioctl": _one_of(1, _IOCTLS),
        "kill": _one_of(0, [pid]),
        "tgkill": _one_of(0, [pid]),
        "tkill": _one_of(0, [pid]),
        "prlimit64": _one_of(0, [0, pid]),
    }


def _argument(position: int) -> list[Line]:
    """Return the line that loads the lower 32 bits of an argument; the kernel ignores the rest."""
    return [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)]


def _one_of(position: int, values: Iterable[int]) -> list[Line]:
    """Return the lines that allow a call if an argument has one of some values."""
    lines = _argument(position)
    for value in values:
        lines += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _PERMIT)]
    return lines


def _program(architecture: int, allowed: Iterable[int], rules: dict[int, list[Line]]) -> list[Line]:
    """Assemble the filter: calls that are neither allowed nor permitted by a rule are refused."""
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number in allowed:
        lines += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _PERMIT)]
    for number, check in rules.items():
        refusal = (_RETURN, 0, 0, _REFUSE)
        lines += [(_IF_EQUAL, 0, len(check) + 1, number), *check, refusal]
    return [
        *lines,
        (_IF_AT_LEAST, 2, 0, _X32),
        (_IF_AT_LEAST, 0, 1, _RECENT),
        (_RETURN, 0, 0, _MISSING),
        (_RETURN, 0, 0, _REFUSE),
    ]


def _install(program: list[Line]) -> bool:
    text = b"".join(struct.pack("HBBI", *line) for line in program)
    kept = ctypes.create_string_buffer(text, len(text))
    # struct sock_fprog: a length, padding, a pointer
    whole = struct.pack("HxxxxxxP", len(program), ctypes.addressof(kept))
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return int(libc.prctl(_SET_SECCOMP, _FILTER, whole, 0, 0)) == 0
