"""Rows guessed from rows: matching, voting, and what one guesses who never looked.

Metrics score with it and attacks merge with it; it may import `core`.
"""
