"""Run XGBoost's federated plugin on the local machine, with a server and one process per worker.

``python -m fedtrees.benchmarks.perf.xgboost_federated server|worker ...`` is one of these
processes.
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
    """Return the median wall-clock seconds of federated training, binning included.

    The partition is horizontal, nothing is encrypted, and each worker has one thread. The time of a
    run is that of its slowest worker, from the first matrix to the last tree.

    Parameters
    ----------
    parts : sequence of Table
        Rows of each worker.
    work : Work
        Parameters of boosting.
    repeats : int
        Number of runs.

    Raises
    ------
    RuntimeError
        If the server or a worker fails. The message contains its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        for rank, part in enumerate(parts):
            np.savez(Path(folder) / f"{rank}.npz", X=part.X, y=part.y)
        times = [_run(folder, len(parts), work) for _ in range(repeats)]
    return sorted(times)[repeats // 2]


def _run(folder: str, workers: int, work: Work) -> float:
    """Return the wall-clock seconds of one run."""
    port = str(_free_port())
    server = _start("server", port, str(workers))
    try:
        started = [
            _start("worker", port, str(workers), str(rank), folder, json.dumps(vars(work)))
            for rank in range(workers)
        ]
        outputs = [process.communicate(timeout=_LIMIT) for process in started]
        for process, (_, errors) in zip(started, outputs, strict=True):
            if process.returncode:
                raise RuntimeError(f"a worker of XGBoost's federated plugin failed:\n{errors}")
        return max(float(output.splitlines()[-1]) for output, _ in outputs)
    finally:
        server.kill()
        server.wait()


def _start(*arguments: str) -> subprocess.Popen[str]:
    """Start one process of this module."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", _MODULE, *arguments]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def _free_port() -> int:
    """Return a free port of the local machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int, workers: int) -> None:
    """Run the server of the plugin."""
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=workers, port=port, timeout=_LIMIT)


def _work(port: int, workers: int, rank: int, folder: str, work: Work) -> float:
    """Train as one worker and return its wall-clock seconds."""
    import xgboost

    with np.load(Path(folder) / f"{rank}.npz") as rows:
        X, y = rows["X"], rows["y"]
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=f"localhost:{port}",
        federated_world_size=workers,
        federated_rank=rank,
    ):
        # The broadcast ends when all workers have started, so that the time does not include the
        # start.
        xgboost.collective.broadcast("ready", 0)
        started = time.perf_counter()
        data = xgboost.QuantileDMatrix(X, y, max_bin=work.bins, nthread=1)
        xgboost.train(work.xgboost, data, work.trees)
        return time.perf_counter() - started


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "server":
        _serve(int(arguments[0]), int(arguments[1]))
    else:
        port, workers, rank = map(int, arguments[:3])
        print(_work(port, workers, rank, arguments[3], Work(**json.loads(arguments[4]))))
