"""Defenses: what keeps a protocol from revealing what it need not reveal.

They may import `core`, `messages`, `trees` and `privacy`; not attacks, nor one another.
"""

if __name__ != "fedtrees.defenses":
    raise ImportError("import this package as 'fedtrees.defenses', not as a bare folder name")
