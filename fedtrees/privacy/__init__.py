"""Mechanisms of differential privacy, accountants that compose their privacy loss, and audits.

This package may import `fedtrees.core`.
"""
