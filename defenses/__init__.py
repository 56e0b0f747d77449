"""Defenses: classes that change messages, local data or models before an adversary can use them.

A defense may import `core`, `messages`, `trees`, `privacy` and `crypto`. It must not import an
attack.
"""

if __name__ != "fedtrees.defenses":
    raise ImportError("import this package as 'fedtrees.defenses', not as a bare folder name")
