"""Experiments: train once, attack many times, and store the results.

A suite (`suite`) is expanded into a plan of cells (`plan`), which a runner (`runner`) computes in
several processes (`executor`). The store (`store`) keeps the results in a run folder. The function
`fedtrees.bench` and the command ``fedtrees bench`` run a suite.
"""
