"""Measure the columns and rows that follow from sketches of cut points.

``python -m fedtrees.benchmarks.papers.sketches --data-dir FOLDER`` runs the suite and prints the
tables.
"""

from collections.abc import Sequence
from typing import Any

from fedtrees.benchmarks.papers.study import Table, percent, run_study

_KEY = ["dataset", "protocol", "protocol_params", "threat"]
_HEADER = ("table", "protocol", "parameters", "threat")
_COLUMNS = ("column_values", "column_extremes", "column_singles")
_ROWS = ("ra", "exact_rows", "bit_exact_rows")


def _lines(rows: Any, by: Sequence[str], scores: Sequence[str]) -> list[list[str]]:
    """Return one line per group that has the first score, with every score and its baseline."""
    attacked = rows[(rows["stage"] == "attack") & (rows["status"] == "ok")]
    lines = []
    for key, part in attacked.groupby(list(by), sort=False):
        group_of_metric = dict(list(part.groupby("metric")))
        if scores[0] not in group_of_metric:
            continue
        cells = [
            percent(group_of_metric[name][column])
            for name in scores
            for column in ("value", "blind")
        ]
        lines.append([*(str(k) if k == k and k is not None else "" for k in key), *cells])
    return lines


def tables(rows: Any) -> list[Table]:
    """Return a table of inferred columns and one of reconstructed rows."""
    header = [h for name in _COLUMNS for h in (name, "blind")]
    columns = ("Columns, percent.", (*_HEADER, *header), _lines(rows, _KEY, _COLUMNS))
    header = [h for name in _ROWS for h in (name, "blind")]
    by = [*_KEY, "attack", "attack_params"]
    return [columns, ("Rows, percent.", (*_HEADER, "attack", "", *header), _lines(rows, by, _ROWS))]


if __name__ == "__main__":
    run_study("sketches", tables)
