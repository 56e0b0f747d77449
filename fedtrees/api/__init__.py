"""The Python interface: `bench`, `recommend` and `audit`, which do the same as the commands.

This package may import all packages except `cli`.
"""

from fedtrees.api.bench import bench
from fedtrees.api.run import Run

__all__ = ["Run", "bench"]
