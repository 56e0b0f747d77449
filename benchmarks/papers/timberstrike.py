"""Compare TimberStrike with published figures and with the blind baseline.

``python -m fedtrees.benchmarks.papers.timberstrike --data-dir FOLDER`` runs the suite and prints
the tables. The published figures are those of Di Gennaro et al. (2025), Tables 4 and 6, "RA
(full)". They are scored over the union of all rows, including the adversary's. Ours are scored over
the victims' rows only, which is harder. The blind baseline is scored in the same way as ours.
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
    """Return the protocol with its base score."""
    base = ", base 0.5" if "base_score=0.5" in cell.parameters else ", base mean"
    return cell.protocol + base * (cell.protocol == "fedtree-hist")


def _published_score(cell: Attacked) -> str:
    """Return the published RA (full), empty for tables and depths that were not published."""
    if cell.defense != "none":
        return ""
    table, depth = _PUBLISHED_IN.get(cell.data, ""), int(depth_of(cell.parameters))
    figures = PUBLISHED.get((table, cell.protocol, 0))
    if not figures or not 3 <= depth <= 8:
        return ""
    return f"{over_real_columns(table, figures['full'][depth - 3]):.1f}"


def tables(rows: Any) -> list[Table]:
    """Return the tables of the study."""
    attacks = attacked_table(rows, _COLUMNS, protocol=_name, published=_published_score)
    return [attacks, blind_table(rows)]


if __name__ == "__main__":
    run_study("timberstrike", tables)
