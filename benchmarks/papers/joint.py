"""`python -m fedtrees.benchmarks.papers.joint --data-dir FOLDER`: run the study, print tables.

Nothing was published to compare with: the lines beside the attack are TimberStrike's sequential
reconstruction and the best blind guess, both merged as the attack's own samples are.
"""

from __future__ import annotations

from typing import Any

from fedtrees.benchmarks.papers.study import Table, attacked, blind_table, percent, run_study

_COLUMNS = (
    "table", "depth", "view", "attack", "RA", "over blind", "advantage", "exact rows", "CPU s",
)  # fmt: skip
_VIEWS = {"none": "statistics", "split-only": "values"}


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, depth, view and attack: percent, means and spreads over seeds."""
    lines = []
    for cell in attacked(rows):
        ra = cell.rows["ra"]
        lines.append(
            [
                cell.data,
                cell.depth,
                _VIEWS[cell.defense],
                f"`{cell.attack}`",
                cell.share("ra"),
                percent(ra["value"] - ra["blind"], signed=True),
                cell.share("ra", "advantage", signed=True),
                cell.share("exact_rows"),
                cell.seconds,
            ]
        )
    return lines


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = "Percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, attack_table(rows)), blind_table(rows)]


if __name__ == "__main__":
    run_study("joint", tables)
