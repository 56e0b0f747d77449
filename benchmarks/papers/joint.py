"""`python -m fedtrees.benchmarks.papers.joint --data-dir FOLDER`: run the study, print tables.

Nothing was published to compare with: the lines beside the attack are TimberStrike's sequential
reconstruction and the best blind guess, both merged as the attack's own samples are.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import Table, blind_table, percent, run_study

_COLUMNS = (
    "table", "depth", "view", "attack", "RA", "over blind", "advantage", "exact rows", "CPU s",
)  # fmt: skip
_VIEWS = {"none": "statistics", "split-only": "values"}


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, depth, view and attack: percent, means and spreads over seeds."""
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for (data, params, defense, attack), part in attacked.groupby(
        ["dataset", "protocol_params", "defense_spec", "attack_spec"], sort=False
    ):
        metric = dict(iter(part.groupby("metric")))
        depth = dict(p.split("=") for p in params.split(","))["max_depth"]
        gain = metric["ra"]["value"] - metric["ra"]["blind"]
        lines.append(
            [
                data,
                depth,
                _VIEWS[defense],
                f"`{attack}`",
                percent(metric["ra"]["value"]),
                percent(gain, signed=True),
                percent(metric["ra"]["advantage"], signed=True),
                percent(metric["exact_rows"]["value"]),
                f"{mean(metric['cpu_seconds']['value']):.1f}",
            ]
        )
    return lines


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = "Percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, attack_table(rows)), blind_table(rows)]


if __name__ == "__main__":
    run_study("joint", tables)
