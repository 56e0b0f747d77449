"""What a program calls: `bench`, and the `Run` that it gives.

It may import all but `cli`.
"""

from fedtrees.api.bench import bench
from fedtrees.api.run import Run

__all__ = ["Run", "bench"]
