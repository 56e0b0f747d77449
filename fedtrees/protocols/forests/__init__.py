"""Protocols of random forests: grown jointly, pooled, or with random tests and private counts."""
