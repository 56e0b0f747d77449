"""Attacks: pure functions from a view to a guess."""

if __name__ != "fedtrees.attacks":
    raise ImportError("import this package as 'fedtrees.attacks', not as a bare folder name")
