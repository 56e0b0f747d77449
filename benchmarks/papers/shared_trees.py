"""`python -m fedtrees.benchmarks.papers.shared_trees --data-dir FOLDER`: what defenses hide there.

Nothing was published to compare with.
"""

from __future__ import annotations

from typing import Any

from fedtrees.benchmarks.papers.study import Table, attacked, percent, run_study

_COLUMNS = (
    "table", "protocol", "defense", "AUC", "leaf counts", "blind", "rows in them", "exact rows",
    "blind", "RA over blind",
)  # fmt: skip


def tables(rows: Any) -> list[Table]:
    """Return one line per table, protocol and defense."""
    trained = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")]
    lines = []
    for cell in attacked(rows):
        here = (trained["dataset"] == cell.data) & (trained["protocol"] == cell.protocol)
        auc = trained[here & (trained["defense_spec"] == cell.defense)]["value"]
        ra = cell.rows["ra"]
        lines.append(
            [
                cell.data,
                cell.protocol,
                f"`{cell.defense}`",
                f"{auc.mean():.3f}",
                cell.share("leaf_counts_exact", digits=0),
                cell.share("leaf_counts_exact", "blind", digits=0),
                cell.share("leaf_mass_exact", digits=0),
                cell.share("exact_rows"),
                cell.share("exact_rows", "blind"),
                percent(ra["value"] - ra["blind"], signed=True),
            ]
        )
    title = "A curious client of three; percent, mean ± standard deviation over seeds."
    return [(title, _COLUMNS, lines)]


if __name__ == "__main__":
    run_study("shared_trees", tables)
