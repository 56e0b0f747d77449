"""`python -m fedtrees.benchmarks.papers.timberstrike --data-dir FOLDER`: run and print tables.

The published figures are those of Di Gennaro et al. (2025), Tables 4 and 6, "RA (full)": scored
over the union of all rows, own ones included. Ours are over victims only, which is harder; the
blind line is scored the same way as ours.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import Table, blind_table, percent, run_study

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


def _spread(
    metric: dict[str, Any], name: str, column: str, signed: bool = False, digits: int = 1
) -> str:
    values = metric[name][column] if name in metric else ()
    return percent(values, signed=signed, digits=digits)


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = "Percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, attack_table(rows)), blind_table(rows)]


if __name__ == "__main__":
    run_study("timberstrike", tables)
