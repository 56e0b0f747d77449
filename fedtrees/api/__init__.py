"""The Python interface: `bench` runs a benchmark and returns a `Run` with its results.

This package may import all packages except `cli`.
"""

from fedtrees.api.bench import Run, bench

__all__ = ["Run", "bench"]
