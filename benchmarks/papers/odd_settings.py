"""`python -m fedtrees.benchmarks.papers.odd_settings --data-dir FOLDER`: run, print the table.

Nobody should end below the blind line by more than its spread over seeds: such lines say so.
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from fedtrees.benchmarks.papers.study import TITLE, Table, percent, run_study

_KEY = ["dataset", "partition", "protocol", "defense_spec", "threat", "attack"]
_HEADER = ("table", "partition", "protocol", "defense", "threat", "attack")


def tables(rows: Any) -> list[Table]:
    """Return RA and exact rows beside the blind line, and who submits a blind guess or is below."""
    attacked = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    lines = []
    for key, part in attacked.groupby(_KEY, sort=False):
        of = dict(iter(part.groupby("metric")))
        if "ra" not in of:
            continue
        ra = of["ra"]
        gap, line = ra["value"] - ra["blind"], list(ra["blind"])
        spread = stdev(line) if len(line) > 1 else 0.0
        chosen, exact = of.get("note:submits_blind"), of["exact_rows"]
        lines.append([
            *map(str, key), percent(ra["value"]), percent(line), percent(gap, signed=True),
            percent(chosen["value"], digits=0).partition(" ")[0] if chosen is not None else "-",
            percent(exact["value"] - exact["blind"], signed=True),
            "below" if mean(gap) < -spread else "",
        ])  # fmt: skip
    header = (*_HEADER, "RA", "blind", "over blind", "submits blind", "exact rows over blind", "")
    return [(TITLE, header, lines)]


if __name__ == "__main__":
    run_study("odd_settings", tables)
