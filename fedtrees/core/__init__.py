"""The core vocabulary: parties, local data, messages, views, guesses and defenses.

The core imports no other package of fedtrees.
"""
