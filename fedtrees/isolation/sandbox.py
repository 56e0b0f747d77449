"""Restrict the process of an attack: system calls, files, memory of other processes, resources.

An attack of a plug-in is code of another author, and runs next to processes with the ground truth.
Four mechanisms of Linux restrict it: a seccomp filter refuses system calls that are not listed in
``system_calls.csv``, Landlock refuses files outside of the installation, a process that has the
ground truth is not dumpable, and resource limits bound memory, threads and files. The order in
which `fedtrees.isolation.child` applies them is part of the security boundary.

`probed` tries the operations that no attack should be able to do, and `fedtrees doctor` prints the
result. Every attempt is harmless if it is not refused: system calls receive descriptors, process
numbers and addresses that do not exist.
"""

from __future__ import annotations

import csv
import ctypes
import errno
import math
import os
import platform
import secrets
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
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
def call_numbers(use: str = "") -> dict[str, int]:
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
    allowed = call_numbers(ALLOWED)
    if not allowed:
        return False
    rules = {call_numbers()[name]: check for name, check in _checks(os.getpid()).items()}
    return _install(_program(_ARCHITECTURES[platform.machine()], allowed.values(), rules))


def refuse_call(number: int) -> bool:
    """Refuse this process one call, and return whether the kernel enforces this.

    All remaining calls are allowed. Tests use it to simulate a kernel that lacks a call.
    """
    lines = [(_LOAD, 0, 0, _NUMBER_AT), (_IF_EQUAL, 0, 1, number)]
    return _install([*lines, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _PERMIT)])


def _table() -> list[dict[str, str]]:
    """Return the rows of ``system_calls.csv``."""
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


# From linux/landlock.h. The numbers of these calls are the same on every processor.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
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


def landlock_version() -> int:
    """Return the version of Landlock in the kernel, 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return max(
        0, _landlock(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    )


def close_disk(readable: Iterable[str | Path], writable: Iterable[str | Path]) -> bool:
    """Allow this process to open only these paths and their contents.

    Return whether this is enforced.

    Folders on the path of modules can also be listed, because Python searches them. TCP is refused
    from Landlock version 4 on, and signals to other processes from version 6 on.
    """
    offered = landlock_version()
    if not offered:
        return False
    rights = (1 << _RIGHTS.get(offered, 15)) - 1
    tcp, scopes = _TCP * (offered >= 4), _SCOPES * (offered >= 6)
    attributes = struct.pack("=QQQ", rights, tcp, scopes)
    # Number of bytes that this version reads.
    size = 8 if offered < 4 else 16 if offered < 6 else 24
    rules = _landlock(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(rules, path, rights & (_READ_FILE | _READ_DIR | _EXECUTE))
        for path in filter(os.path.isabs, sys.path):
            _allow(rules, path, _READ_DIR)
        for path in (*writable, _SINK):
            _allow(rules, path, rights)
        return _landlock(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0
    finally:
        os.close(rules)


def code_paths() -> list[Path]:
    """Return the paths of installed code: system, interpreter, packages, and this package.

    If a folder on the path of modules is not an installation, for example the folder of a project,
    only its packages, modules and the shared libraries of wheels (``ortools.libs``) are included,
    because it may also contain runs and tables. Packages that are symbolic links in an installation
    (uv, for example, can install them in this way) are listed separately, because Landlock decides
    by the location of the target.
    """
    installed = [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    paths = [Path(p) for p in _SYSTEM] + installed
    paths += map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    for entry in map(Path, filter(None, sys.path)):
        if not entry.is_absolute():
            continue
        in_installation = any(entry.is_relative_to(root) for root in installed)
        with suppress(OSError):
            code = filter(_is_code, entry.iterdir())
            paths += (p for p in code if p.is_symlink()) if in_installation else code
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
        _landlock(
            _ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0)
        )
    finally:
        os.close(fd)


def _landlock(number: int, *arguments: object) -> int:
    """Make a system call by its number."""
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library, which takes milliseconds to load."""
    return ctypes.CDLL(None)


_LINUX = sys.platform == "linux"
# From linux/prctl.h and linux/capability.h.
_PDEATHSIG, _GET_DUMPABLE, _SET_DUMPABLE, _SUBREAPER, _PR_NO_NEW_PRIVILEGES = 1, 3, 4, 36, 38
_VERSION_3 = 0x20080522
_FILES = 0b1111  # chown, dac_override, dac_read_search, fowner: root can still read its files


def close_memory() -> None:
    """Prevent other processes from reading or tracing this one.

    A process that may trace every process is an exception.
    """
    _prctl(_SET_DUMPABLE, 0)


@contextmanager
def closed_memory() -> Iterator[None]:
    """Protect the memory of this process within the block."""
    before = _prctl(_GET_DUMPABLE)
    close_memory()
    try:
        yield
    finally:
        if before == 1:
            _prctl(_SET_DUMPABLE, 1)


def close_for_good() -> None:
    """Protect the memory of this process, and give up all rights to read that of other processes.

    This includes the rights of root.
    """
    close_memory()
    _prctl(_PR_NO_NEW_PRIVILEGES, 1)
    if _LINUX:
        header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        if libc.capget(header, sets) == 0:
            # Effective and permitted rights. No rights are inherited.
            kept_rights = [sets[0] & _FILES, sets[1] & _FILES]
            libc.capset(header, (ctypes.c_uint32 * 6)(*kept_rights, 0, 0, 0, 0))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def adopt_descendants() -> None:
    """Become the parent of processes whose parent has ended."""
    _prctl(_SUBREAPER, 1)


def end_children() -> None:
    """Kill all children of this process, and their children after adopting them."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        while pids := listed.read_text().split():
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _prctl(option: int, value: int = 0) -> int:
    """Call prctl on Linux. Return -1 on other systems."""
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) if _LINUX else -1


try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

#: Memory of an attack in bytes, in addition to that of the process from which it was forked. A
#: larger ``--memory`` replaces it.
MOST_MEMORY = 8 * 2**30
#: Largest size of a file that an attack may write, in bytes.
MOST_FILE_BYTES = 2**26
#: Number of threads and processes of this user above which an attack starts no more threads.
MOST_THREADS = 4096


def limit_resources(seconds: float) -> None:
    """Limit the resources of this process until it ends.

    Parameters
    ----------
    seconds : float
        Remaining seconds of the time limit of the attack, 0 if there is none. The process is killed
        (SIGXCPU) after this CPU time on every core.
    """
    if resource is None:
        return
    _lower("RLIMIT_CORE", 0)
    _lower("RLIMIT_FSIZE", MOST_FILE_BYTES)
    _lower("RLIMIT_NPROC", MOST_THREADS)
    if sys.platform == "linux":  # on other systems, the used addresses cannot be counted
        _lower("RLIMIT_AS", _addresses() + most_memory())
    if seconds > 0:
        _lower("RLIMIT_CPU", math.ceil(seconds * _cores()) + 1, grace=5)


def most_memory() -> int:
    """Return the bytes that an attack may use: `MOST_MEMORY`, or the larger limit of ``--memory``.

    A worker with ``--memory`` has this limit on its data, and processes that it starts inherit it.
    """
    assert resource is not None
    data_limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return MOST_MEMORY if data_limit == resource.RLIM_INFINITY else max(MOST_MEMORY, data_limit)


def explain_limit(err: BaseException) -> str:
    """Return the limit that caused an error as a clause, "" if no limit caused it."""
    number = getattr(err, "errno", None)
    if isinstance(err, MemoryError) and resource is not None:
        gibibytes = most_memory() / 2**30
        return f"; an attack may take {gibibytes:.0f} GiB of memory, or the limit of --memory GIB"
    if number == errno.EFBIG:
        return f"; a file of an attack may have {MOST_FILE_BYTES // 2**20} MiB"
    return ""


def _lower(name: str, value: int, grace: int = 0) -> None:
    """Set a soft limit, and a hard limit that is larger by `grace`.

    A lower present limit is not changed.
    """
    kind = getattr(resource, name, None)
    if kind is None:
        return
    present = resource.getrlimit(kind)[1]
    if present == resource.RLIM_INFINITY or present > value + grace:
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value + grace))


def _addresses() -> int:
    """Return the number of bytes of addresses that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cores() -> int:
    """Return the number of processor cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: Arguments of a call without effect: -1 is no descriptor, no process and no address.
_HARMLESS = (-1, 0, 0, 0, 0, 0)
# linux/fcntl.h and linux/fs.h: test a lock, set the owner of signals, set a hint, set flags.
_GET_LOCK, _SET_OWNER, _SET_HINT, _SET_FLAGS = 5, 8, 1036, 0x40086602
_GETPID = 39


def probed(file: str, bench: int) -> dict[str, bool]:
    """Return, for every attempt, whether it was refused.

    Parameters
    ----------
    file : str
        A file in a folder that is like a run folder.
    bench : int
        Number of the process that contains the truth.
    """
    attempts = _attempts(file, bench)
    refused = {name: _is_refused(attempt) for name, attempt in attempts.items()}
    return refused | {use: all(map(_call_refused, names)) for use, names in _uses().items()}


def _attempts(file: str, bench: int) -> dict[str, Callable[[], object]]:
    """Return the attempts by name."""
    shared = Path("/dev/shm" if Path("/dev/shm").is_dir() else os.path.dirname(file))
    return {
        "read files of runs": lambda: Path(file).read_bytes(),
        "list their folders": lambda: os.listdir(os.path.dirname(file)),
        "leave files": lambda: _create_file(shared / f"fedtrees-{secrets.token_hex(8)}"),
        "read the command line": lambda: Path(f"/proc/{bench}/cmdline").read_bytes(),
        "read the memory": lambda: Path(f"/proc/{bench}/mem").open("rb").close(),
        "signal the bench": lambda: os.kill(bench, 0),
        "limit the bench": lambda: _call("prlimit64", bench),
        "use the network": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
        "open local sockets": lambda: socket.socketpair()[0].close(),
        "start processes": _fork,
        "lock files": lambda: _call("fcntl", 0, _GET_LOCK),
        "have signals sent": lambda: _call("fcntl", 0, _SET_OWNER, bench),
        "leave hints on files": lambda: _call("fcntl", -1, _SET_HINT),
        "set flags of files": lambda: _call("ioctl", -1, _SET_FLAGS),
        "use the x32 calls": lambda: _raw(_X32 + _GETPID),
    }


def _uses() -> dict[str, list[str]]:
    """Return the system calls to try, grouped by use.

    Empty if there is no list for this machine.
    """
    numbers = call_numbers()
    uses = {use: [n for n in names if n in numbers] for use, names in refused_uses().items()}
    return {use: names for use, names in uses.items() if names}


def _call_refused(name: str) -> bool:
    """Return whether a system call is refused."""
    return _is_refused(lambda: _call(name, *_HARMLESS))


def _call(name: str, *arguments: int) -> None:
    """Make a system call by its name. Raises `OSError` if it fails."""
    number = call_numbers().get(name)
    if number is None:
        raise OSError(errno.EINVAL, f"{name} has no number on this machine")
    _raw(number, *arguments)


def _raw(number: int, *arguments: int) -> None:
    """Make a system call by its number. Raises `OSError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    six = (*arguments, *(0,) * (6 - len(arguments)))
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, six)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _fork() -> None:
    """Start a process and wait for it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _create_file(path: Path) -> None:
    """Create a file and remove it."""
    path.touch()
    path.unlink()


def _is_refused(attempt: Callable[[], object]) -> bool:
    """Return whether an attempt is refused: it is not permitted, or the kernel has no such call."""
    try:
        attempt()
    except PermissionError:
        return True
    # It fails for another reason, so that it may succeed with other arguments.
    except OSError as err:
        return err.errno == errno.ENOSYS
    return False
