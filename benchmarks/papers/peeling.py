"""`python -m fedtrees.benchmarks.papers.peeling --data-dir FOLDER`: run and print the table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedtrees.bench.session import Bench, default_workers
from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.timberstrike import markdown
from fedtrees.report.rows import load_rows

_COLUMNS = (
    "table", "protocol", "parameters", "threat", "defense",
    "rows right", "blind", "returned wrong", "with owner", "AUC", "CPU s",
)  # fmt: skip


def table(rows: Any) -> list[list[str]]:
    """Return one line per table, protocol, threat and defense: means over seeds."""
    train = ["dataset", "protocol", "protocol_params", "defense_spec"]
    auc = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")].groupby(train)["value"]
    utility = {key: part.mean() for key, part in auc}
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for key, part in attacked.groupby([*train, "threat"], sort=False):
        data, protocol, params, defense, threat = key
        metric = {name: list(of["value"]) for name, of in part.groupby("metric")}
        blind = list(part[part["metric"] == "returned_right"]["blind"])
        spreads = [
            _percent(values)
            for values in (
                metric.get("returned_right"),
                blind,
                metric.get("returned_wrong"),
                metric.get("returned_owned"),
            )
        ]
        measure = f"{utility[key[:4]]:.3f}" if key[:4] in utility else "-"
        seconds = f"{mean(metric['cpu_seconds']):.1f}" if "cpu_seconds" in metric else "-"
        lines.append([data, protocol, params, threat, defense, *spreads, measure, seconds])
    return lines


def _percent(values: list[float] | None) -> str:
    known = [v for v in values or [] if v is not None and v == v]
    if not known:
        return "-"
    text = f"{100 * mean(known):.1f}"
    return f"{text} ± {100 * stdev(known):.1f}" if len(known) > 1 else text


def main() -> None:
    """Run what is missing of the study, then print its table."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.peeling")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", default="runs/peeling")
    parser.add_argument("-j", "--jobs", type=int, default=default_workers())
    options = parser.parse_args()
    folder = Path(options.out)
    bench = Bench(Suite.load("peeling"), folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    print("Percent, mean ± standard deviation over seeds.\n")
    print(markdown(_COLUMNS, table(load_rows(folder))))


if __name__ == "__main__":
    main()
