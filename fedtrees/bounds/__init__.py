"""Ceilings: what no attack can exceed, exact on tables small enough to enumerate."""
