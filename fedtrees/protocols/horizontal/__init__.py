"""Horizontal protocols: clients have different rows of the same columns."""
