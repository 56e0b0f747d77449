"""The Python interface: `bench` runs a benchmark and returns a `Run` with its results.

This package may import all packages except `cli`.
"""

from fedtrees.api.bench import bench
from fedtrees.api.run import Run

__all__ = ["Run", "bench"]
