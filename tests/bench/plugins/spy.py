"""An attack that is told where truth lies, and goes to fetch it in every way it knows."""

import ctypes
import json
import os
import socket
from pathlib import Path

from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.registry import register

RUN = Path("runs")  # the test puts the run folder here
BENCH = os.getppid()  # and the process of the bench here
LIBC = ctypes.CDLL(None, use_errno=True)


def tried(attempt):
    """Tell what an attempt brought: how many bytes or names, 0 if it was refused."""
    try:
        return len(attempt())
    except (OSError, ValueError):
        return 0


def mapped(path):
    """Read a file as no audit hook sees."""
    fd = LIBC.open(str(path).encode(), os.O_RDONLY)
    try:
        return os.read(fd, 100) if fd >= 0 else b""
    finally:
        if fd >= 0:
            os.close(fd)


def by_a_child(path):
    with os.popen(f"base64 '{path}' 2>/dev/null") as out:
        return out.read()


def by_a_link(path):
    os.link(path, "linked")
    return Path("linked").read_bytes()


def by_a_symlink(path):
    os.symlink(path, "named")
    return Path("named").read_bytes()


def left_behind():
    path = Path(os.environ["HOME"]) / "fedtrees-spy-was-here"
    path.write_text("x")
    path.unlink()
    return "x"


def datagram():
    """Send a byte, which needs nobody who listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return "x" * sock.sendto(b"x", ("127.0.0.1", 9))


def segment():
    """Make shared memory that any process could find by its number."""
    found = LIBC.shmget(0, 64, 0o1600)
    LIBC.shmctl(found, 0, None)  # removed
    return "x" * (found >= 0)


def spied(bench):
    """Return how much each way brought."""
    transcript = RUN / "cells" / "other.transcript.npz"
    line = f"/proc/{bench}/cmdline"
    ways = {
        "run folder": lambda: os.listdir(RUN),
        "suite": lambda: (RUN / "suite.toml").read_bytes(),
        "transcript": transcript.read_bytes,
        "transcript, without Python": lambda: mapped(transcript),
        "transcript, by a child": lambda: by_a_child(transcript),
        "transcript, by a link": lambda: by_a_link(transcript),
        "transcript, by a symlink": lambda: by_a_symlink(transcript),
        "transcript, from own root": Path(f"/proc/self/root{transcript}").read_bytes,
        "command line": Path(line).read_bytes,
        "command line, by a child": lambda: by_a_child(line),
        "left for later": left_behind,
        "datagram": datagram,
        "sockets": lambda: "x" * bool(socket.socketpair()),
        "shared memory": segment,
    }
    return {name: tried(way) for name, way in ways.items()}


@register.attack("spy")
class Spy(Attack):
    """Note what was found, which stands in the run's table then."""

    def run(self, view, rng):
        return Guess((Records(view.rows),), spied(BENCH))


if __name__ == "__main__":
    print(json.dumps(spied(BENCH)))
