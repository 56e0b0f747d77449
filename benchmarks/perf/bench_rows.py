"""How the cost of a bench grows with rows: `python -m fedtrees.benchmarks.perf.bench_rows PLOT`."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtrees.benchmarks.perf.measure import FULL, Line, Size
from fedtrees.benchmarks.perf.rivals import table

ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS = 28
# The default suite's first grid without a defense, one seed, one process.
RUN = ["-p", "fedtree-hist[trees=10,max_depth=4]", "-d", "none", "--seeds", "1", "-j", "1"]
LESS = ["-p", "fedtree-hist[trees=2]", "-a", "sketch-reading", "--threat", "server"]


@dataclass(frozen=True)
class Cost:
    """What a run took: `mib` is the peak of its largest process."""

    rows: int
    cpu_seconds: float
    mib: float


def measured(rows: int, options: Sequence[str] = RUN) -> Cost:
    """Run the bench on a file of so many rows, in a process of its own."""
    data = table(rows, COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        file, names = Path(folder) / "table.csv", [*(f"x{k}" for k in range(COLUMNS)), "y"]
        values = np.column_stack([data.X, data.y])
        np.savetxt(file, values, "%.6g", ",", header=",".join(names), comments="")
        command = [sys.executable, "-m", "fedtrees.cli.main", "bench", *options]
        command += ["--csv", str(file), "--target", "y", "--out", str(Path(folder) / "run")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Cost(rows, spent, used.ru_maxrss / 1024)


def lines(size: Size = FULL) -> Iterator[Line]:
    """Bench ever larger tables."""
    options = RUN if size.scale >= 1 else [*RUN, *LESS]
    for rows in size.cases(ROWS):
        yield _line(measured(size.rows(rows), options))


def _line(cost: Cost) -> Line:
    what = f"bench of {cost.rows:,} x {COLUMNS}, no defense, one seed"
    return Line(what, f"{cost.cpu_seconds:.0f} s, {cost.mib:.0f} MiB")


def draw(costs: Sequence[Cost], path: str) -> None:
    """Plot CPU seconds and memory by rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 2.6), layout="constrained")
    for axes, name, of in zip(
        figure.subplots(1, 2), ("CPU seconds", "MiB, largest process"), ("cpu_seconds", "mib"),
        strict=True,
    ):  # fmt: skip
        axes.plot([c.rows for c in costs], [getattr(c, of) for c in costs], "o-", color="#0072b2")
        axes.set(xscale="log", yscale="log", xlabel=f"rows of {COLUMNS} columns", ylabel=name)
        for c in costs:
            text = f"{getattr(c, of):,.0f}"
            axes.annotate(text, (c.rows, getattr(c, of)), (0, 6), textcoords="offset points",
                          ha="center", fontsize=8)  # fmt: skip
        axes.margins(0.12, 0.2)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    found = []
    for step in ROWS:
        found.append(measured(step))
        print(_line(found[-1]), flush=True)
    draw(found, sys.argv[1])
