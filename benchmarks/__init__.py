"""Suites, replications of published studies, and performance measurements."""

if __name__ != "fedtrees.benchmarks":
    raise ImportError("import this package as 'fedtrees.benchmarks', not as a bare folder name")
