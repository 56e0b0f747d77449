"""The vocabulary: parties, local data, messages, views, guesses, defenses.

It imports nothing else of fedtrees.
"""
