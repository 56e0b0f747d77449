"""Paillier encryption with packing, and pairwise masks that survive dropout. It imports `core`."""
