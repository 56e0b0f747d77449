"""Rows guessed from rows: matching, voting, and what one guesses who sees nothing.

Metrics score with it and attacks merge with it; it may import `core`.
"""
