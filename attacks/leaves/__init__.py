"""Rows from the class counts in the leaves of plain random forests."""
