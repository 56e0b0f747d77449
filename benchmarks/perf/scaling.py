"""Measure training by the number of rows and of clients, in CPU seconds and peak memory.

``python -m fedtrees.benchmarks.perf --draw-clients FILE`` draws the figure of the documentation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedtrees.benchmarks.perf.measure import FULL, Line, Size, high_water_mib, in_fresh_process
from fedtrees.benchmarks.perf.rivals import schema_of, table
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.protocols.training import train

PROTOCOLS = ("fedtree-hist", "nvflare-hist")
ROWS = (100_000, 1_000_000)
CLIENTS = (3, 10, 30, 100)
TREES, DEPTH = 10, 4  # as in the measurements by the number of rows


@dataclass(frozen=True)
class TrainingCost:
    """Cost of one training of all parties in one process, with its transcript.

    Attributes
    ----------
    protocol : str
        Protocol.
    rows, clients : int
        Rows of all clients together, and number of clients.
    cpu_seconds : float
        CPU seconds of the training.
    mib : float
        Peak memory of the process in MiB, including the table.
    """

    protocol: str
    rows: int
    clients: int
    cpu_seconds: float
    mib: float


def measure_training(protocol: str, rows: int, clients: int, trees: int) -> dict[str, float]:
    """Train on the synthetic table in this process, and return CPU seconds and peak memory."""
    spec = parse_grid(f"{protocol}[trees={trees},max_depth={DEPTH}]")[0]
    protocol_object = register.make("protocol", spec)
    warm_up = table(300)  # loads compiled code
    train(protocol_object, over_clients([warm_up]), schema_of(warm_up))
    data = table(rows)
    parts = [data.take(part) for part in np.array_split(np.arange(rows), clients)]
    local_data, schema = over_clients(parts), schema_of(data)
    started = time.process_time()
    training = train(protocol_object, local_data, schema)
    spent = time.process_time() - started
    del training  # it contains the transcript, which the peak includes
    return {"cpu_seconds": spent, "mib": high_water_mib()}


def training_costs(
    rows: Sequence[int] = ROWS, clients: Sequence[int] = CLIENTS, trees: int = TREES
) -> Iterator[TrainingCost]:
    """Train once for every protocol, number of rows and number of clients, each in a new process.

    Parameters
    ----------
    rows : sequence of int
        Numbers of rows.
    clients : sequence of int
        Numbers of clients.
    trees : int
        Number of trees.
    """
    for protocol, n_rows, n_clients in product(PROTOCOLS, rows, clients):
        cost = in_fresh_process(measure_training, protocol, n_rows, n_clients, trees)
        yield TrainingCost(protocol, n_rows, n_clients, cost["cpu_seconds"], cost["mib"])


def by_clients_and_rows(size: Size = FULL) -> Iterator[Line]:
    """Yield the cost of training for every number of rows and clients."""
    rows = [size.rows(n) for n in size.cases(ROWS)]
    for cost in training_costs(rows, size.cases(CLIENTS), size.trees(TREES)):
        yield line_of(cost)


def line_of(cost: TrainingCost) -> Line:
    """Return the line of one cost."""
    what = f"{cost.protocol}, {cost.rows:,} rows, {cost.clients} clients"
    return Line(what, f"{cost.cpu_seconds:.2f} s, {cost.mib:.0f} MiB")


def draw_clients(path: str) -> None:
    """Measure training by the number of clients, print the measurements and draw the figure."""
    costs = []
    for cost in training_costs():
        costs.append(cost)
        line = line_of(cost)
        print(f"{line.what}: {line.measured}", flush=True)
    draw(costs, path)


def draw(costs: Sequence[TrainingCost], path: str) -> None:
    """Plot CPU seconds and memory over the number of clients, a line per protocol and rows.

    Parameters
    ----------
    costs : sequence of TrainingCost
        Costs of training.
    path : str
        File of the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    panels = figure.subplots(1, 2)
    lines = sorted({(cost.protocol, cost.rows) for cost in costs})
    for axes, title, field in zip(
        panels, ("CPU seconds", "MiB, process"), ("cpu_seconds", "mib"), strict=True
    ):
        for protocol, rows in lines:
            selected = [c for c in costs if (c.protocol, c.rows) == (protocol, rows)]
            axes.plot(
                [c.clients for c in selected],
                [getattr(c, field) for c in selected],
                "--" if protocol == PROTOCOLS[1] else "-",
                color="#0072b2" if rows == min(c.rows for c in costs) else "#d55e00",
                marker="o", ms=3, lw=1.2, label=f"{protocol}, {rows:,} rows",
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=title)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
