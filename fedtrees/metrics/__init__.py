"""Scores, each beside what an adversary gets who never looked."""
