"""`python -m fedtrees.benchmarks.papers.peeling_catalogue --data-dir FOLDER`: is it sound?"""

from fedtrees.benchmarks.papers.peeling import sound_tables
from fedtrees.benchmarks.papers.study import run_study

if __name__ == "__main__":
    run_study("peeling_catalogue", sound_tables)
