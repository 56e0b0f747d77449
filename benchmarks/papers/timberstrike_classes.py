"""`python -m fedtrees.benchmarks.papers.timberstrike_classes --data-dir FOLDER`: several classes.

Nothing was published to compare with: Appendix E of Di Gennaro et al. (2025) was not evaluated.
"""

from __future__ import annotations

from typing import Any

from fedtrees.benchmarks.papers.study import Table, attacked, run_study

_COLUMNS = (
    "table", "depth", "protocol", "defense", "attack", "RA", "blind", "advantage", "exact rows",
    "blind exact", "leaf counts", "CPU s",
)  # fmt: skip


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, depth, protocol, defense and attack: means over seeds."""
    return [
        [
            cell.data,
            cell.depth,
            cell.protocol,
            cell.defense,
            f"`{cell.attack}`",
            *cell.ra,
            cell.share("exact_rows"),
            cell.share("exact_rows", "blind"),
            cell.share("leaf_counts_exact", digits=0),
            cell.seconds,
        ]
        for cell in attacked(rows)
    ]


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    title = "Percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, attack_table(rows))]


if __name__ == "__main__":
    run_study("timberstrike_classes", tables)
