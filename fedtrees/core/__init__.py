"""The vocabulary: parties, holdings, messages, views, guesses, defenses.

It imports nothing else of fedtrees.
"""
