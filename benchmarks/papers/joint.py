"""`python -m fedtrees.benchmarks.papers.joint --data-dir FOLDER`: run the study, print tables.

Nothing was published to compare with: the lines beside the attack are TimberStrike's sequential
reconstruction and the best blind guess, both merged as the attack's own samples are.
"""

from fedtrees.benchmarks.papers.study import Attacked, attacked_table, blind_table, run_study

_COLUMNS = (
    "table", "depth", "view", "attack", "RA", "over blind", "advantage", "exact rows", "CPU s",
)  # fmt: skip


def _view(cell: Attacked) -> str:
    return {"none": "statistics", "split-only": "values"}[cell.defense]


if __name__ == "__main__":
    run_study("joint", lambda rows: [attacked_table(rows, _COLUMNS, view=_view), blind_table(rows)])
