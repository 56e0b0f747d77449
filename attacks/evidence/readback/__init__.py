"""Counts of a first tree, inferred from sums that are known up to bounds."""
