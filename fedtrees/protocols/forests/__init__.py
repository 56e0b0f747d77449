"""Forests: grown jointly, pooled, or of random tests with private counts."""
