"""Reconstruct rows from released forests of random splits and noisy class counts (DRAFT-DP)."""
