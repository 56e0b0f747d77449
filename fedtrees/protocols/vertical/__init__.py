"""Vertical protocols: parties have different columns of the same rows.

The active party has the labels.
"""
