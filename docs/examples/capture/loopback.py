"""Train XGBoost or LightGBM with several workers on this machine, and capture the messages.

python docs/examples/capture/loopback.py --over rabit --out ring
fedtrees capture attack ring/run.capture --as worker-0 --truth ring/worker-1.csv ...
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOST, LIMIT = "127.0.0.1", 120  # seconds
FORK = multiprocessing.get_context("fork")  # libraries are imported once


def table(rows: int, columns: int, seed: int, digits: int) -> NDArray[np.float32]:
    """Return synthetic rows, float32, (rows, columns + 1). The last column is the label, 0 or 1."""
    rng = np.random.default_rng(seed)
    X = rng.lognormal(3.0, 0.5, (rows, columns)).round(digits)
    y = X[:, 0] + rng.normal(0, 5, rows) > 20
    return np.column_stack([X, y]).astype(np.float32)


def parts_of(rows: NDArray[np.float32], workers: int, out: Path) -> list[NDArray[np.float32]]:
    """Divide the rows among the workers, and write one file per worker."""
    parts = np.array_split(rows, workers)
    names = ",".join([*(f"f{k}" for k in range(rows.shape[1] - 1)), "label"])
    for k, part in enumerate(parts):
        np.savetxt(out / f"worker-{k}.csv", part, "%.9g", ",", header=names, comments="")
    return parts


def columns_of(rows: NDArray[np.float32], workers: int, out: Path) -> list[NDArray[np.float32]]:
    """Divide the columns among the workers, and write a file per worker, the first with labels."""
    parts = np.array_split(rows[:, :-1], workers, axis=1)
    for k, part in enumerate(parts):
        local_columns = part if k else np.column_stack([part, rows[:, -1]])
        names = [*(f"f{c}" for c in range(part.shape[1])), "label"][: local_columns.shape[1]]
        np.savetxt(
            out / f"worker-{k}.csv", local_columns, "%.9g", ",", header=",".join(names), comments=""
        )
    return [np.column_stack([part, rows[:, -1]]) for part in parts]


def work(
    how: dict[str, Any], rows: NDArray[np.float32], params: dict[str, Any], trees: int
) -> None:
    """Train XGBoost as one worker. In a vertical training, only the first worker has labels."""
    import xgboost as xgb

    vertical, watched = params.pop("vertical", False), params.pop("watched", False)
    with xgb.collective.CommunicatorContext(**how):
        y = None if vertical and xgb.collective.get_rank() else rows[:, -1]
        data = xgb.DMatrix(rows[:, :-1], y, nthread=1, data_split_mode=int(vertical))
        half = xgb.DMatrix(rows[::2, :-1], rows[::2, -1], nthread=1) if watched else data
        watch = {"evals": [(data, "all"), (half, "half")] * watched, "verbose_eval": False}
        xgb.train({"nthread": 1, "tree_method": "hist", **params}, data, trees, **watch)


def machine(
    how: dict[str, Any], rows: NDArray[np.float32], params: dict[str, Any], trees: int
) -> None:
    """Train LightGBM as one machine, and save the trees if `how` contains a path for them."""
    import lightgbm as lgb

    params, model = {"num_threads": 1, "verbosity": -1, **params}, how.pop("model", None)
    data = lgb.Dataset(rows[:, :-1].astype(np.float64), rows[:, -1])
    booster = lgb.train(
        {"tree_learner": "data", "pre_partition": True, **params, **how}, data, trees
    )
    if model:
        booster.save_model(model)


def serve(workers: int, port: int) -> None:
    """Run the federated server of XGBoost."""
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=workers, port=port, timeout=LIMIT)


#: Returns how a worker connects, given its rank and the output of `fedtrees capture record`.
Connect = Callable[[int, dict[str, Any]], dict[str, Any]]


@contextmanager
def rabit(workers: int) -> Iterator[tuple[list[int], Connect]]:
    """Start a tracker, and yield its port and a function that returns how a worker connects."""
    from xgboost.tracker import RabitTracker

    tracker = RabitTracker(n_workers=workers, host_ip=HOST, sortby="task", timeout=LIMIT)
    tracker.start()
    how = {"dmlc_communicator": "rabit", "dmlc_tracker_uri": HOST}
    try:
        yield (
            [int(tracker.worker_args()["dmlc_tracker_port"])],
            lambda rank, connection: {
                **how, "dmlc_tracker_port": connection["listening"], "dmlc_task_id": str(rank)
            },
        )  # fmt: skip
    finally:
        tracker.free()


@contextmanager
def server(workers: int) -> Iterator[tuple[list[int], Connect]]:
    """Start a federated server, and yield the same as `rabit`."""
    import xgboost as xgboost  # before the fork

    (to,) = free_ports(1)
    process = FORK.Process(target=serve, args=(workers, to))
    process.start()
    how = {"dmlc_communicator": "federated", "federated_world_size": workers}
    try:
        for _ in range(10 * LIMIT):
            with suppress(OSError), socket.create_connection((HOST, to)):
                break
            time.sleep(0.1)
        yield (
            [to],
            lambda rank, connection: {
                **how, "federated_server_address": f"{HOST}:{connection['listening']}",
                "federated_rank": rank,
            },
        )  # fmt: skip
    finally:
        process.kill()
        process.join()


@contextmanager
def machines(workers: int) -> Iterator[tuple[list[int], Connect]]:
    """Choose the ports of LightGBM's machines, and yield the same as `rabit`."""
    import lightgbm as lightgbm  # before the fork

    ports = free_ports(workers)
    yield (
        ports,
        lambda rank, connection: {
            "machines": connection["machines"][rank], "num_machines": workers,
            "local_listen_port": ports[rank], "time_out": 2,
        },
    )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Return ports that are not in use."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in free]


#: By the name of the transport in `fedtrees capture record`.
TRANSPORTS = {"rabit": rabit, "xgboost": server, "lightgbm": machines}
WORK = {"rabit": work, "xgboost": work, "lightgbm": machine}


def train(
    parts: list[NDArray[np.float32]], over: str, params: dict[str, Any], trees: int, capture: Path
) -> None:
    """Train with one worker per part, connected through `fedtrees capture record`.

    Raises `RuntimeError` if a worker fails.
    """
    fedtrees = [sys.executable, "-m", "fedtrees.cli.main", "capture", over, "--format", "json"]
    with TRANSPORTS[over](len(parts)) as (to, connect):
        where = ("--machines" if over == "lightgbm" else "--to", ",".join(map(str, to)))
        command = [*fedtrees, *where, "-o", str(capture)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as door:
            assert door.stdout is not None
            connection = json.loads(door.stdout.readline())
            also = {"model": str(capture.with_name("model.txt"))} if over == "lightgbm" else {}
            workers = [
                FORK.Process(
                    target=WORK[over],
                    args=({**connect(rank, connection), **also}, rows, params, trees),
                )
                for rank, rows in enumerate(parts)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(LIMIT)
            failed = [worker.name for worker in workers if worker.exitcode != 0]
            for worker in workers:
                worker.kill()
            if failed:
                door.kill()
                raise RuntimeError(f"{', '.join(failed)} did not finish within {LIMIT} seconds")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for capture and rows")
    parser.add_argument("--over", choices=TRANSPORTS, default="rabit")
    parser.add_argument("--csv", type=Path, help="a table of numbers, the label 0 or 1 last")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=210)
    parser.add_argument("--columns", type=int, default=3)
    parser.add_argument("--digits", type=int, default=1)
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--params", type=json.loads, default={"objective": "binary:logistic"})
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.csv:
        rows = np.loadtxt(arguments.csv, np.float32, delimiter=",", skiprows=1)
    else:
        rows = table(arguments.rows, arguments.columns, arguments.seed, arguments.digits)
    deal = columns_of if arguments.params.get("vertical") else parts_of
    parts = deal(rows, arguments.workers, arguments.out)
    train(parts, arguments.over, arguments.params, arguments.trees, arguments.out / "run.capture")


if __name__ == "__main__":
    main()
