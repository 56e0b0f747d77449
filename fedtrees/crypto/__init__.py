"""Paillier encryption with ciphertext packing, and secure aggregation by pairwise masks.

This package implements the interfaces of `fedtrees.sealing`. It imports `fedtrees.core` and
`fedtrees.sealing`.
"""
