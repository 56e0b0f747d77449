"""Measure the correct branching rate of the path restriction attack.

``python -m fedtrees.benchmarks.papers.path_restriction`` runs the suite and prints a table per data
set.
"""

from collections.abc import Iterator
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, Table, percent, run_study

_HEADER = ("protocol", "defense", "threat", "branches", "blind", "AUC")
_KEYS = ["protocol_params", "defense_spec"]


def branch_tables(rows: Any) -> Iterator[Table]:
    """Yield a table per data set: correct branching rate, its blind baseline, and AUC."""
    rows = rows[rows["status"] == "ok"]
    for data, results in rows.groupby("dataset", sort=False):
        auc = results[(results["stage"] == "train") & (results["metric"] == "auc")]
        utility = {key: part["value"] for key, part in auc.groupby(_KEYS)}
        scores = results[(results["stage"] == "attack") & (results["metric"] == "branches")]
        lines = [
            [*key, percent(part["value"]), percent(part["blind"]), percent(utility[key[:2]])]
            for key, part in scores.groupby([*_KEYS, "threat"], sort=False)
        ]
        yield f"{data}. {TITLE}", _HEADER, lines


if __name__ == "__main__":
    run_study("path_restriction", branch_tables)
