"""`python -m fedtrees.benchmarks.papers.timberstrike --data-dir FOLDER`: run and print tables.

The published figures are those of Di Gennaro et al. (2025), Tables 4 and 6, "RA (full)": scored
over the union of all rows, own ones included. Ours are over victims only, which is harder; the
blind line is scored the same way as ours.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedtrees.bench.session import Bench, default_workers
from fedtrees.bench.suite import Suite
from fedtrees.report.rows import load_rows

PUBLISHED = {
    ("pima", "fedtree-hist", 3): 71.74,
    ("pima", "fedtree-hist", 6): 73.27,
    ("pima", "nvflare-hist", 3): 65.81,
    ("pima", "nvflare-hist", 6): 67.87,
    ("stroke", "fedtree-hist", 3): 84.91,
    ("stroke", "fedtree-hist", 6): 87.63,
    ("stroke", "nvflare-hist", 3): 85.93,
    ("stroke", "nvflare-hist", 6): 83.66,
}
_COLUMNS = (
    "table", "depth", "protocol", "defense", "attack", "RA", "blind", "advantage",
    "exact rows", "leaf counts", "their rows", "CPU s", "published",
)  # fmt: skip


def _depth(params: str) -> int:
    pairs = dict(p.split("=") for p in params.split(","))
    return int(pairs["max_depth"])


def _base(params: str) -> str:
    return "base 0.5" if "base_score=0.5" in params else "base mean"


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, depth, protocol, defense and attack: means over seeds."""
    keys = ["dataset", "protocol", "protocol_params", "defense_spec", "attack_spec"]
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for (data, protocol, params, defense, attack), part in attacked.groupby(keys, sort=False):
        metric = dict(iter(part.groupby("metric")))
        depth = _depth(params)
        name = f"{protocol}, {_base(params)}" if protocol == "fedtree-hist" else protocol
        published = PUBLISHED.get((data, protocol, depth)) if defense == "none" else None
        lines.append(
            [
                data,
                str(depth),
                name,
                defense,
                attack,
                _spread(metric, "ra", "value"),
                _spread(metric, "ra", "blind"),
                _spread(metric, "ra", "advantage", signed=True),
                _spread(metric, "exact_rows", "value"),
                _spread(metric, "leaf_counts_exact", "value", digits=0),
                _spread(metric, "leaf_mass_exact", "value", digits=0),
                f"{mean(metric['cpu_seconds']['value']):.1f}" if "cpu_seconds" in metric else "-",
                f"{published:.1f}" if published else "",
            ]
        )
    return lines


def blind_table(rows: Any) -> list[list[str]]:
    """Return the RA of every blind guess per table: means over seeds."""
    blind = rows[(rows["stage"] == "blind") & (rows["metric"] == "ra")]
    lines = []
    for (data, guess), part in blind.groupby(["dataset", "attack_params"], sort=False):
        lines.append([data, guess or "**best**", _percent(list(part["value"]))])
    return lines


def _spread(
    metric: dict[str, Any], name: str, column: str, signed: bool = False, digits: int = 1
) -> str:
    if name not in metric:
        return "-"
    return _percent([v for v in metric[name][column] if v == v], signed, digits)


def _percent(values: list[float], signed: bool = False, digits: int = 1) -> str:
    if not values:
        return "-"
    sign = "+" if signed else ""
    text = f"{100 * mean(values):{sign}.{digits}f}"
    return f"{text} ± {100 * stdev(values):.{digits}f}" if len(values) > 1 else text


def markdown(header: tuple[str, ...], lines: list[list[str]]) -> str:
    """Write a Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Run what is missing of the study, then print its tables."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.timberstrike")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", default="runs/timberstrike")
    parser.add_argument("-j", "--jobs", type=int, default=default_workers())
    options = parser.parse_args()
    folder = Path(options.out)
    bench = Bench(Suite.load("timberstrike"), folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    rows = load_rows(folder)
    print("Percent, mean ± standard deviation over seeds.\n")
    print(markdown(_COLUMNS, attack_table(rows)))
    print("\nBlind guesses, RA:\n")
    print(markdown(("table", "guess", "RA"), blind_table(rows)))


if __name__ == "__main__":
    main()
