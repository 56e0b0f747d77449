"""Evaluate TimberStrike on tables with several classes.

``python -m fedtrees.benchmarks.papers.timberstrike_classes --data-dir FOLDER`` runs the suite and
prints a table. There are no published results to compare with, because Appendix E of Di Gennaro et
al. (2025) was not evaluated.
"""

from fedtrees.benchmarks.papers.study import attacked_table, run_study

_COLUMNS = (
    "table", "depth", "protocol", "defense", "attack", "RA", "blind", "advantage", "exact rows",
    "blind exact", "leaf counts", "CPU s",
)  # fmt: skip

if __name__ == "__main__":
    run_study("timberstrike_classes", lambda rows: [attacked_table(rows, _COLUMNS)])
