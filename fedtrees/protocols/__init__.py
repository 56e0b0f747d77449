"""Federated training protocols: the parties, and the order of their messages.

This package may import `messages` and the layers below it.
"""
