"""`python -m fedtrees.benchmarks.papers.timberstrike_classes --data-dir FOLDER`: several classes.

Nothing was published to compare with: Appendix E of Di Gennaro et al. (2025) was not evaluated.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import Table, percent, run_study

_COLUMNS = (
    "table", "depth", "protocol", "defense", "attack", "RA", "blind", "advantage", "exact rows",
    "blind exact", "leaf counts", "CPU s",
)  # fmt: skip


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, depth, protocol, defense and attack: means over seeds."""
    keys = ["dataset", "protocol", "protocol_params", "defense_spec", "attack_spec"]
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for (data, protocol, params, defense, attack), part in attacked.groupby(keys, sort=False):
        metric = dict(iter(part.groupby("metric")))
        lines.append(
            [
                data,
                dict(p.split("=") for p in params.split(","))["max_depth"],
                protocol,
                defense,
                attack,
                percent(metric["ra"]["value"]),
                percent(metric["ra"]["blind"]),
                percent(metric["ra"]["advantage"], signed=True),
                percent(metric["exact_rows"]["value"]),
                percent(metric["exact_rows"]["blind"]),
                percent(metric["leaf_counts_exact"]["value"], digits=0),
                f"{mean(metric['cpu_seconds']['value']):.1f}",
            ]
        )
    return lines


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = "Percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, attack_table(rows))]


if __name__ == "__main__":
    run_study("timberstrike_classes", tables)
