"""Measure how the cost of a bench grows with rows.

``python -m fedtrees.benchmarks.perf.bench_rows PLOT`` also draws the figure.
"""

import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from fedtrees.benchmarks.perf import attack_rows
from fedtrees.benchmarks.perf.measure import FULL, Line, Size, children_seconds, command
from fedtrees.benchmarks.perf.rivals import table

ROWS = attack_rows.ROWS
COLUMNS = attack_rows.COLUMNS
COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
# The first grid of the default suite without a defense, with one seed and one process.
RUN = ["-p", "fedtree-hist[trees=10,max_depth=4]", "-d", "none", "--seeds", "1", "-j", "1"]
LESS = ["-p", "fedtree-hist[trees=2]", "-a", "sketch-reading", "--threat", "server"]


@dataclass(frozen=True)
class Cost:
    """Cost of one run. `mib` is the peak of its largest process in MiB."""

    rows: int
    cpu_seconds: float
    mib: float


def measure_bench(rows: int, options: Sequence[str] = RUN) -> Cost:
    """Run the bench in a separate process, on a file with the given number of rows."""
    data = table(rows, COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        file, names = Path(folder) / "table.csv", [*(f"x{k}" for k in range(COLUMNS)), "y"]
        values = np.column_stack([data.X, data.y])
        np.savetxt(file, values, "%.6g", ",", header=",".join(names), comments="")
        before, out = children_seconds(), str(Path(folder) / "run")
        command("bench", *options, "--csv", str(file), "--target", "y", "--out", out)
    # Linux reports the peak of the largest child in KiB.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Cost(rows, children_seconds() - before, mib)


def lines(size: Size = FULL) -> Iterator[Line]:
    """Yield the cost of a bench on tables of `ROWS`."""
    options = RUN if size.scale >= 1 else [*RUN, *LESS]
    for rows in size.cases(ROWS):
        yield _line(measure_bench(size.rows(rows), options))


def _line(cost: Cost) -> Line:
    """Return the line of one cost."""
    what = f"bench of {cost.rows:,} x {COLUMNS}, no defense, one seed"
    return Line(what, f"{cost.cpu_seconds:.0f} s, {cost.mib:.0f} MiB")


def draw(costs: Sequence[attack_rows.Cost], bench_costs: Sequence[Cost], path: str) -> None:
    """Plot CPU seconds and memory over rows: training, every attack, and a complete bench.

    Parameters
    ----------
    costs : sequence of attack_rows.Cost
        Costs of training and attacks.
    bench_costs : sequence of Cost
        Costs of complete benches.
    path : str
        File of the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    names = list(dict.fromkeys(c.what for c in costs))
    for axes, title, field in zip(
        panels, ("CPU seconds", "MiB, process"), ("cpu_seconds", "mib"), strict=True
    ):
        for (name, color), (protocol, style) in product(
            zip(names, COLORS, strict=False), zip(attack_rows.ADVERSARIES, ("-", "--"), strict=True)
        ):
            selected = [c for c in costs if (c.what, c.protocol) == (name, protocol)]
            values = [getattr(c, field) for c in selected]
            label = f"{name}, {protocol}"
            rows = [c.rows for c in selected]
            axes.plot(rows, values, style, marker="o", ms=3, lw=1.2, color=color, label=label)
        rows, values = [c.rows for c in bench_costs], [getattr(c, field) for c in bench_costs]
        label = "whole bench, fedtree-hist"
        axes.plot(rows, values, ":", marker="s", ms=3, color="#777777", label=label)
        axes.set(xscale="log", yscale="log", xlabel=f"rows of {COLUMNS} columns", ylabel=title)
        axes.spines[["top", "right"]].set_visible(False)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=6.5, frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    benches = []
    for step in ROWS:
        benches.append(measure_bench(step))
        print(_line(benches[-1]), flush=True)
    draw(list(attack_rows.costs()), benches, sys.argv[1])
