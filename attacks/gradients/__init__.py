"""Reconstruct the rows of a batch from the gradient of a neural network (Vero et al. 2023)."""
