"""Protocols for clients that hold different rows of the same columns."""
