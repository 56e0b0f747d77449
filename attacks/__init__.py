"""Attacks: pure functions from a view to a guess.

They may import `core`, `messages`, `trees` and `privacy`; never where truth is held.
"""

if __name__ != "fedtrees.attacks":
    raise ImportError("import this package as 'fedtrees.attacks', not as a bare folder name")
