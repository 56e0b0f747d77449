"""Measure which defenses protect trees that clients share.

``python -m fedtrees.benchmarks.papers.shared_trees --data-dir FOLDER`` runs the suite and prints a
table. There are no published results to compare with.
"""

from typing import Any

from fedtrees.benchmarks.papers.study import Attacked, Table, attacked_table, run_study

_COLUMNS = (
    "table", "protocol", "defense", "AUC", "leaf counts", "blind:leaf counts", "rows in them",
    "exact rows", "blind:exact rows", "RA over blind",
)  # fmt: skip


def tables(rows: Any) -> list[Table]:
    """Return one line per table, protocol and defense."""
    trained = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")]
    auc = trained.groupby(["dataset", "protocol", "defense_spec"])["value"].mean()

    def utility(c: Attacked) -> str:
        return f"{auc[c.data, c.protocol, c.defense]:.3f}"

    extra_columns = {
        "defense": lambda c: f"`{c.defense}`",
        "AUC": utility,
        "blind:leaf counts": lambda c: c.share("leaf_counts_exact", "blind", digits=0),
        "rows in them": lambda c: c.share("leaf_mass_exact", digits=0),
        "blind:exact rows": lambda c: c.share("exact_rows", "blind"),
        "RA over blind": lambda c: c.over_blind,
    }
    title = "A honest-but-curious client of three; percent, mean ± standard deviation over seeds."
    return [attacked_table(rows, _COLUMNS, title, **extra_columns)]


if __name__ == "__main__":
    run_study("shared_trees", tables)
