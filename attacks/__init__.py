"""Attacks that the adversary runs on the messages that its parties saw.

An attack is a pure function from a view to a guess. The attacks may import `core`, `messages`,
`trees` and `privacy`, but never the modules that contain the ground truth.
"""

if __name__ != "fedtrees.attacks":
    raise ImportError("import this package as 'fedtrees.attacks', not as a bare folder name")
