"""XGBoost's federated plugin on loopback: a server process and one process per worker.

``python -m fedtrees.benchmarks.perf.xgboost_federated server|worker ...`` is one such process.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtrees.benchmarks.perf.rivals import Work
from fedtrees.core.schema import Table

_MODULE = "fedtrees.benchmarks.perf.xgboost_federated"
_LIMIT = 300  # seconds


def federated_xgboost(parts: Sequence[Table], work: Work, repeats: int = 3) -> float:
    """Return the median wall seconds of federated training, binning included.

    Rows are split horizontally, nothing is encrypted, each worker has one thread. A run takes as
    long as its slowest worker, from the first matrix to the last tree.

    Raises `RuntimeError` if the server or a worker fails; with what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        for rank, part in enumerate(parts):
            np.savez(Path(folder) / f"{rank}.npz", X=part.X, y=part.y)
        times = [_run(folder, len(parts), work) for _ in range(repeats)]
    return sorted(times)[repeats // 2]


def _run(folder: str, workers: int, work: Work) -> float:
    port = str(_free_port())
    server = _start("server", port, str(workers))
    try:
        started = [
            _start("worker", port, str(workers), str(rank), folder, json.dumps(vars(work)))
            for rank in range(workers)
        ]
        found = [process.communicate(timeout=_LIMIT) for process in started]
        for process, (_, errors) in zip(started, found, strict=True):
            if process.returncode:
                raise RuntimeError(f"a worker of XGBoost's federated plugin failed:\n{errors}")
        return max(float(output.splitlines()[-1]) for output, _ in found)
    finally:
        server.kill()
        server.wait()


def _start(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", _MODULE, *arguments]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int, workers: int) -> None:
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=workers, port=port, timeout=_LIMIT)


def _work(port: int, workers: int, rank: int, folder: str, work: Work) -> float:
    """Train as one worker; return its wall seconds."""
    import xgboost

    with np.load(Path(folder) / f"{rank}.npz") as rows:
        X, y = rows["X"], rows["y"]
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=f"localhost:{port}",
        federated_world_size=workers,
        federated_rank=rank,
    ):
        xgboost.collective.broadcast("ready", 0)  # nobody is timed while waiting for a late start
        started = time.perf_counter()
        data = xgboost.QuantileDMatrix(X, y, max_bin=work.bins, nthread=1)
        xgboost.train(work.xgboost, data, work.trees)
        return time.perf_counter() - started


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "server":
        _serve(int(given[0]), int(given[1]))
    else:
        port, workers, rank = map(int, given[:3])
        print(_work(port, workers, rank, given[3], Work(**json.loads(given[4]))))
