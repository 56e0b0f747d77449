"""Measure the rows that histogram peeling reconstructs.

``python -m fedtrees.benchmarks.papers.peeling --data-dir FOLDER`` runs the suite and prints the
tables.
"""

from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, Table, percent, run_study

_COLUMNS = (
    "table", "protocol", "parameters", "threat", "defense",
    "rows right", "blind", "returned wrong", "with owner", "AUC", "CPU s",
)  # fmt: skip


def attack_table(rows: Any) -> list[list[str]]:
    """Return one line per table, protocol, threat and defense: means over seeds."""
    train = ["dataset", "protocol", "protocol_params", "defense_spec"]
    auc = rows[(rows["stage"] == "train") & (rows["metric"] == "auc")].groupby(train)["value"]
    utility = {key: part.mean() for key, part in auc}
    attacked = rows[rows["stage"] == "attack"]
    lines = []
    for key, part in attacked.groupby([*train, "threat"], sort=False):
        data, protocol, params, defense, threat = key
        metric = {name: list(group["value"]) for name, group in part.groupby("metric")}
        right, wrong, owned = (
            percent(metric.get(f"returned_{suffix}", ())) for suffix in ("right", "wrong", "owned")
        )
        blind = percent(part[part["metric"] == "returned_right"]["blind"])
        measure = f"{utility[key[:4]]:.3f}" if key[:4] in utility else "-"
        seconds = f"{mean(metric['cpu_seconds']):.1f}" if "cpu_seconds" in metric else "-"
        lines.append(
            [data, protocol, params, threat, defense, right, blind, wrong, owned, measure, seconds]
        )
    return lines


_SOUND = (
    "table", "clients", "threat", "returned", "wrong", "returned wrong", "rows right", "CPU s",
)  # fmt: skip


def sound_table(rows: Any) -> list[list[str]]:
    """Return one line per table, number of clients and threat: rows returned, and wrong ones."""
    attacked = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    lines = []
    for key, part in attacked.groupby(["dataset", "partition", "threat"], sort=False):
        value = {name: list(group["value"]) for name, group in part.groupby("metric")}
        returned = sum(value.get("returned_rows", ()))
        wrong = sum(
            round(w * n)
            for w, n in zip(value.get("returned_wrong", ()), value["returned_rows"], strict=False)
            if w == w
        )
        cells = [f"{returned:.0f}", str(wrong), f"{wrong / returned:.1%}" if returned else "-"]
        right = percent(value.get("returned_right", ()))
        lines.append([*map(str, key), *cells, right, f"{mean(value['cpu_seconds']):.1f}"])
    return lines


def sound_tables(rows: Any) -> list[Table]:
    """Return the table of the study of all data sets."""
    return [("Rows returned, and the wrong ones among them.", _SOUND, sound_table(rows))]


if __name__ == "__main__":
    run_study("peeling", lambda rows: [(TITLE, _COLUMNS, attack_table(rows))])
