"""An attack that knows where the truth lies, and tries every way to read it."""

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


def amount_read(attempt):
    """Return how many bytes or names an attempt read, and 0 if it was refused."""
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
    with os.popen(f"base64 '{path}' 2>/dev/null") as output:
        return output.read()


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
    """Send a byte in a datagram, which needs no listening process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return "x" * sock.sendto(b"x", ("127.0.0.1", 9))


def segment():
    """Create a shared memory segment, which any process could find by its number."""
    segment_id = LIBC.shmget(0, 64, 0o1600)
    LIBC.shmctl(segment_id, 0, None)  # removed
    return "x" * (segment_id >= 0)


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
    return {name: amount_read(way) for name, way in ways.items()}


@register.attack("spy")
class Spy(Attack):
    """Write the amounts that were read into notes, which become rows of the run."""

    def run(self, view, rng):
        return Guess((Records(view.rows),), spied(BENCH))


if __name__ == "__main__":
    print(json.dumps(spied(BENCH)))
