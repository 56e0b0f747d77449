"""Tables, their schemas, and their partitions over parties.

The package may import `fedtrees.core`, but not the training code.
"""

from fedtrees.data.catalogue import load, names
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.partition import PARTITIONS, Partition, split
from fedtrees.data.user_tables import load_csv

__all__ = ["PARTITIONS", "Dataset", "Partition", "load", "load_csv", "names", "prepare", "split"]
