"""Metrics: compare the claims of attacks with the truth and with a blind baseline.

The blind baseline is the score of the same adversary without any received message. Its guesses of
rows are computed by `fedtrees.blind_baselines`. Metrics may import `fedtrees.messages` and lower
layers.
"""
