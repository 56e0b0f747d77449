"""Find values of one worker in the bytes that XGBoost sends to another worker.

pip install "xgboost>=3,<3.3" numpy
python docs/examples/frameworks/xgboost_sketch_leak.py

Two workers train one tree on this machine, as two institutions would. They use the built-in
collective of XGBoost with its tracker, or its federated plugin with its server, which the histogram
mode of NVFlare runs. Worker 0 connects through a proxy that records the bytes that it receives.
XGBoost itself is not modified. The script counts the values of worker 1 whose exact four bytes are
among the received bytes. As a control, it counts equally many values of the same distribution that
are in no table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOST = "127.0.0.1"
LIMIT = 120  # seconds
COLUMNS = 2
PARAMS = {"tree_method": "hist", "max_depth": 1, "nthread": 1, "objective": "binary:logistic"}
TRANSPORTS = ("collective", "federated")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["xgboost", "__main__"])  # imported once for all workers


class Proxy:
    """A proxy on this machine that records the bytes that are sent to worker 0, by connection.

    Parameters
    ----------
    target : int
        Port to which the proxy forwards.
    answers : bool
        True if worker 0 opens the connections, so that the answers are sent to it.
    change : callable
        Function that changes the bytes from the side that opens the connection.
    """

    def __init__(
        self, target: int, answers: bool, change: Callable[[bytes], bytes] = bytes
    ) -> None:
        self.target, self.answers, self.change = target, answers, change
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        self.received: list[bytearray] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self.listener.accept()
                called = socket.create_connection((HOST, self.target))
                for sockets, answers, change in (
                    ((caller, called), False, self.change),
                    ((called, caller), True, bytes),
                ):
                    notes = bytearray()
                    if answers == self.answers:
                        self.received.append(notes)
                    arguments = (*sockets, notes, change)
                    threading.Thread(target=_forward, args=arguments, daemon=True).start()


def _forward(
    source: socket.socket, sink: socket.socket, notes: bytearray, change: Callable[[bytes], bytes]
) -> None:
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            notes += chunk
            sink.sendall(change(chunk))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Introductions:
    """Proxies in front of the workers, between which the tracker arranges connections.

    A worker sends the port at which it listens to the tracker. This port is replaced by that of a
    proxy. The neighbours then pass these ports around the ring once. A worker compares its entry
    with its real port, and connects to the ports of the other workers. Therefore the real port is
    restored only in the entry of the worker that receives it.
    """

    def __init__(self) -> None:
        self.proxies: dict[int, Proxy] = {}
        self.in_place_of: dict[int, dict[bytes, bytes]] = {0: {}, 1: {}}

    def introduce(self, worker: int) -> Callable[[bytes], bytes]:
        """Return the function that changes the bytes of a worker to the tracker."""

        def change(words: bytes) -> bytes:
            port_field = re.search(rb'"port":(\d+)', words)
            if port_field is None:
                return words
            true, proxy = (
                int(port_field[1]),
                Proxy(int(port_field[1]), worker != 0, self.correct(worker)),
            )
            if len(str(true)) != len(str(proxy.port)):
                raise OSError(f"ports {true} and {proxy.port} differ in length: run it again")
            self.proxies[worker] = proxy
            true_bytes, proxy_bytes = struct.pack("<i", true), struct.pack("<i", proxy.port)
            self.in_place_of[worker][proxy_bytes] = true_bytes
            self.in_place_of[1 - worker][true_bytes] = proxy_bytes
            return words.replace(port_field[0], b'"port":%d' % proxy.port)

        return change

    def correct(self, worker: int) -> Callable[[bytes], bytes]:
        """Return the function that changes the bytes of other workers to a worker."""
        due = self.in_place_of[worker]

        def change(words: bytes) -> bytes:
            for one in [one for one in due if one in words]:
                words = words.replace(one, due.pop(one), 1)
            return words

        return change


@contextmanager
def collective() -> Iterator[tuple[list[dict[str, Any]], Callable[[], bytes]]]:
    """Start a tracker, and yield how each worker connects, and the bytes that worker 0 received."""
    from xgboost.tracker import RabitTracker

    tracker = RabitTracker(n_workers=2, host_ip=HOST, sortby="task", timeout=LIMIT)
    tracker.start()
    port = tracker.worker_args()["dmlc_tracker_port"]
    meeting = Introductions()
    doors = [Proxy(port, w == 0, meeting.introduce(w)) for w in range(2)]
    how = {"dmlc_communicator": "rabit", "dmlc_tracker_uri": HOST}
    try:
        yield (
            [
                {**how, "dmlc_tracker_port": door.port, "dmlc_task_id": str(rank)}
                for rank, door in enumerate(doors)
            ],
            lambda: b"".join(b"".join(p.received) for p in meeting.proxies.values()),
        )
    finally:
        for proxy in [*doors, *meeting.proxies.values()]:
            proxy.listener.close()
        tracker.free()


@contextmanager
def federated() -> Iterator[tuple[list[dict[str, Any]], Callable[[], bytes]]]:
    """Start a federated server, and yield the same as `collective`."""
    import xgboost as xgb

    if not xgb.build_info().get("USE_FEDERATED"):
        raise RuntimeError(
            f"xgboost {xgb.__version__} was built without its federated plugin; install a wheel "
            "that has it (PyPI's for Linux do), or pass --transport collective"
        )
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    server = PROCESSES.Process(target=serve, args=(port,))
    server.start()
    proxy = Proxy(port, True)
    how = {"dmlc_communicator": "federated", "federated_world_size": 2}
    try:
        _wait_for(port)
        yield (
            [
                {**how, "federated_server_address": f"{HOST}:{p}", "federated_rank": rank}
                for rank, p in enumerate((proxy.port, port))
            ],
            lambda: b"".join(data_frames(bytes(r)) for r in proxy.received),
        )
    finally:
        server.kill()
        server.join()
        proxy.listener.close()


def data_frames(stream: bytes) -> bytes:
    """Return the data of an HTTP/2 stream without frame headers, which can cut values in two."""
    at, data = 0, bytearray()
    while at + 9 <= len(stream):
        length = int.from_bytes(stream[at : at + 3], "big")
        if stream[at + 3] == 0:
            data += stream[at + 9 : at + 9 + length]
        at += 9 + length
    return bytes(data)


def _wait_for(port: int) -> None:
    for _ in range(10 * LIMIT):
        with suppress(OSError), socket.create_connection((HOST, port)):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens at port {port} after {LIMIT} seconds")


def values(rows: int, stream: str) -> NDArray[np.float32]:
    """Return a secret table: log-normal values with all 24 bits of a float32, (rows, COLUMNS)."""
    draw = np.random.default_rng([rows, *stream.encode()]).lognormal(3.0, 0.5, (rows, COLUMNS))
    return draw.astype(np.float32)


def serve(port: int) -> None:
    """Run the federated server of XGBoost."""
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=2, port=port, timeout=LIMIT)


def work(X: NDArray[np.float32], max_bin: int, connect: dict[str, Any]) -> None:
    """Train one tree as one worker."""
    import xgboost as xgb

    with xgb.collective.CommunicatorContext(**connect):
        data = xgb.DMatrix(X, np.arange(len(X)) % 2, nthread=1)
        xgb.train({**PARAMS, "max_bin": max_bin}, data, 1)


def found_in(received: bytes, column: NDArray[np.float32]) -> int:
    """Return how many values of a column occur in the bytes, at any offset."""
    shifted = (received[k : len(received) - (len(received) - k) % 4] for k in range(4))
    words = np.unique(np.concatenate([np.frombuffer(s, "<u4") for s in shifted]))
    return int(np.isin(column.view(np.uint32), words).sum())


def measure(transport: str, rows: int, max_bin: int) -> dict[str, Any]:
    """Train one tree, and count the values that worker 0 received.

    Returns
    -------
    dict
        ``bytes``: number of bytes that worker 0 received. By column, ``distinct``: number of
        distinct values that only worker 1 has, ``found``: how many of them worker 0 received, and
        ``control``: how many values that are in no table occur among the received bytes.

    Raises
    ------
    RuntimeError
        If a worker fails or takes longer than LIMIT.
    """
    public, secret, absent = (values(rows, stream) for stream in ("own", "secret", "nobody"))
    with {"collective": collective, "federated": federated}[transport]() as (connect, received):
        workers = [
            PROCESSES.Process(target=work, args=(X, max_bin, how))
            for X, how in zip((public, secret), connect, strict=True)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(LIMIT)
        finally:
            codes = [worker.exitcode for worker in workers]
            for worker in workers:
                worker.kill()
        if codes != [0, 0]:
            raise RuntimeError(f"workers over {transport} ended with {codes}: see above for why")
        crossed = received()
    local_values = np.concatenate([public, secret])
    only_secret = [np.setdiff1d(secret[:, f], public) for f in range(COLUMNS)]
    return {
        "bytes": len(crossed),
        "distinct": [len(column) for column in only_secret],
        "found": [found_in(crossed, column) for column in only_secret],
        "control": [
            found_in(crossed, np.setdiff1d(absent[:, f], local_values)) for f in range(COLUMNS)
        ],
    }


def main() -> None:
    """Print one line per transport, number of rows and `max_bin`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[200, 1500, 20000])
    parser.add_argument("--max-bin", type=int, nargs="*", default=[32, 256])
    parser.add_argument("--transport", nargs="*", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    if not arguments.json:
        print("| transport | rows | `max_bin` | found, per column | control | bytes received |")
        print("|---|---|---|---|---|---|")
    for transport in arguments.transport:
        for rows in arguments.rows:
            for max_bin in arguments.max_bin:
                _print(measure(transport, rows, max_bin), transport, rows, max_bin, arguments.json)


def _print(m: dict[str, Any], transport: str, rows: int, max_bin: int, plain: bool) -> None:
    if plain:
        return print(json.dumps({"transport": transport, "rows": rows, "max_bin": max_bin, **m}))
    pairs = zip(m["found"], m["distinct"], strict=True)
    shares = ", ".join(f"{a:,} of {b:,}" for a, b in pairs)
    control = sum(m["control"])
    print(f"| {transport} | {rows:,} | {max_bin} | {shares} | {control} | {m['bytes']:,} |")


if __name__ == "__main__":
    main()
