"""Scores, each beside what an adversary gets who sees nothing.

It may import `messages` and below; the guesses of those are in `fedtrees.guessing`.
"""
