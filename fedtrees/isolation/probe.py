"""What an attack is refused on this machine, found out by trying: `fedtrees doctor` prints it."""

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path


def probed(file: str, bench: int) -> dict[str, bool]:
    """Try what no attack should be able to do, where attacks run; tell what was refused.

    `file`: A file as a run folder's.
    `bench`: The process that holds truth.
    """
    return {name: _refused(attempt) for name, attempt in _attempts(file, bench).items()}


def _attempts(file: str, bench: int) -> dict[str, Callable[[], object]]:
    shared = Path("/dev/shm" if Path("/dev/shm").is_dir() else os.path.dirname(file))
    return {
        "read files of runs": lambda: Path(file).read_bytes(),
        "list their folders": lambda: os.listdir(os.path.dirname(file)),
        "leave files": lambda: _made(shared / f"fedtrees-{secrets.token_hex(8)}"),
        "read the command line": lambda: Path(f"/proc/{bench}/cmdline").read_bytes(),
        "read the memory": lambda: Path(f"/proc/{bench}/mem").open("rb").close(),
        "signal the bench": lambda: os.kill(bench, 0),
        "use the network": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
        "open local sockets": lambda: socket.socketpair()[0].close(),
    }


def _made(path: Path) -> None:
    path.touch()
    path.unlink()


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return True
    except OSError:  # there is no such thing here, which keeps nobody from another way
        return False
    return False
