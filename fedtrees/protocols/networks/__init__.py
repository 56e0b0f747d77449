"""Protocols in which clients train a neural network together."""
