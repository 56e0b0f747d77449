"""`python -m fedtrees.benchmarks.papers.frontiers --data-dir FOLDER`: run and print the tables."""

from __future__ import annotations

import re
from typing import Any

from fedtrees.benchmarks.papers.study import Table, percent, run_study

_COLUMNS = (
    "defense", "AUC", "change", "spent", "rows read", "blind", "wrong", "exact rows", "blind",
    "RA", "blind",
)  # fmt: skip


def tables(rows: Any) -> list[Table]:
    """Return one table per dataset, protocol and threat: what is read, and what is kept."""
    attacked = rows[rows["stage"] == "attack"]
    keys = ["dataset", "protocol", "protocol_params", "threat"]
    found = []
    for (data, protocol, params, threat), part in attacked.groupby(keys, sort=False):
        title = f"{data}, {protocol}[{params}], curious {threat}"
        here = rows[(rows["stage"] == "train") & (rows["setting"] == part["setting"].iloc[0])]
        lines = [
            [defense, *_utility(here, defense), *_read(of)]
            for defense, of in part.groupby("defense_spec", sort=False)
            if (of["status"] == "ok").any()
        ]
        found.append((title, _COLUMNS, lines))
    return found


def _utility(train: Any, defense: str) -> list[str]:
    """Return AUC, its change paired by seed with the undefended run, and the epsilon spent."""
    auc = train[train["metric"] == "auc"].set_index("seed")
    mine = auc.loc[auc["defense_spec"] == defense, "value"]
    change = mine - auc.loc[auc["defense_spec"] == "none", "value"]
    spent = auc.loc[auc["defense_spec"] == defense, "spent"]
    epsilon = [re.search(r"(?:histograms|epsilon)=([\d.e+-]+)", text) for text in spent]
    budget = next((f"{float(e[1]):g}" for e in epsilon if e), "-")
    return [f"{mine.mean():.3f}", f"{change.mean():+.3f}", budget]


def _read(attacks: Any) -> list[str]:
    """Return what the best attack reads by each metric, beside blind: means over seeds."""
    cells = []
    for metric in ("returned_right", "returned_wrong", "exact_rows", "ra"):
        best = attacks[attacks["metric"] == metric].sort_values("value", ascending=False)
        best = best.drop_duplicates("seed")
        cells.append(percent(best["value"]))
        if metric != "returned_wrong":
            cells.append(percent([best["blind"].mean()]))
    return cells


if __name__ == "__main__":
    run_study("frontiers", tables)
