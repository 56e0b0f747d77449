"""Performance as ratios measured in one run: `python -m fedtrees.benchmarks.perf`."""
