"""An attack that tries to leave a bit for its next run through every channel of its process."""

import contextlib
import ctypes
import fcntl
import os
import sys
import threading
from pathlib import Path

import numpy as np

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.registry import register

HERE = Path(__file__)
LIBC = ctypes.CDLL(None, use_errno=True)
HINT, READ_HINT = 1036, 1035  # fcntl's F_SET_RW_HINT of an inode, and F_GET_RW_HINT
FLAGS, READ_FLAGS, NO_DUMP = 0x40086602, 0x80086601, 0x40  # ioctl's FS_IOC_SETFLAGS, _GETFLAGS


def hinted(fd, set_):
    value = ctypes.c_uint64(2)
    LIBC.fcntl(fd, HINT if set_ else READ_HINT, ctypes.byref(value))
    return value.value if not set_ else 0


def flagged(fd, set_):
    value = ctypes.c_long(NO_DUMP if set_ else 0)
    LIBC.ioctl(fd, ctypes.c_ulong(FLAGS if set_ else READ_FLAGS), ctypes.byref(value))
    return value.value & NO_DUMP if not set_ else 0


def file_of(path):
    return os.open(path, os.O_RDONLY)


def append(fd):
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)


def server_nice(value):
    os.setpriority(os.PRIO_PROCESS, os.getppid(), value)


#: By name: leave the bit, and read it.
WAYS = {
    "extended attribute": (
        lambda: os.setxattr(HERE, "user.bit", b"1"),
        lambda: len(os.listxattr(HERE)),
    ),
    "time": (lambda: os.utime(HERE, (1, 1)), lambda: os.stat(HERE).st_mtime == 1),
    "permissions": (lambda: os.chmod(HERE, 0o640), lambda: os.stat(HERE).st_mode & 0o777 == 0o640),
    "owner": (lambda: os.chown(HERE, 12345, -1), lambda: os.stat(HERE).st_uid == 12345),
    "hint": (lambda: hinted(file_of(HERE), True), lambda: hinted(file_of(HERE), False)),
    "flags of a file": (
        lambda: flagged(file_of(HERE), True),
        lambda: flagged(file_of(HERE), False),
    ),
    "flags of stderr": (lambda: append(2), lambda: fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND),
    "flags of stdin": (lambda: append(0), lambda: fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND),
    "place in stderr": (lambda: os.lseek(2, 999, 0), lambda: os.lseek(2, 0, 1)),
    "priority of the server": (
        lambda: server_nice(os.getpriority(os.PRIO_PROCESS, os.getppid()) + 1),
        lambda: os.nice(0),
    ),
    "link": (lambda: os.link(HERE, "linked"), lambda: os.stat(HERE).st_nlink),
    "shared memory": (
        lambda: LIBC.shmget(7654321, 64, 0o1600),
        lambda: LIBC.shmget(7654321, 64, 0) >= 0,
    ),
    "key": (
        lambda: LIBC.syscall(248, b"user", b"fedtrees-bit", b"1", 1, -4),
        lambda: LIBC.syscall(249, b"user", b"fedtrees-bit", None, 0) >= 0,
    ),
    "file": (
        lambda: Path("/tmp/fedtrees-bit").touch(),
        lambda: os.path.exists("/tmp/fedtrees-bit"),
    ),
}


def shared_and_writeable():
    """Return the number of memory regions that this process shares with others and may write."""
    rights = [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum("w" in right and "s" in right for right in rights)


@register.attack("channels")
class Channels(Attack):
    def run(self, view, rng):
        n_left, notes = 0.0, {}
        for name, (write_bit, read_bit) in WAYS.items():
            if "client-0" in view.principals:
                with contextlib.suppress(OSError):
                    write_bit()
                    n_left += 1
            else:
                notes[name] = 0.0
                with contextlib.suppress(OSError):
                    notes[name] = float(read_bit())
        notes |= {"shared": shared_and_writeable(), "descriptors": len(os.listdir("/proc/self/fd"))}
        return Guess.none("it claims nothing", notes)


def memory():
    return np.ones(2**40 // 8)


def file():
    with open("large", "wb") as output:
        for _ in range(100):
            output.write(bytes(2**20))


def reply():
    return Guess((Labels(np.arange(2**22), np.zeros(2**22, int), np.zeros((2**22, 2))),))


def texts():
    return Guess.none("it claims nothing", {str(n) * 9: 1.0 for n in range(10**6)})


def processor():
    def spin():
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()
    spin()


def arguments():
    return Guess.none("it claims nothing", dict.fromkeys(sys.argv, 1.0))


def printed():
    print("\x1b[2Jseen")
    os.write(1, b"x" * 10**6)


GREEDY = (memory, file, reply, texts, processor, arguments, printed)


@register.attack("greedy")
class Greedy(Attack):
    def __init__(self, takes="memory"):
        self.takes = takes

    def run(self, view, rng):
        (take,) = [take for take in GREEDY if take.__name__ == self.takes]
        guess = take()
        return guess if isinstance(guess, Guess) else Guess.none("it claims nothing")
