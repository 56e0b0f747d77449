"""`python -m fedtrees.benchmarks.papers.joint --data-dir FOLDER`: run the study, print tables.

Nothing was published to compare with: the lines beside the attack are TimberStrike's sequential
reconstruction and the best blind guess, both merged as the attack's own samples are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedtrees.bench.session import Bench, default_workers
from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.timberstrike import blind_table, markdown
from fedtrees.report.rows import load_rows

_COLUMNS = ("depth", "view", "attack", "RA", "over blind", "advantage", "exact rows", "CPU s")
_VIEWS = {"none": "statistics", "split-only": "values"}


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per depth, view and attack: percent, means and spreads over seeds."""
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for (params, defense, attack), part in attacked.groupby(
        ["protocol_params", "defense_spec", "attack_spec"], sort=False
    ):
        metric = dict(iter(part.groupby("metric")))
        depth = dict(p.split("=") for p in params.split(","))["max_depth"]
        gain = list(metric["ra"]["value"] - metric["ra"]["blind"])
        lines.append(
            [
                depth,
                _VIEWS[defense],
                f"`{attack}`",
                _percent(metric["ra"]["value"]),
                _percent(gain, "+"),
                _percent(metric["ra"]["advantage"], "+"),
                _percent(metric["exact_rows"]["value"]),
                f"{mean(metric['cpu_seconds']['value']):.1f}",
            ]
        )
    return lines


def _percent(values: Any, sign: str = "") -> str:
    known = [v for v in values if v == v]
    if not known:
        return "-"
    spread = f" ± {100 * stdev(known):.1f}" if len(known) > 1 else ""
    return f"{100 * mean(known):{sign}.1f}{spread}"


def main() -> None:
    """Run what is missing of the study, then print its tables."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.papers.joint")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", default="runs/joint")
    parser.add_argument("-j", "--jobs", type=int, default=default_workers())
    options = parser.parse_args()
    folder = Path(options.out)
    bench = Bench(Suite.load("joint"), folder, options.jobs, options.data_dir)
    bench.open(resume=folder.exists())
    bench.run(lambda status, label: print(f"{status}: {label}", file=sys.stderr, flush=True))
    rows = load_rows(folder)
    print("Percent, mean ± standard deviation over seeds.\n")
    print(markdown(_COLUMNS, attack_table(rows)))
    print("\nBlind guesses, RA:\n")
    print(markdown(("table", "guess", "RA"), blind_table(rows)))


if __name__ == "__main__":
    main()
