"""Row matching, consensus of row samples, and the blind baselines.

`fedtrees.metrics` uses this package to match guessed rows with true rows and to compute blind
baselines, which are guesses of an adversary that receives no message. Attacks use it to merge
several reconstructions. The package imports only `fedtrees.core` and `fedtrees.trees`.
"""
