"""Infer how many rows of each class are in each leaf or bin of the first trees."""
