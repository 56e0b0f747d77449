"""`python -m fedtrees.benchmarks.papers.timberstrike --data-dir FOLDER`: run and print tables.

The published figures are those of Di Gennaro et al. (2025), Tables 4 and 6, "RA (full)": scored
over the union of all rows, own ones included. Ours are over victims only, which is harder; the
blind baseline is scored the same way as ours.
"""

from typing import Any

from fedtrees.benchmarks.papers.study import (
    Attacked,
    Table,
    attacked_table,
    blind_table,
    depth_of,
    run_study,
)
from fedtrees.benchmarks.papers.timberstrike_published import PUBLISHED, over_real_columns

_PUBLISHED_IN = {"pima": "table6", "stroke": "table4"}
_COLUMNS = (
    "table", "depth", "protocol", "defense", "attack", "RA", "blind", "advantage",
    "exact rows", "leaf counts", "their rows", "CPU s", "published",
)  # fmt: skip


def _name(cell: Attacked) -> str:
    base = ", base 0.5" if "base_score=0.5" in cell.parameters else ", base mean"
    return cell.protocol + base * (cell.protocol == "fedtree-hist")


def _published(cell: Attacked) -> str:
    """Return the authors' RA (full), nothing for a table or depth that they did not run."""
    if cell.defense != "none":
        return ""
    table, depth = _PUBLISHED_IN.get(cell.data, ""), int(depth_of(cell.parameters))
    found = PUBLISHED.get((table, cell.protocol, 0))
    if not found or not 3 <= depth <= 8:
        return ""
    return f"{over_real_columns(table, found['full'][depth - 3]):.1f}"


def tables(rows: Any) -> list[Table]:
    """Return what the study prints."""
    attacks = attacked_table(rows, _COLUMNS, protocol=_name, published=_published)
    return [attacks, blind_table(rows)]


if __name__ == "__main__":
    run_study("timberstrike", tables)
