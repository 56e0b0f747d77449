"""Write paper.toml: an experiment with three defenses, two adversaries and five seeds.

Run it: python docs/tutorials/make_suite.py
"""

from pathlib import Path

SUITE = """\
name = "paper"
description = "Does a defense without noise protect the records from the server?"
seeds = [0, 1, 2, 3, 4]

[[grid]]
data = ["breast-cancer"]
clients = [3]
protocols = ["fedtree-hist[trees=5,max_depth=3]"]
defenses = ["split-only", "secure-sum", "laplace-hist[epsilon=4]"]
threats = ["client", "server"]
attacks = ["timberstrike", "membership"]
"""
Path("paper.toml").write_text(SUITE)
print(SUITE, end="")
