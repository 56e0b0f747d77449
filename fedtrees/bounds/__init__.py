"""Ceilings: scores that no attack can exceed, computed exactly by enumerating very small tables.

For every possible table of a few rows, the package trains a model with a protocol and a defense,
and groups the tables by the view of the adversary. From the posterior distribution given the view
it computes the best possible expected score. The command `fedtrees privacy bound` prints it.
"""
