"""The tree engine: pure arrays in and out, no knowledge of who holds the rows.

It may import `core`.
"""
