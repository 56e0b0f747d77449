"""Check on all data sets of the catalogue that histogram peeling returns no wrong rows.

``python -m fedtrees.benchmarks.papers.peeling_catalogue --data-dir FOLDER`` runs the suite and
prints a table.
"""

from fedtrees.benchmarks.papers.peeling import sound_tables
from fedtrees.benchmarks.papers.study import run_study

if __name__ == "__main__":
    run_study("peeling_catalogue", sound_tables)
