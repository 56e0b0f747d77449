"""Tables, their schema, and how they are laid out over parties. It may import `core`."""

from fedtrees.data.catalogue import load, names
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.own_table import load_csv
from fedtrees.data.partition import PARTITIONS, Partition, split

__all__ = ["PARTITIONS", "Dataset", "Partition", "load", "load_csv", "names", "prepare", "split"]
