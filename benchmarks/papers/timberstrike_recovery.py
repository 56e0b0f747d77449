"""`python -m fedtrees.benchmarks.papers.timberstrike_recovery --data-dir FOLDER`: counts by depth.

Nothing was published to compare with: the blind line is the adversary's own rows, scaled.
"""

from __future__ import annotations

from typing import Any

from fedtrees.benchmarks.papers.study import Table, percent, run_study

_DEPTHS = tuple(range(3, 9))
_COLUMNS = ("table", "protocol", "threat", "defense", *(f"depth {d}" for d in _DEPTHS), "blind")


def recovery(rows: Any) -> list[list[str]]:
    """Return one line per table, protocol, threat and defense: leaves with exact counts."""
    exact = rows[(rows["stage"] == "attack") & (rows["metric"] == "leaf_counts_exact")]
    lines = []
    for key, part in exact.groupby(["dataset", "protocol", "threat", "defense_spec"], sort=False):
        cells = []
        for depth in _DEPTHS:
            at = part["protocol_params"].str.contains(f"max_depth={depth}")
            cells.append(percent(part[at]["value"], digits=0))
        lines.append([*key, *cells, percent(part["blind"], digits=0)])
    return lines


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = (
        "Leaves of the first tree with exact class counts, percent, mean ± deviation over seeds."
    )
    return [(title, _COLUMNS, recovery(rows))]


if __name__ == "__main__":
    run_study("timberstrike_recovery", tables)
