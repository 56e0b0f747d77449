"""Restrict the system calls of an attack's process to a list, with seccomp (Linux).

`system_calls.csv` contains the numbers of the calls on x86_64 and on aarch64, and their use: calls
that an attack may make, calls that it may make with certain arguments only, and calls that
`fedtrees doctor` tries because they would let one attack leave data for the next one or change the
bench.

Every call that is not allowed is refused, including calls that a newer kernel adds, calls of 32-bit
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

# Number of each architecture in linux/audit.h.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From linux/bpf_common.h, linux/seccomp.h and linux/prctl.h.
_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_IF_AT_LEAST = 0x35
# The last two return EPERM and ENOSYS.
_PERMIT, _REFUSE, _MISSING = 0x7FFF0000, 0x00050001, 0x00050026
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
#: From clone3 on, a refused call fails as if the kernel did not have it, so that the C library uses
#: an older call.
_RECENT = 435
_X32 = 0x40000000
# linux/sched.h: flag of a thread of this process, and flags of new namespaces.
_THREAD, _NAMESPACES = 0x00010000, 0x7E020000
# asm/ioctls.h: whether it is a terminal, its size, bytes to read, blocking, closing at exec.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# linux/fcntl.h: copies of a descriptor, its flags, the size of a pipe. Locks, leases, owners of
# signals and hints on files are not allowed, because another process could read them.
_FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)

Line = tuple[int, int, int, int]  # an instruction of the filter: code, two jump offsets, operand


@cache
def numbers(use: str = "") -> dict[str, int]:
    """Return the numbers of the calls of one use on this machine, or of all of them.

    Returns
    -------
    numbers : dict of str to int
        Numbers by name of the call. Empty on a system or processor without a list.
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
    """Refuse this process all calls that are not listed, until it ends.

    Returns
    -------
    enforced : bool
        Whether the kernel enforces this.
    """
    allowed = numbers(ALLOWED)
    if not allowed:
        return False
    rules = {numbers()[name]: check for name, check in _checks(os.getpid()).items()}
    return _install(_program(_ARCHITECTURES[platform.machine()], allowed.values(), rules))


def refuse_call(number: int) -> bool:
    """Refuse this process one call, and return whether the kernel enforces this.

    All remaining calls are allowed. Tests use it to simulate a kernel that lacks a call.
    """
    lines = [(_LOAD, 0, 0, _NUMBER_AT), (_IF_EQUAL, 0, 1, number)]
    return _install([*lines, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _PERMIT)])


def _table() -> list[dict[str, str]]:
    """Return the rows of `system_calls.csv`."""
    path = Path(__file__).parent / "system_calls.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _checks(pid: int) -> dict[str, list[Line]]:
    """Return, by call, the instructions that allow it for permitted arguments.

    A process may start threads, but no processes. It may signal itself and read its limits.
    """
    thread = [
        *_argument(0), (_AND, 0, 0, _THREAD | _NAMESPACES), (_IF_EQUAL, 0, 1, _THREAD),
        (_RETURN, 0, 0, _PERMIT),
    ]  # fmt: skip
    return {
        "clone": thread,
        "fcntl": _allow_values(1, _FCNTLS),
        "ioctl": _allow_values(1, _IOCTLS),
        "kill": _allow_values(0, [pid]),
        "tgkill": _allow_values(0, [pid]),
        "tkill": _allow_values(0, [pid]),
        "prlimit64": _allow_values(0, [0, pid]),
    }


def _argument(position: int) -> list[Line]:
    """Return the instruction that loads the lower 32 bits of an argument.

    The kernel ignores the upper bits.
    """
    return [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)]


def _allow_values(position: int, values: Iterable[int]) -> list[Line]:
    """Return the instructions that allow a call if an argument has one of some values."""
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
        # The jump skips the check and the refusal if the number is another one.
        lines += [(_IF_EQUAL, 0, len(check) + 1, number), *check, refusal]
    return [
        *lines,
        (_IF_AT_LEAST, 2, 0, _X32),
        (_IF_AT_LEAST, 0, 1, _RECENT),
        (_RETURN, 0, 0, _MISSING),
        (_RETURN, 0, 0, _REFUSE),
    ]


def _install(program: list[Line]) -> bool:
    """Install a filter in this process and return whether the kernel accepted it."""
    text = b"".join(struct.pack("HBBI", *line) for line in program)
    instructions = ctypes.create_string_buffer(text, len(text))
    # struct sock_fprog: a length, padding, a pointer
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return int(libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0)) == 0
