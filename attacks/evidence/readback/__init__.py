"""Counts of a first tree read back from sums that are known up to bounds."""
