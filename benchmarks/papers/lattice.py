"""Measure how many leaf counts the lattice attack certifies, and the rows that follow.

``python -m fedtrees.benchmarks.papers.lattice --data-dir FOLDER`` runs the study and prints its
tables.
"""

from statistics import mean
from typing import Any

from fedtrees.benchmarks.papers.study import Table, blind_table, percent, run_study

_COUNTS = ("trees_followed", "leaves_certified", "leaves_open", "rows_followed")
_CERTIFIED = (
    "table", "protocol", "attack", "trees followed", "leaves certified", "leaves open",
    "rows followed", "certified leaves right", "doubt", "CPU s",
)  # fmt: skip
_ROWS = ("table", "protocol", "attack", "trees solved", "RA", "blind", "exact rows", "CPU s")


def _numbers(part: Any, metric: str) -> list[float]:
    """Return the values of a metric."""
    return [float(v) for v in part[part["metric"] == metric]["value"]]


def _noted_values(part: Any, name: str) -> list[float]:
    """Return the values of a diagnostic."""
    return _numbers(part[part["part"] == name], "note")


def _each(values: list[float]) -> str:
    """Format a count per seed."""
    return " ".join(f"{v:.0f}" for v in values)


def tables(rows: Any) -> list[Table]:
    """Return the certified counts, and the rows that follow from them, one line per grid cell."""
    certified, scored = [], []
    attacked = rows[rows["stage"] == "attack"]
    keys = ["dataset", "protocol_params", "attack_spec"]
    for (data, params, attack), part in attacked.groupby(keys, sort=False):
        settings = dict(p.split("=") for p in params.split(","))
        start = settings.get("base_score", "label mean")
        name = [data, f"depth {settings['max_depth']}, base score {start}", f"`{attack}`"]
        seconds = f"{mean(_numbers(part, 'cpu_seconds')):.0f}"
        if attack.startswith("lattice"):
            right = _numbers(part, "leaf_counts_right")
            doubt = _noted_values(part, "false_expected")
            certified.append(
                [*name, *(_each(_noted_values(part, n)) for n in _COUNTS), percent(right, digits=0),
                 f"{max(doubt, default=0):.3f}", seconds]
            )  # fmt: skip
        else:
            ra = part[part["metric"] == "ra"]
            scored.append(
                [*name, _each(_noted_values(part, "trees_solved")), percent(ra["value"]),
                 percent(ra["blind"]), percent(_numbers(part, "exact_rows")), seconds]
            )  # fmt: skip
    return [
        ("Certified, one number per seed.", _CERTIFIED, certified),
        ("Rows, percent: mean ± standard deviation over seeds.", _ROWS, scored),
        blind_table(rows),
    ]


if __name__ == "__main__":
    run_study("lattice", tables)
