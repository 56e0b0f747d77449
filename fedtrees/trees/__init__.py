"""The tree engine.

Its functions take and return arrays and do not know which party has the rows.

It may import only `fedtrees.core`.
"""
