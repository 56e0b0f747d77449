"""Attacks of malicious parties, which evaluate the answers to their dishonest requests."""
