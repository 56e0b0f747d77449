"""Values that cross unread: what seals, adds and opens them, and what that costs.

The ideal functionality is here; `fedtrees.crypto` computes the same, and registers itself
(entry points ``fedtrees.sealings``). It imports `core`.
"""
