"""Rows of a batch read off the gradient of a network (Vero et al. 2023)."""
