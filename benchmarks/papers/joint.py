"""Compare the joint reconstruction with TimberStrike and blind guesses.

``python -m fedtrees.benchmarks.papers.joint --data-dir FOLDER`` runs the study and prints its
tables. There are no published results to compare with. TimberStrike's sequential reconstruction and
the best blind guess are merged over samples in the same way as the joint attack.
"""

from fedtrees.benchmarks.papers.study import Attacked, attacked_table, blind_table, run_study

_COLUMNS = (
    "table", "depth", "view", "attack", "RA", "over blind", "advantage", "exact rows", "CPU s",
)  # fmt: skip


def _view(cell: Attacked) -> str:
    """Return which part of the model an attack sees."""
    return {"none": "statistics", "split-only": "values"}[cell.defense]


if __name__ == "__main__":
    run_study("joint", lambda rows: [attacked_table(rows, _COLUMNS, view=_view), blind_table(rows)])
