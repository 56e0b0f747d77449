"""Values that cross unread: what seals, adds and opens them, and what that costs.

The ideal functionality is here; `fedtrees.crypto` computes the same, and registers itself
(entry points of the group of sealings). It imports `core`.
"""
