"""Measure federations with all messages, XGBoost's federated plugin, and attacks on labels."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedtrees.attacks.labels.attack import ID2Graph, LabelMixture, LeafView, leaf_view
from fedtrees.attacks.labels.communities import contract
from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, call_command, medians, ratio
from fedtrees.benchmarks.perf.rivals import Call, Work, schema_of, table
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.data.partition import columns_of
from fedtrees.messages.vertical import visible_leaves
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest

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
    port = _free_port()
    server = _start(_serve, port, workers)
    try:
        started = [
            _start(_work, port, workers, rank, folder, json.dumps(vars(work)))
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


def _start(function: Callable[..., object], *arguments: str | int) -> subprocess.Popen[str]:
    """Start a process that calls a function of this module."""
    pipe = subprocess.PIPE
    return subprocess.Popen(call_command(function, *arguments), stdout=pipe, stderr=pipe, text=True)


def _free_port() -> int:
    """Return a free port of the local machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int, workers: int) -> None:
    """Run the server of the plugin."""
    from xgboost.federated import run_federated_server

    run_federated_server(n_workers=workers, port=port, timeout=_LIMIT)


def _work(port: int, workers: int, rank: int, folder: str, parameters: str) -> float:
    """Train as one worker and return its wall-clock seconds."""
    import xgboost

    work = Work(**json.loads(parameters))
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


ROWS = 50_000
WORK = Work(trees=10)
PROTOCOLS = ("fedtree-hist", "nvflare-hist")


def parts_of(data: Table, clients: int) -> list[Table]:
    """Distribute consecutive rows to the clients."""
    return [data.take(rows) for rows in np.array_split(np.arange(len(data)), clients)]


def two_parties(protocol: Protocol, data: Table) -> dict[str, LocalData]:
    """Distribute half of the columns to each of two parties, and the labels to the first."""
    parts = np.split(np.arange(data.X.shape[1]), [data.X.shape[1] // 2])
    names = zip(protocol.holder_names(2), parts, strict=True)
    return {name: columns_of(data, columns, not columns[0]) for name, columns in names}


def federation(name: str, data: Table, clients: int) -> Call:
    """Return a call that trains in process, messages and transcript included.

    Parameters
    ----------
    name : str
        Protocol.
    data : Table
        Rows of all clients.
    clients : int
        Number of clients.
    """
    spec = Spec(name, {"trees": WORK.trees, "max_depth": WORK.depth, "max_bin": WORK.bins})
    protocol = register.make("protocol", spec)
    local_data = over_clients(parts_of(data, clients))
    return lambda: train(protocol, local_data, schema_of(data))


def compare_clients(clients: int, target: float | None = None, size: Size = FULL) -> Iterator[Line]:
    """Compare with central XGBoost in CPU seconds, binning included, with 10 trees of depth 6.

    Parameters
    ----------
    clients : int
        Number of clients.
    target : float or None
        Upper limit of the ratio.
    size : Size
        Scale of the measurement.
    """
    data = table(size.rows(ROWS))
    calls = {name: federation(name, data, clients) for name in PROTOCOLS}
    seconds = medians({**calls, "central": rivals.xgboost(data, WORK)}, size.repeats)
    for name in PROTOCOLS:
        what = f"{name}, {clients} clients"
        yield ratio(what, seconds[name], seconds["central"], "XGBoost central", target)


def in_process(size: Size = FULL) -> Iterator[Line]:
    """Compare federations of 2 and 10 clients."""
    for clients, target in size.cases(((2, 1.5), (10, 2.5))):
        yield from compare_clients(clients, target, size)


def by_clients(size: Size = FULL) -> Iterator[Line]:
    """Compare federations with 1 to 50 clients."""
    for clients in size.cases((1, 2, 5, 10, 20, 50)):
        yield from compare_clients(clients, size=size)


def beside_plugin(size: Size = FULL) -> Iterator[Line]:
    """Compare with XGBoost's federated plugin on the local machine, in wall-clock seconds.

    The plugin's workers run on both cores at once, ours in turn in one process. Neither time
    includes starting processes, loading and distributing rows.
    """
    data = table(size.rows(ROWS))
    for clients in size.cases((2, 10)):
        plugin_seconds = federated_xgboost(parts_of(data, clients), WORK, size.repeats)
        calls = {name: federation(name, data, clients) for name in PROTOCOLS}
        seconds = medians(calls, size.repeats, clock=time.perf_counter)
        for name in PROTOCOLS:
            what = f"{name}, {clients} clients, wall"
            yield ratio(what, seconds[name], plugin_seconds, "XGBoost's plugin", 1.0)


VERTICAL_ROWS, COLUMNS = 165_000, 18
VERTICAL_TARGET = 2.0
#: Parameters with which every tree uses every column, as in the central engines.
CASES = {
    "secureboost": ({"colsample_bytree": 1.0}, grow_forest),
    "vertical-forest": ({"tree_features": None}, grow_random_forest),
}


def vertical(size: Size = FULL) -> Iterator[Line]:
    """Compare two parties with the central engine, binning included, and replay a view."""
    data = table(size.rows(VERTICAL_ROWS), COLUMNS)
    for name, (parameters, grow) in CASES.items():
        protocol = register.make("protocol", Spec(name, parameters))
        local_data = two_parties(protocol, data)
        run = partial(train, protocol, local_data, schema_of(data))
        cuts = partial(quantile_cuts, data.X, protocol.max_bin)

        def central(grow=grow, cuts=cuts, protocol=protocol):
            return grow(data.X, data.y, cuts(), protocol)

        seconds = medians({"columns": run, "central": central}, size.repeats)
        what = f"{name}, {len(data):,} x {COLUMNS}, 2 parties, 5 trees"
        yield ratio(what, seconds["columns"], seconds["central"], "central engine", VERTICAL_TARGET)
        view = view_of(run(), ("passive-1",), local_data)
        replayed = medians({"view": partial(visible_leaves, view)}, size.repeats)["view"]
        yield Line(f"{name}, its visible leaves replayed", f"{replayed:.3g} s")


CLASSES = 5
#: Upper limit in CPU seconds of contraction, Louvain and K-means together, by number of rows.
LABEL_TARGETS = {165_000: 3.0, 1_000_000: 15.0}
LABEL_PROTOCOLS = {"secureboost": {"multi_output": True}, "vertical-forest": {}}


def label_attacks(size: Size = FULL) -> Iterator[Line]:
    """Attack trees of two parties with five classes, and `label-mixture` at the smaller size."""
    for rows, target in size.cases(list(LABEL_TARGETS.items())):
        n = size.rows(rows)
        for name, parameters in LABEL_PROTOCOLS.items():
            seen = _seen_leaves(n, Spec(name, parameters))
            spent = medians({"graph": partial(_communities, seen)}, size.repeats)["graph"]
            what = f"{name}, {n:,} x {COLUMNS}, {len(seen.twins.weight):,} groups"
            text = f"contraction, Louvain from {len(seen.eta)} trees and K-means: {what}"
            yield Line(text, f"{spent:.2g} s", "", f"<= {target:g} s", spent <= target)
            if target == min(LABEL_TARGETS.values()):
                run = partial(_mixture, seen)
                spent = medians({"mixture": run}, min(size.repeats, 1))["mixture"]
                yield Line(f"`label-mixture`: {what}", f"{spent:.2g} s")


def _seen_leaves(n: int, protocol: Spec) -> LeafView:
    """Return the leaves that the passive party sees of the first trained model."""
    data, protocol_object = table(n, COLUMNS, CLASSES), register.make("protocol", protocol)
    local_data = two_parties(protocol_object, data)
    view = view_of(
        train(protocol_object, local_data, schema_of(data, CLASSES)), ("passive-1",), local_data
    )
    seen = leaf_view(view, "drop", 0.6)
    assert seen is not None
    return seen


def _communities(seen: LeafView) -> None:
    """Cluster the rows by communities, including the contraction of equal rows."""
    contracted = replace(seen, twins=contract(seen.leaves, seen.eta))
    ID2Graph().clusters(contracted, np.random.default_rng(0))


def _mixture(seen: LeafView) -> None:
    """Cluster the rows by a mixture model."""
    LabelMixture().clusters(seen, np.random.default_rng(0))
