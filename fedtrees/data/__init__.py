"""Tables, their schemas, and their partitions over parties.

The package may import `fedtrees.core`, but not the training code.
"""

from fedtrees.data.catalogue import load, names
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.own_table import load_csv
from fedtrees.data.partition import PARTITIONS, Partition, split

__all__ = ["PARTITIONS", "Dataset", "Partition", "load", "load_csv", "names", "prepare", "split"]
