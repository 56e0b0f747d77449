"""Attacks in a process of their own, which is handed a view as bytes and returns a guess as bytes.

It imports `core` alone: what runs an attack has never held truth.
"""
