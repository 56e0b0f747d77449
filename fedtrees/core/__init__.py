"""Parties, messages, transcripts, threats, views, defenses, attacks: the vocabulary."""
