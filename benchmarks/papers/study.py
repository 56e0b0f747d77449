"""What all studies do: run what is missing of a bundled suite, then print its tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedtrees.bench.session import Bench, default_workers
from fedtrees.bench.suite import Suite
from fedtrees.report.rows import load_rows

Table = tuple[str, Sequence[str], list[list[str]]]  # title, header, lines


def run_study(name: str, tables: Callable[[Any], Iterable[Table]]) -> Path:
    """Run the study of that name as a command, print the tables made of its rows; return where."""
    parser = argparse.ArgumentParser(prog=f"python -m fedtrees.benchmarks.papers.{name}")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", default=f"runs/{name}")
    parser.add_argument("-j", "--jobs", type=int, default=default_workers())
    options = parser.parse_args()
    folder = Path(options.out)
    bench = Bench(Suite.load(name), folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    for title, header, lines in tables(load_rows(folder)):
        print(f"{title}\n\n{markdown(header, lines)}\n")
    return folder


def depth_of(parameters: str) -> str:
    """Return the deepest a tree may be, from a protocol's parameters as written in rows."""
    return dict(p.split("=") for p in parameters.split(","))["max_depth"]


@dataclass(frozen=True)
class Attacked:
    """One attack on one protocol under one defense, over seeds."""

    data: str
    protocol: str
    parameters: str
    defense: str
    attack: str
    rows: dict[str, Any]  # by metric

    @property
    def depth(self) -> str:
        """The deepest a tree may be."""
        return depth_of(self.parameters)

    @property
    def ra(self) -> list[str]:
        """Reconstruction accuracy, that of the best blind guess, and the advantage."""
        return [
            self.share("ra"),
            self.share("ra", "blind"),
            self.share("ra", "advantage", signed=True),
        ]

    @property
    def seconds(self) -> str:
        """CPU seconds of the attack."""
        return (
            f"{mean(self.rows['cpu_seconds']['value']):.1f}" if "cpu_seconds" in self.rows else "-"
        )

    def share(
        self, metric: str, column: str = "value", *, signed: bool = False, digits: int = 1
    ) -> str:
        """Return a metric in percent: its value, its blind line or its advantage."""
        values = self.rows[metric][column] if metric in self.rows else ()
        return percent(values, signed=signed, digits=digits)


def attacked(rows: Any) -> Iterator[Attacked]:
    """Yield what was attacked, in the order of the suite."""
    keys = ["dataset", "protocol", "protocol_params", "defense_spec", "attack_spec"]
    for key, part in rows[rows["stage"] == "attack"].groupby(keys, sort=False):
        yield Attacked(*key, dict(iter(part.groupby("metric"))))


def blind_table(rows: Any) -> Table:
    """Return the RA of every blind guess per table: means over seeds."""
    blind = rows[(rows["stage"] == "blind") & (rows["metric"] == "ra")]
    lines = [
        [data, guess or "**best**", percent(part["value"])]
        for (data, guess), part in blind.groupby(["dataset", "attack_params"], sort=False)
    ]
    return "Blind guesses, RA:", ("table", "guess", "RA"), lines


def percent(values: Iterable[float], *, signed: bool = False, digits: int = 1) -> str:
    """Write shares as a mean in percent, with the standard deviation where there are several."""
    known = [v for v in values if v == v]
    if not known:
        return "-"
    text = f"{100 * mean(known):{'+' if signed else ''}.{digits}f}"
    return f"{text} ± {100 * stdev(known):.{digits}f}" if len(known) > 1 else text


def markdown(header: Sequence[str], lines: list[list[str]]) -> str:
    """Write a Markdown table."""
    rows = [list(header), ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
