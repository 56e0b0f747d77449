"""Measure complete federations with all messages, and XGBoost's federated plugin."""

import time
from collections.abc import Iterator

import numpy as np

from fedtrees.benchmarks.perf import rivals
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, medians, ratio
from fedtrees.benchmarks.perf.rivals import Call, Work, schema_of, table
from fedtrees.benchmarks.perf.xgboost_federated import federated_xgboost
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.data.layout import columns_of
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import train

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


def lines(clients: int, target: float | None = None, size: Size = FULL) -> Iterator[Line]:
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
        yield from lines(clients, target, size)


def by_clients(size: Size = FULL) -> Iterator[Line]:
    """Compare federations with 1 to 50 clients."""
    for clients in size.cases((1, 2, 5, 10, 20, 50)):
        yield from lines(clients, size=size)


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
